from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Standing(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    STANDING_UNSPECIFIED: _ClassVar[Standing]
    STANDING_FRESH: _ClassVar[Standing]
    STANDING_VOTER: _ClassVar[Standing]
    STANDING_LEARNER: _ClassVar[Standing]

class RefusalKind(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    REFUSAL_NONE: _ClassVar[RefusalKind]
    REFUSAL_FORMAT: _ClassVar[RefusalKind]
    REFUSAL_CLUSTER: _ClassVar[RefusalKind]
    REFUSAL_GROUP: _ClassVar[RefusalKind]
    REFUSAL_NOT_A_MEMBER: _ClassVar[RefusalKind]
    REFUSAL_WRONG_ADDRESS: _ClassVar[RefusalKind]
    REFUSAL_SEGMENT_SIZE: _ClassVar[RefusalKind]
    REFUSAL_INCARNATION: _ClassVar[RefusalKind]
    REFUSAL_MALFORMED: _ClassVar[RefusalKind]
    REFUSAL_OTHER_GROUP: _ClassVar[RefusalKind]
    REFUSAL_REPLICATION: _ClassVar[RefusalKind]
    REFUSAL_LEFT_BEHIND: _ClassVar[RefusalKind]
    REFUSAL_TERM: _ClassVar[RefusalKind]
STANDING_UNSPECIFIED: Standing
STANDING_FRESH: Standing
STANDING_VOTER: Standing
STANDING_LEARNER: Standing
REFUSAL_NONE: RefusalKind
REFUSAL_FORMAT: RefusalKind
REFUSAL_CLUSTER: RefusalKind
REFUSAL_GROUP: RefusalKind
REFUSAL_NOT_A_MEMBER: RefusalKind
REFUSAL_WRONG_ADDRESS: RefusalKind
REFUSAL_SEGMENT_SIZE: RefusalKind
REFUSAL_INCARNATION: RefusalKind
REFUSAL_MALFORMED: RefusalKind
REFUSAL_OTHER_GROUP: RefusalKind
REFUSAL_REPLICATION: RefusalKind
REFUSAL_LEFT_BEHIND: RefusalKind
REFUSAL_TERM: RefusalKind

class ResetRequest(_message.Message):
    __slots__ = ("format", "hello", "term")
    FORMAT_FIELD_NUMBER: _ClassVar[int]
    HELLO_FIELD_NUMBER: _ClassVar[int]
    TERM_FIELD_NUMBER: _ClassVar[int]
    format: int
    hello: Hello
    term: int
    def __init__(self, format: _Optional[int] = ..., hello: _Optional[_Union[Hello, _Mapping]] = ..., term: _Optional[int] = ...) -> None: ...

class ResetFrame(_message.Message):
    __slots__ = ("head", "chunk", "end", "refusal")
    HEAD_FIELD_NUMBER: _ClassVar[int]
    CHUNK_FIELD_NUMBER: _ClassVar[int]
    END_FIELD_NUMBER: _ClassVar[int]
    REFUSAL_FIELD_NUMBER: _ClassVar[int]
    head: ResetHead
    chunk: ResetChunk
    end: ResetEnd
    refusal: str
    def __init__(self, head: _Optional[_Union[ResetHead, _Mapping]] = ..., chunk: _Optional[_Union[ResetChunk, _Mapping]] = ..., end: _Optional[_Union[ResetEnd, _Mapping]] = ..., refusal: _Optional[str] = ...) -> None: ...

class ResetHead(_message.Message):
    __slots__ = ("format", "term", "base_index", "base_term", "base_crc", "base_timestamp", "first_offset", "state_index", "state_size")
    FORMAT_FIELD_NUMBER: _ClassVar[int]
    TERM_FIELD_NUMBER: _ClassVar[int]
    BASE_INDEX_FIELD_NUMBER: _ClassVar[int]
    BASE_TERM_FIELD_NUMBER: _ClassVar[int]
    BASE_CRC_FIELD_NUMBER: _ClassVar[int]
    BASE_TIMESTAMP_FIELD_NUMBER: _ClassVar[int]
    FIRST_OFFSET_FIELD_NUMBER: _ClassVar[int]
    STATE_INDEX_FIELD_NUMBER: _ClassVar[int]
    STATE_SIZE_FIELD_NUMBER: _ClassVar[int]
    format: int
    term: int
    base_index: int
    base_term: int
    base_crc: int
    base_timestamp: int
    first_offset: int
    state_index: int
    state_size: int
    def __init__(self, format: _Optional[int] = ..., term: _Optional[int] = ..., base_index: _Optional[int] = ..., base_term: _Optional[int] = ..., base_crc: _Optional[int] = ..., base_timestamp: _Optional[int] = ..., first_offset: _Optional[int] = ..., state_index: _Optional[int] = ..., state_size: _Optional[int] = ...) -> None: ...

class ResetChunk(_message.Message):
    __slots__ = ("offset", "crc32c", "data")
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    CRC32C_FIELD_NUMBER: _ClassVar[int]
    DATA_FIELD_NUMBER: _ClassVar[int]
    offset: int
    crc32c: int
    data: bytes
    def __init__(self, offset: _Optional[int] = ..., crc32c: _Optional[int] = ..., data: _Optional[bytes] = ...) -> None: ...

class ResetEnd(_message.Message):
    __slots__ = ("crc32c",)
    CRC32C_FIELD_NUMBER: _ClassVar[int]
    crc32c: int
    def __init__(self, crc32c: _Optional[int] = ...) -> None: ...

class Hello(_message.Message):
    __slots__ = ("format", "feature_level", "cluster_id", "group", "node_id", "to_node_id", "incarnation", "segment_size", "standing", "term", "known_incarnations", "fsync_p99_ms", "disk_used_ratio", "group_id", "replication", "reign", "frames", "checksum")
    class KnownIncarnationsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: int
        def __init__(self, key: _Optional[str] = ..., value: _Optional[int] = ...) -> None: ...
    FORMAT_FIELD_NUMBER: _ClassVar[int]
    FEATURE_LEVEL_FIELD_NUMBER: _ClassVar[int]
    CLUSTER_ID_FIELD_NUMBER: _ClassVar[int]
    GROUP_FIELD_NUMBER: _ClassVar[int]
    NODE_ID_FIELD_NUMBER: _ClassVar[int]
    TO_NODE_ID_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    SEGMENT_SIZE_FIELD_NUMBER: _ClassVar[int]
    STANDING_FIELD_NUMBER: _ClassVar[int]
    TERM_FIELD_NUMBER: _ClassVar[int]
    KNOWN_INCARNATIONS_FIELD_NUMBER: _ClassVar[int]
    FSYNC_P99_MS_FIELD_NUMBER: _ClassVar[int]
    DISK_USED_RATIO_FIELD_NUMBER: _ClassVar[int]
    GROUP_ID_FIELD_NUMBER: _ClassVar[int]
    REPLICATION_FIELD_NUMBER: _ClassVar[int]
    REIGN_FIELD_NUMBER: _ClassVar[int]
    FRAMES_FIELD_NUMBER: _ClassVar[int]
    CHECKSUM_FIELD_NUMBER: _ClassVar[int]
    format: int
    feature_level: int
    cluster_id: str
    group: str
    node_id: str
    to_node_id: str
    incarnation: int
    segment_size: int
    standing: Standing
    term: int
    known_incarnations: _containers.ScalarMap[str, int]
    fsync_p99_ms: float
    disk_used_ratio: float
    group_id: int
    replication: str
    reign: Reign
    frames: int
    checksum: int
    def __init__(self, format: _Optional[int] = ..., feature_level: _Optional[int] = ..., cluster_id: _Optional[str] = ..., group: _Optional[str] = ..., node_id: _Optional[str] = ..., to_node_id: _Optional[str] = ..., incarnation: _Optional[int] = ..., segment_size: _Optional[int] = ..., standing: _Optional[_Union[Standing, str]] = ..., term: _Optional[int] = ..., known_incarnations: _Optional[_Mapping[str, int]] = ..., fsync_p99_ms: _Optional[float] = ..., disk_used_ratio: _Optional[float] = ..., group_id: _Optional[int] = ..., replication: _Optional[str] = ..., reign: _Optional[_Union[Reign, _Mapping]] = ..., frames: _Optional[int] = ..., checksum: _Optional[int] = ...) -> None: ...

class Reign(_message.Message):
    __slots__ = ("master", "generation", "began_after", "former_group_ids")
    MASTER_FIELD_NUMBER: _ClassVar[int]
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    BEGAN_AFTER_FIELD_NUMBER: _ClassVar[int]
    FORMER_GROUP_IDS_FIELD_NUMBER: _ClassVar[int]
    master: str
    generation: int
    began_after: int
    former_group_ids: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, master: _Optional[str] = ..., generation: _Optional[int] = ..., began_after: _Optional[int] = ..., former_group_ids: _Optional[_Iterable[int]] = ...) -> None: ...

class HelloReply(_message.Message):
    __slots__ = ("hello", "refusal", "refusal_kind", "frames", "checksum")
    HELLO_FIELD_NUMBER: _ClassVar[int]
    REFUSAL_FIELD_NUMBER: _ClassVar[int]
    REFUSAL_KIND_FIELD_NUMBER: _ClassVar[int]
    FRAMES_FIELD_NUMBER: _ClassVar[int]
    CHECKSUM_FIELD_NUMBER: _ClassVar[int]
    hello: Hello
    refusal: str
    refusal_kind: RefusalKind
    frames: int
    checksum: int
    def __init__(self, hello: _Optional[_Union[Hello, _Mapping]] = ..., refusal: _Optional[str] = ..., refusal_kind: _Optional[_Union[RefusalKind, str]] = ..., frames: _Optional[int] = ..., checksum: _Optional[int] = ...) -> None: ...

class RaftFrame(_message.Message):
    __slots__ = ("messages", "hello", "entries", "checksum")
    MESSAGES_FIELD_NUMBER: _ClassVar[int]
    HELLO_FIELD_NUMBER: _ClassVar[int]
    ENTRIES_FIELD_NUMBER: _ClassVar[int]
    CHECKSUM_FIELD_NUMBER: _ClassVar[int]
    messages: _containers.RepeatedCompositeFieldContainer[RaftMessage]
    hello: Hello
    entries: bytes
    checksum: int
    def __init__(self, messages: _Optional[_Iterable[_Union[RaftMessage, _Mapping]]] = ..., hello: _Optional[_Union[Hello, _Mapping]] = ..., entries: _Optional[bytes] = ..., checksum: _Optional[int] = ...) -> None: ...

class StreamAnswer(_message.Message):
    __slots__ = ("reply", "arrived", "checksum")
    REPLY_FIELD_NUMBER: _ClassVar[int]
    ARRIVED_FIELD_NUMBER: _ClassVar[int]
    CHECKSUM_FIELD_NUMBER: _ClassVar[int]
    reply: HelloReply
    arrived: int
    checksum: int
    def __init__(self, reply: _Optional[_Union[HelloReply, _Mapping]] = ..., arrived: _Optional[int] = ..., checksum: _Optional[int] = ...) -> None: ...

class RaftMessage(_message.Message):
    __slots__ = ("term", "request_vote", "request_vote_reply", "append_entries", "append_entries_reply", "heartbeat", "heartbeat_reply", "timeout_now", "resign", "read_index_request", "read_index_reply")
    TERM_FIELD_NUMBER: _ClassVar[int]
    REQUEST_VOTE_FIELD_NUMBER: _ClassVar[int]
    REQUEST_VOTE_REPLY_FIELD_NUMBER: _ClassVar[int]
    APPEND_ENTRIES_FIELD_NUMBER: _ClassVar[int]
    APPEND_ENTRIES_REPLY_FIELD_NUMBER: _ClassVar[int]
    HEARTBEAT_FIELD_NUMBER: _ClassVar[int]
    HEARTBEAT_REPLY_FIELD_NUMBER: _ClassVar[int]
    TIMEOUT_NOW_FIELD_NUMBER: _ClassVar[int]
    RESIGN_FIELD_NUMBER: _ClassVar[int]
    READ_INDEX_REQUEST_FIELD_NUMBER: _ClassVar[int]
    READ_INDEX_REPLY_FIELD_NUMBER: _ClassVar[int]
    term: int
    request_vote: RequestVote
    request_vote_reply: RequestVoteReply
    append_entries: AppendEntries
    append_entries_reply: AppendEntriesReply
    heartbeat: RaftHeartbeat
    heartbeat_reply: RaftHeartbeatReply
    timeout_now: TimeoutNow
    resign: Resign
    read_index_request: ReadIndexRequest
    read_index_reply: ReadIndexReply
    def __init__(self, term: _Optional[int] = ..., request_vote: _Optional[_Union[RequestVote, _Mapping]] = ..., request_vote_reply: _Optional[_Union[RequestVoteReply, _Mapping]] = ..., append_entries: _Optional[_Union[AppendEntries, _Mapping]] = ..., append_entries_reply: _Optional[_Union[AppendEntriesReply, _Mapping]] = ..., heartbeat: _Optional[_Union[RaftHeartbeat, _Mapping]] = ..., heartbeat_reply: _Optional[_Union[RaftHeartbeatReply, _Mapping]] = ..., timeout_now: _Optional[_Union[TimeoutNow, _Mapping]] = ..., resign: _Optional[_Union[Resign, _Mapping]] = ..., read_index_request: _Optional[_Union[ReadIndexRequest, _Mapping]] = ..., read_index_reply: _Optional[_Union[ReadIndexReply, _Mapping]] = ...) -> None: ...

class RequestVote(_message.Message):
    __slots__ = ("last_index", "last_term", "pre_vote", "transfer")
    LAST_INDEX_FIELD_NUMBER: _ClassVar[int]
    LAST_TERM_FIELD_NUMBER: _ClassVar[int]
    PRE_VOTE_FIELD_NUMBER: _ClassVar[int]
    TRANSFER_FIELD_NUMBER: _ClassVar[int]
    last_index: int
    last_term: int
    pre_vote: bool
    transfer: bool
    def __init__(self, last_index: _Optional[int] = ..., last_term: _Optional[int] = ..., pre_vote: bool = ..., transfer: bool = ...) -> None: ...

class RequestVoteReply(_message.Message):
    __slots__ = ("granted", "pre_vote")
    GRANTED_FIELD_NUMBER: _ClassVar[int]
    PRE_VOTE_FIELD_NUMBER: _ClassVar[int]
    granted: bool
    pre_vote: bool
    def __init__(self, granted: bool = ..., pre_vote: bool = ...) -> None: ...

class AppendEntries(_message.Message):
    __slots__ = ("prev_index", "prev_term", "last_index", "commit_index", "run_index", "run_term", "offers_reset")
    PREV_INDEX_FIELD_NUMBER: _ClassVar[int]
    PREV_TERM_FIELD_NUMBER: _ClassVar[int]
    LAST_INDEX_FIELD_NUMBER: _ClassVar[int]
    COMMIT_INDEX_FIELD_NUMBER: _ClassVar[int]
    RUN_INDEX_FIELD_NUMBER: _ClassVar[int]
    RUN_TERM_FIELD_NUMBER: _ClassVar[int]
    OFFERS_RESET_FIELD_NUMBER: _ClassVar[int]
    prev_index: int
    prev_term: int
    last_index: int
    commit_index: int
    run_index: _containers.RepeatedScalarFieldContainer[int]
    run_term: _containers.RepeatedScalarFieldContainer[int]
    offers_reset: bool
    def __init__(self, prev_index: _Optional[int] = ..., prev_term: _Optional[int] = ..., last_index: _Optional[int] = ..., commit_index: _Optional[int] = ..., run_index: _Optional[_Iterable[int]] = ..., run_term: _Optional[_Iterable[int]] = ..., offers_reset: bool = ...) -> None: ...

class AppendEntriesReply(_message.Message):
    __slots__ = ("success", "match_index", "reject_index", "hint_index", "hint_term", "is_learner", "wants_commit")
    SUCCESS_FIELD_NUMBER: _ClassVar[int]
    MATCH_INDEX_FIELD_NUMBER: _ClassVar[int]
    REJECT_INDEX_FIELD_NUMBER: _ClassVar[int]
    HINT_INDEX_FIELD_NUMBER: _ClassVar[int]
    HINT_TERM_FIELD_NUMBER: _ClassVar[int]
    IS_LEARNER_FIELD_NUMBER: _ClassVar[int]
    WANTS_COMMIT_FIELD_NUMBER: _ClassVar[int]
    success: bool
    match_index: int
    reject_index: int
    hint_index: int
    hint_term: int
    is_learner: bool
    wants_commit: bool
    def __init__(self, success: bool = ..., match_index: _Optional[int] = ..., reject_index: _Optional[int] = ..., hint_index: _Optional[int] = ..., hint_term: _Optional[int] = ..., is_learner: bool = ..., wants_commit: bool = ...) -> None: ...

class RaftHeartbeat(_message.Message):
    __slots__ = ("commit_index", "context", "log_time_ms")
    COMMIT_INDEX_FIELD_NUMBER: _ClassVar[int]
    CONTEXT_FIELD_NUMBER: _ClassVar[int]
    LOG_TIME_MS_FIELD_NUMBER: _ClassVar[int]
    commit_index: int
    context: int
    log_time_ms: int
    def __init__(self, commit_index: _Optional[int] = ..., context: _Optional[int] = ..., log_time_ms: _Optional[int] = ...) -> None: ...

class RaftHeartbeatReply(_message.Message):
    __slots__ = ("context", "stable_index", "commit_index", "is_learner", "wants_commit")
    CONTEXT_FIELD_NUMBER: _ClassVar[int]
    STABLE_INDEX_FIELD_NUMBER: _ClassVar[int]
    COMMIT_INDEX_FIELD_NUMBER: _ClassVar[int]
    IS_LEARNER_FIELD_NUMBER: _ClassVar[int]
    WANTS_COMMIT_FIELD_NUMBER: _ClassVar[int]
    context: int
    stable_index: int
    commit_index: int
    is_learner: bool
    wants_commit: bool
    def __init__(self, context: _Optional[int] = ..., stable_index: _Optional[int] = ..., commit_index: _Optional[int] = ..., is_learner: bool = ..., wants_commit: bool = ...) -> None: ...

class TimeoutNow(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class Resign(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ReadIndexRequest(_message.Message):
    __slots__ = ("context",)
    CONTEXT_FIELD_NUMBER: _ClassVar[int]
    context: int
    def __init__(self, context: _Optional[int] = ...) -> None: ...

class ReadIndexReply(_message.Message):
    __slots__ = ("context", "index")
    CONTEXT_FIELD_NUMBER: _ClassVar[int]
    INDEX_FIELD_NUMBER: _ClassVar[int]
    context: int
    index: int
    def __init__(self, context: _Optional[int] = ..., index: _Optional[int] = ...) -> None: ...

class RefetchRequest(_message.Message):
    __slots__ = ("version", "cluster_id", "group", "group_id", "node_id", "to_node_id", "segment_size", "first_index", "max_bytes", "repair")
    VERSION_FIELD_NUMBER: _ClassVar[int]
    CLUSTER_ID_FIELD_NUMBER: _ClassVar[int]
    GROUP_FIELD_NUMBER: _ClassVar[int]
    GROUP_ID_FIELD_NUMBER: _ClassVar[int]
    NODE_ID_FIELD_NUMBER: _ClassVar[int]
    TO_NODE_ID_FIELD_NUMBER: _ClassVar[int]
    SEGMENT_SIZE_FIELD_NUMBER: _ClassVar[int]
    FIRST_INDEX_FIELD_NUMBER: _ClassVar[int]
    MAX_BYTES_FIELD_NUMBER: _ClassVar[int]
    REPAIR_FIELD_NUMBER: _ClassVar[int]
    version: int
    cluster_id: str
    group: str
    group_id: int
    node_id: str
    to_node_id: str
    segment_size: int
    first_index: int
    max_bytes: int
    repair: RepairProgress
    def __init__(self, version: _Optional[int] = ..., cluster_id: _Optional[str] = ..., group: _Optional[str] = ..., group_id: _Optional[int] = ..., node_id: _Optional[str] = ..., to_node_id: _Optional[str] = ..., segment_size: _Optional[int] = ..., first_index: _Optional[int] = ..., max_bytes: _Optional[int] = ..., repair: _Optional[_Union[RepairProgress, _Mapping]] = ...) -> None: ...

class RepairProgress(_message.Message):
    __slots__ = ("from_offset", "to_offset", "repaired_bytes", "waiting_for")
    FROM_OFFSET_FIELD_NUMBER: _ClassVar[int]
    TO_OFFSET_FIELD_NUMBER: _ClassVar[int]
    REPAIRED_BYTES_FIELD_NUMBER: _ClassVar[int]
    WAITING_FOR_FIELD_NUMBER: _ClassVar[int]
    from_offset: int
    to_offset: int
    repaired_bytes: int
    waiting_for: str
    def __init__(self, from_offset: _Optional[int] = ..., to_offset: _Optional[int] = ..., repaired_bytes: _Optional[int] = ..., waiting_for: _Optional[str] = ...) -> None: ...

class RefetchReply(_message.Message):
    __slots__ = ("version", "refusal", "first_index", "commit_index", "leader_id", "entries", "entries_crc")
    VERSION_FIELD_NUMBER: _ClassVar[int]
    REFUSAL_FIELD_NUMBER: _ClassVar[int]
    FIRST_INDEX_FIELD_NUMBER: _ClassVar[int]
    COMMIT_INDEX_FIELD_NUMBER: _ClassVar[int]
    LEADER_ID_FIELD_NUMBER: _ClassVar[int]
    ENTRIES_FIELD_NUMBER: _ClassVar[int]
    ENTRIES_CRC_FIELD_NUMBER: _ClassVar[int]
    version: int
    refusal: str
    first_index: int
    commit_index: int
    leader_id: str
    entries: bytes
    entries_crc: int
    def __init__(self, version: _Optional[int] = ..., refusal: _Optional[str] = ..., first_index: _Optional[int] = ..., commit_index: _Optional[int] = ..., leader_id: _Optional[str] = ..., entries: _Optional[bytes] = ..., entries_crc: _Optional[int] = ...) -> None: ...
