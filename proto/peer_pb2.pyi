from ledgermq.proto import rocketmq_v2_pb2 as _rocketmq_v2_pb2
from ledgermq.proto import route_pb2 as _route_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class NodeReport(_message.Message):
    __slots__ = ("node", "client_ids")
    NODE_FIELD_NUMBER: _ClassVar[int]
    CLIENT_IDS_FIELD_NUMBER: _ClassVar[int]
    node: _route_pb2.NodeInfo
    client_ids: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, node: _Optional[_Union[_route_pb2.NodeInfo, _Mapping]] = ..., client_ids: _Optional[_Iterable[str]] = ...) -> None: ...

class GroupView(_message.Message):
    __slots__ = ("refusal", "nodes")
    REFUSAL_FIELD_NUMBER: _ClassVar[int]
    NODES_FIELD_NUMBER: _ClassVar[int]
    refusal: _route_pb2.Refusal
    nodes: _containers.RepeatedCompositeFieldContainer[_route_pb2.NodeInfo]
    def __init__(self, refusal: _Optional[_Union[_route_pb2.Refusal, _Mapping]] = ..., nodes: _Optional[_Iterable[_Union[_route_pb2.NodeInfo, _Mapping]]] = ...) -> None: ...

class ForwardedCalls(_message.Message):
    __slots__ = ("calls", "ended")
    CALLS_FIELD_NUMBER: _ClassVar[int]
    ENDED_FIELD_NUMBER: _ClassVar[int]
    calls: _containers.RepeatedCompositeFieldContainer[ForwardedCall]
    ended: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, calls: _Optional[_Iterable[_Union[ForwardedCall, _Mapping]]] = ..., ended: _Optional[_Iterable[int]] = ...) -> None: ...

class ForwardedCall(_message.Message):
    __slots__ = ("call_id", "method", "request", "metadata", "timeout_ms")
    CALL_ID_FIELD_NUMBER: _ClassVar[int]
    METHOD_FIELD_NUMBER: _ClassVar[int]
    REQUEST_FIELD_NUMBER: _ClassVar[int]
    METADATA_FIELD_NUMBER: _ClassVar[int]
    TIMEOUT_MS_FIELD_NUMBER: _ClassVar[int]
    call_id: int
    method: str
    request: bytes
    metadata: _containers.RepeatedScalarFieldContainer[str]
    timeout_ms: int
    def __init__(self, call_id: _Optional[int] = ..., method: _Optional[str] = ..., request: _Optional[bytes] = ..., metadata: _Optional[_Iterable[str]] = ..., timeout_ms: _Optional[int] = ...) -> None: ...

class ForwardedAnswers(_message.Message):
    __slots__ = ("answers",)
    ANSWERS_FIELD_NUMBER: _ClassVar[int]
    answers: _containers.RepeatedCompositeFieldContainer[ForwardedAnswer]
    def __init__(self, answers: _Optional[_Iterable[_Union[ForwardedAnswer, _Mapping]]] = ...) -> None: ...

class ForwardedAnswer(_message.Message):
    __slots__ = ("call_id", "answer", "status", "details", "not_leader")
    CALL_ID_FIELD_NUMBER: _ClassVar[int]
    ANSWER_FIELD_NUMBER: _ClassVar[int]
    STATUS_FIELD_NUMBER: _ClassVar[int]
    DETAILS_FIELD_NUMBER: _ClassVar[int]
    NOT_LEADER_FIELD_NUMBER: _ClassVar[int]
    call_id: int
    answer: bytes
    status: int
    details: str
    not_leader: bool
    def __init__(self, call_id: _Optional[int] = ..., answer: _Optional[bytes] = ..., status: _Optional[int] = ..., details: _Optional[str] = ..., not_leader: bool = ...) -> None: ...

class GrantAnswer(_message.Message):
    __slots__ = ("status", "store_host", "granted")
    STATUS_FIELD_NUMBER: _ClassVar[int]
    STORE_HOST_FIELD_NUMBER: _ClassVar[int]
    GRANTED_FIELD_NUMBER: _ClassVar[int]
    status: _rocketmq_v2_pb2.Status
    store_host: str
    granted: GrantedMessages
    def __init__(self, status: _Optional[_Union[_rocketmq_v2_pb2.Status, _Mapping]] = ..., store_host: _Optional[str] = ..., granted: _Optional[_Union[GrantedMessages, _Mapping]] = ...) -> None: ...

class GrantedMessages(_message.Message):
    __slots__ = ("group_id", "topic_id", "messages")
    GROUP_ID_FIELD_NUMBER: _ClassVar[int]
    TOPIC_ID_FIELD_NUMBER: _ClassVar[int]
    MESSAGES_FIELD_NUMBER: _ClassVar[int]
    group_id: int
    topic_id: int
    messages: _containers.RepeatedCompositeFieldContainer[GrantedMessage]
    def __init__(self, group_id: _Optional[int] = ..., topic_id: _Optional[int] = ..., messages: _Optional[_Iterable[_Union[GrantedMessage, _Mapping]]] = ...) -> None: ...

class GrantedMessage(_message.Message):
    __slots__ = ("queue_id", "queue_offset", "physical_offset", "size", "attempt", "lease_id")
    QUEUE_ID_FIELD_NUMBER: _ClassVar[int]
    QUEUE_OFFSET_FIELD_NUMBER: _ClassVar[int]
    PHYSICAL_OFFSET_FIELD_NUMBER: _ClassVar[int]
    SIZE_FIELD_NUMBER: _ClassVar[int]
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    LEASE_ID_FIELD_NUMBER: _ClassVar[int]
    queue_id: int
    queue_offset: int
    physical_offset: int
    size: int
    attempt: int
    lease_id: int
    def __init__(self, queue_id: _Optional[int] = ..., queue_offset: _Optional[int] = ..., physical_offset: _Optional[int] = ..., size: _Optional[int] = ..., attempt: _Optional[int] = ..., lease_id: _Optional[int] = ...) -> None: ...

class GrantedRecord(_message.Message):
    __slots__ = ("record", "store_timestamp")
    RECORD_FIELD_NUMBER: _ClassVar[int]
    STORE_TIMESTAMP_FIELD_NUMBER: _ClassVar[int]
    record: bytes
    store_timestamp: int
    def __init__(self, record: _Optional[bytes] = ..., store_timestamp: _Optional[int] = ...) -> None: ...

class GiveBackAnswer(_message.Message):
    __slots__ = ("refusal",)
    REFUSAL_FIELD_NUMBER: _ClassVar[int]
    refusal: _route_pb2.Refusal
    def __init__(self, refusal: _Optional[_Union[_route_pb2.Refusal, _Mapping]] = ...) -> None: ...
