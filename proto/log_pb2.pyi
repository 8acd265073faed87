from ledgermq.proto import route_pb2 as _route_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class ProduceRequest(_message.Message):
    __slots__ = ("request_id", "sections", "section_count")
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    SECTIONS_FIELD_NUMBER: _ClassVar[int]
    SECTION_COUNT_FIELD_NUMBER: _ClassVar[int]
    request_id: int
    sections: bytes
    section_count: int
    def __init__(self, request_id: _Optional[int] = ..., sections: _Optional[bytes] = ..., section_count: _Optional[int] = ...) -> None: ...

class SectionResult(_message.Message):
    __slots__ = ("base_queue_offset", "count", "duplicate", "refusal")
    BASE_QUEUE_OFFSET_FIELD_NUMBER: _ClassVar[int]
    COUNT_FIELD_NUMBER: _ClassVar[int]
    DUPLICATE_FIELD_NUMBER: _ClassVar[int]
    REFUSAL_FIELD_NUMBER: _ClassVar[int]
    base_queue_offset: int
    count: int
    duplicate: bool
    refusal: _route_pb2.Refusal
    def __init__(self, base_queue_offset: _Optional[int] = ..., count: _Optional[int] = ..., duplicate: bool = ..., refusal: _Optional[_Union[_route_pb2.Refusal, _Mapping]] = ...) -> None: ...

class ProduceResponse(_message.Message):
    __slots__ = ("request_id", "results", "refusal", "store_timestamp")
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    RESULTS_FIELD_NUMBER: _ClassVar[int]
    REFUSAL_FIELD_NUMBER: _ClassVar[int]
    STORE_TIMESTAMP_FIELD_NUMBER: _ClassVar[int]
    request_id: int
    results: _containers.RepeatedCompositeFieldContainer[SectionResult]
    refusal: _route_pb2.Refusal
    store_timestamp: int
    def __init__(self, request_id: _Optional[int] = ..., results: _Optional[_Iterable[_Union[SectionResult, _Mapping]]] = ..., refusal: _Optional[_Union[_route_pb2.Refusal, _Mapping]] = ..., store_timestamp: _Optional[int] = ...) -> None: ...

class FetchPosition(_message.Message):
    __slots__ = ("topic_id", "queue_id", "offset")
    TOPIC_ID_FIELD_NUMBER: _ClassVar[int]
    QUEUE_ID_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    topic_id: int
    queue_id: int
    offset: int
    def __init__(self, topic_id: _Optional[int] = ..., queue_id: _Optional[int] = ..., offset: _Optional[int] = ...) -> None: ...

class FetchRequest(_message.Message):
    __slots__ = ("positions", "max_bytes", "max_wait_ms")
    POSITIONS_FIELD_NUMBER: _ClassVar[int]
    MAX_BYTES_FIELD_NUMBER: _ClassVar[int]
    MAX_WAIT_MS_FIELD_NUMBER: _ClassVar[int]
    positions: _containers.RepeatedCompositeFieldContainer[FetchPosition]
    max_bytes: int
    max_wait_ms: int
    def __init__(self, positions: _Optional[_Iterable[_Union[FetchPosition, _Mapping]]] = ..., max_bytes: _Optional[int] = ..., max_wait_ms: _Optional[int] = ...) -> None: ...

class FetchedSection(_message.Message):
    __slots__ = ("section", "store_timestamp", "physical_offset")
    SECTION_FIELD_NUMBER: _ClassVar[int]
    STORE_TIMESTAMP_FIELD_NUMBER: _ClassVar[int]
    PHYSICAL_OFFSET_FIELD_NUMBER: _ClassVar[int]
    section: bytes
    store_timestamp: int
    physical_offset: int
    def __init__(self, section: _Optional[bytes] = ..., store_timestamp: _Optional[int] = ..., physical_offset: _Optional[int] = ...) -> None: ...

class FetchedQueue(_message.Message):
    __slots__ = ("topic_id", "queue_id", "refusal", "sections", "begin_offset", "end_offset")
    TOPIC_ID_FIELD_NUMBER: _ClassVar[int]
    QUEUE_ID_FIELD_NUMBER: _ClassVar[int]
    REFUSAL_FIELD_NUMBER: _ClassVar[int]
    SECTIONS_FIELD_NUMBER: _ClassVar[int]
    BEGIN_OFFSET_FIELD_NUMBER: _ClassVar[int]
    END_OFFSET_FIELD_NUMBER: _ClassVar[int]
    topic_id: int
    queue_id: int
    refusal: _route_pb2.Refusal
    sections: _containers.RepeatedCompositeFieldContainer[FetchedSection]
    begin_offset: int
    end_offset: int
    def __init__(self, topic_id: _Optional[int] = ..., queue_id: _Optional[int] = ..., refusal: _Optional[_Union[_route_pb2.Refusal, _Mapping]] = ..., sections: _Optional[_Iterable[_Union[FetchedSection, _Mapping]]] = ..., begin_offset: _Optional[int] = ..., end_offset: _Optional[int] = ...) -> None: ...

class FetchResponse(_message.Message):
    __slots__ = ("refusal", "queues", "applied_index", "node_id", "stale", "suggested_node_id")
    REFUSAL_FIELD_NUMBER: _ClassVar[int]
    QUEUES_FIELD_NUMBER: _ClassVar[int]
    APPLIED_INDEX_FIELD_NUMBER: _ClassVar[int]
    NODE_ID_FIELD_NUMBER: _ClassVar[int]
    STALE_FIELD_NUMBER: _ClassVar[int]
    SUGGESTED_NODE_ID_FIELD_NUMBER: _ClassVar[int]
    refusal: _route_pb2.Refusal
    queues: _containers.RepeatedCompositeFieldContainer[FetchedQueue]
    applied_index: int
    node_id: str
    stale: bool
    suggested_node_id: str
    def __init__(self, refusal: _Optional[_Union[_route_pb2.Refusal, _Mapping]] = ..., queues: _Optional[_Iterable[_Union[FetchedQueue, _Mapping]]] = ..., applied_index: _Optional[int] = ..., node_id: _Optional[str] = ..., stale: bool = ..., suggested_node_id: _Optional[str] = ...) -> None: ...

class QueueOffset(_message.Message):
    __slots__ = ("topic", "queue_id", "offset", "begin_offset", "end_offset", "lost", "epoch", "time_offset")
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    QUEUE_ID_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    BEGIN_OFFSET_FIELD_NUMBER: _ClassVar[int]
    END_OFFSET_FIELD_NUMBER: _ClassVar[int]
    LOST_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    TIME_OFFSET_FIELD_NUMBER: _ClassVar[int]
    topic: str
    queue_id: int
    offset: int
    begin_offset: int
    end_offset: int
    lost: int
    epoch: int
    time_offset: int
    def __init__(self, topic: _Optional[str] = ..., queue_id: _Optional[int] = ..., offset: _Optional[int] = ..., begin_offset: _Optional[int] = ..., end_offset: _Optional[int] = ..., lost: _Optional[int] = ..., epoch: _Optional[int] = ..., time_offset: _Optional[int] = ...) -> None: ...

class CommitOffsetsRequest(_message.Message):
    __slots__ = ("group", "offsets", "reset")
    GROUP_FIELD_NUMBER: _ClassVar[int]
    OFFSETS_FIELD_NUMBER: _ClassVar[int]
    RESET_FIELD_NUMBER: _ClassVar[int]
    group: str
    offsets: _containers.RepeatedCompositeFieldContainer[QueueOffset]
    reset: bool
    def __init__(self, group: _Optional[str] = ..., offsets: _Optional[_Iterable[_Union[QueueOffset, _Mapping]]] = ..., reset: bool = ...) -> None: ...

class CommitOffsetsResponse(_message.Message):
    __slots__ = ("refusal",)
    REFUSAL_FIELD_NUMBER: _ClassVar[int]
    refusal: _route_pb2.Refusal
    def __init__(self, refusal: _Optional[_Union[_route_pb2.Refusal, _Mapping]] = ...) -> None: ...

class QueryOffsetsRequest(_message.Message):
    __slots__ = ("group", "topic", "timestamp", "allow_stale")
    GROUP_FIELD_NUMBER: _ClassVar[int]
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    TIMESTAMP_FIELD_NUMBER: _ClassVar[int]
    ALLOW_STALE_FIELD_NUMBER: _ClassVar[int]
    group: str
    topic: str
    timestamp: int
    allow_stale: bool
    def __init__(self, group: _Optional[str] = ..., topic: _Optional[str] = ..., timestamp: _Optional[int] = ..., allow_stale: bool = ...) -> None: ...

class QueryOffsetsResponse(_message.Message):
    __slots__ = ("refusal", "offsets", "stale")
    REFUSAL_FIELD_NUMBER: _ClassVar[int]
    OFFSETS_FIELD_NUMBER: _ClassVar[int]
    STALE_FIELD_NUMBER: _ClassVar[int]
    refusal: _route_pb2.Refusal
    offsets: _containers.RepeatedCompositeFieldContainer[QueueOffset]
    stale: bool
    def __init__(self, refusal: _Optional[_Union[_route_pb2.Refusal, _Mapping]] = ..., offsets: _Optional[_Iterable[_Union[QueueOffset, _Mapping]]] = ..., stale: bool = ...) -> None: ...

class BeginBatchRequest(_message.Message):
    __slots__ = ("job", "batch", "partition", "topic", "unknown_too", "look")
    JOB_FIELD_NUMBER: _ClassVar[int]
    BATCH_FIELD_NUMBER: _ClassVar[int]
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    UNKNOWN_TOO_FIELD_NUMBER: _ClassVar[int]
    LOOK_FIELD_NUMBER: _ClassVar[int]
    job: str
    batch: int
    partition: int
    topic: str
    unknown_too: bool
    look: bool
    def __init__(self, job: _Optional[str] = ..., batch: _Optional[int] = ..., partition: _Optional[int] = ..., topic: _Optional[str] = ..., unknown_too: bool = ..., look: bool = ...) -> None: ...

class BatchSpan(_message.Message):
    __slots__ = ("queue_id", "offset", "end_offset")
    QUEUE_ID_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    END_OFFSET_FIELD_NUMBER: _ClassVar[int]
    queue_id: int
    offset: int
    end_offset: int
    def __init__(self, queue_id: _Optional[int] = ..., offset: _Optional[int] = ..., end_offset: _Optional[int] = ...) -> None: ...

class BeginBatchResponse(_message.Message):
    __slots__ = ("refusal", "unknown", "finished", "producer_id", "producer_epoch", "topic_id", "count", "silent", "spans")
    REFUSAL_FIELD_NUMBER: _ClassVar[int]
    UNKNOWN_FIELD_NUMBER: _ClassVar[int]
    FINISHED_FIELD_NUMBER: _ClassVar[int]
    PRODUCER_ID_FIELD_NUMBER: _ClassVar[int]
    PRODUCER_EPOCH_FIELD_NUMBER: _ClassVar[int]
    TOPIC_ID_FIELD_NUMBER: _ClassVar[int]
    COUNT_FIELD_NUMBER: _ClassVar[int]
    SILENT_FIELD_NUMBER: _ClassVar[int]
    SPANS_FIELD_NUMBER: _ClassVar[int]
    refusal: _route_pb2.Refusal
    unknown: bool
    finished: bool
    producer_id: int
    producer_epoch: int
    topic_id: int
    count: int
    silent: bool
    spans: _containers.RepeatedCompositeFieldContainer[BatchSpan]
    def __init__(self, refusal: _Optional[_Union[_route_pb2.Refusal, _Mapping]] = ..., unknown: bool = ..., finished: bool = ..., producer_id: _Optional[int] = ..., producer_epoch: _Optional[int] = ..., topic_id: _Optional[int] = ..., count: _Optional[int] = ..., silent: bool = ..., spans: _Optional[_Iterable[_Union[BatchSpan, _Mapping]]] = ...) -> None: ...

class FinishBatchRequest(_message.Message):
    __slots__ = ("producer_id", "producer_epoch", "topic_id", "count", "job")
    PRODUCER_ID_FIELD_NUMBER: _ClassVar[int]
    PRODUCER_EPOCH_FIELD_NUMBER: _ClassVar[int]
    TOPIC_ID_FIELD_NUMBER: _ClassVar[int]
    COUNT_FIELD_NUMBER: _ClassVar[int]
    JOB_FIELD_NUMBER: _ClassVar[int]
    producer_id: int
    producer_epoch: int
    topic_id: int
    count: int
    job: str
    def __init__(self, producer_id: _Optional[int] = ..., producer_epoch: _Optional[int] = ..., topic_id: _Optional[int] = ..., count: _Optional[int] = ..., job: _Optional[str] = ...) -> None: ...

class FinishBatchResponse(_message.Message):
    __slots__ = ("refusal",)
    REFUSAL_FIELD_NUMBER: _ClassVar[int]
    refusal: _route_pb2.Refusal
    def __init__(self, refusal: _Optional[_Union[_route_pb2.Refusal, _Mapping]] = ...) -> None: ...

class MembershipRequest(_message.Message):
    __slots__ = ("group", "member_id", "topics", "allocation", "zone", "session_timeout_ms", "release_ms", "released", "leave", "filter", "orderly")
    GROUP_FIELD_NUMBER: _ClassVar[int]
    MEMBER_ID_FIELD_NUMBER: _ClassVar[int]
    TOPICS_FIELD_NUMBER: _ClassVar[int]
    ALLOCATION_FIELD_NUMBER: _ClassVar[int]
    ZONE_FIELD_NUMBER: _ClassVar[int]
    SESSION_TIMEOUT_MS_FIELD_NUMBER: _ClassVar[int]
    RELEASE_MS_FIELD_NUMBER: _ClassVar[int]
    RELEASED_FIELD_NUMBER: _ClassVar[int]
    LEAVE_FIELD_NUMBER: _ClassVar[int]
    FILTER_FIELD_NUMBER: _ClassVar[int]
    ORDERLY_FIELD_NUMBER: _ClassVar[int]
    group: str
    member_id: str
    topics: _containers.RepeatedScalarFieldContainer[str]
    allocation: str
    zone: str
    session_timeout_ms: int
    release_ms: int
    released: _containers.RepeatedCompositeFieldContainer[QueueOwnership]
    leave: bool
    filter: str
    orderly: bool
    def __init__(self, group: _Optional[str] = ..., member_id: _Optional[str] = ..., topics: _Optional[_Iterable[str]] = ..., allocation: _Optional[str] = ..., zone: _Optional[str] = ..., session_timeout_ms: _Optional[int] = ..., release_ms: _Optional[int] = ..., released: _Optional[_Iterable[_Union[QueueOwnership, _Mapping]]] = ..., leave: bool = ..., filter: _Optional[str] = ..., orderly: bool = ...) -> None: ...

class QueueOwnership(_message.Message):
    __slots__ = ("topic", "topic_id", "queue_id", "epoch", "offset")
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    TOPIC_ID_FIELD_NUMBER: _ClassVar[int]
    QUEUE_ID_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    topic: str
    topic_id: int
    queue_id: int
    epoch: int
    offset: int
    def __init__(self, topic: _Optional[str] = ..., topic_id: _Optional[int] = ..., queue_id: _Optional[int] = ..., epoch: _Optional[int] = ..., offset: _Optional[int] = ...) -> None: ...

class MembershipResponse(_message.Message):
    __slots__ = ("refusal", "owned", "revoked", "members", "heartbeat_interval_ms", "warnings")
    REFUSAL_FIELD_NUMBER: _ClassVar[int]
    OWNED_FIELD_NUMBER: _ClassVar[int]
    REVOKED_FIELD_NUMBER: _ClassVar[int]
    MEMBERS_FIELD_NUMBER: _ClassVar[int]
    HEARTBEAT_INTERVAL_MS_FIELD_NUMBER: _ClassVar[int]
    WARNINGS_FIELD_NUMBER: _ClassVar[int]
    refusal: _route_pb2.Refusal
    owned: _containers.RepeatedCompositeFieldContainer[QueueOwnership]
    revoked: _containers.RepeatedCompositeFieldContainer[QueueOwnership]
    members: int
    heartbeat_interval_ms: int
    warnings: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, refusal: _Optional[_Union[_route_pb2.Refusal, _Mapping]] = ..., owned: _Optional[_Iterable[_Union[QueueOwnership, _Mapping]]] = ..., revoked: _Optional[_Iterable[_Union[QueueOwnership, _Mapping]]] = ..., members: _Optional[int] = ..., heartbeat_interval_ms: _Optional[int] = ..., warnings: _Optional[_Iterable[str]] = ...) -> None: ...
