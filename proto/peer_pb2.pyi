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
    __slots__ = ("calls",)
    CALLS_FIELD_NUMBER: _ClassVar[int]
    calls: _containers.RepeatedCompositeFieldContainer[ForwardedCall]
    def __init__(self, calls: _Optional[_Iterable[_Union[ForwardedCall, _Mapping]]] = ...) -> None: ...

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
    def __init__(self, call_id: _Optional[int] = ..., answer: _Optional[bytes] = ..., status: _Optional[int] = ..., details: _Optional[str] = ..., not_leader: _Optional[bool] = ...) -> None: ...
