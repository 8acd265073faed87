from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class RefusalCode(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    REFUSAL_CODE_UNSPECIFIED: _ClassVar[RefusalCode]
    NOT_LEADER: _ClassVar[RefusalCode]
    NO_QUORUM: _ClassVar[RefusalCode]
    OUTCOME_UNKNOWN: _ClassVar[RefusalCode]
    TOO_MANY_REQUESTS: _ClassVar[RefusalCode]
    DISK_FULL: _ClassVar[RefusalCode]
    TOPIC_NOT_FOUND: _ClassVar[RefusalCode]
    GROUP_NOT_FOUND: _ClassVar[RefusalCode]
    QUEUE_NOT_FOUND: _ClassVar[RefusalCode]
    ALREADY_EXISTS: _ClassVar[RefusalCode]
    INVALID_ARGUMENT: _ClassVar[RefusalCode]
    MESSAGE_TOO_LARGE: _ClassVar[RefusalCode]
    CORRUPT_SECTION: _ClassVar[RefusalCode]
    SEQUENCE_GAP: _ClassVar[RefusalCode]
    STALE_PRODUCER_EPOCH: _ClassVar[RefusalCode]
    OFFSET_OUT_OF_RANGE: _ClassVar[RefusalCode]
    STALE_ROUTE: _ClassVar[RefusalCode]
    SHUTTING_DOWN: _ClassVar[RefusalCode]
    NOT_SUPPORTED: _ClassVar[RefusalCode]
    INTERNAL: _ClassVar[RefusalCode]
    CATCHING_UP: _ClassVar[RefusalCode]
    FENCED: _ClassVar[RefusalCode]
    GROUP_DRAINING: _ClassVar[RefusalCode]
    OTHER_GROUP: _ClassVar[RefusalCode]
    SLAVE_TIMEOUT: _ClassVar[RefusalCode]
    SLAVES_AWAY: _ClassVar[RefusalCode]

class QueuePermission(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    QUEUE_PERMISSION_UNSPECIFIED: _ClassVar[QueuePermission]
    NONE: _ClassVar[QueuePermission]
    READ: _ClassVar[QueuePermission]
    WRITE: _ClassVar[QueuePermission]
    READ_WRITE: _ClassVar[QueuePermission]

class TopicMessageType(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    TOPIC_MESSAGE_TYPE_UNSPECIFIED: _ClassVar[TopicMessageType]
    NORMAL: _ClassVar[TopicMessageType]
    FIFO: _ClassVar[TopicMessageType]
    DELAY: _ClassVar[TopicMessageType]
    TRANSACTION: _ClassVar[TopicMessageType]
    MIXED: _ClassVar[TopicMessageType]

class BrokerGroupMode(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    MODE_ACTIVE: _ClassVar[BrokerGroupMode]
    MODE_DRAINING: _ClassVar[BrokerGroupMode]
    MODE_REMOVED: _ClassVar[BrokerGroupMode]
REFUSAL_CODE_UNSPECIFIED: RefusalCode
NOT_LEADER: RefusalCode
NO_QUORUM: RefusalCode
OUTCOME_UNKNOWN: RefusalCode
TOO_MANY_REQUESTS: RefusalCode
DISK_FULL: RefusalCode
TOPIC_NOT_FOUND: RefusalCode
GROUP_NOT_FOUND: RefusalCode
QUEUE_NOT_FOUND: RefusalCode
ALREADY_EXISTS: RefusalCode
INVALID_ARGUMENT: RefusalCode
MESSAGE_TOO_LARGE: RefusalCode
CORRUPT_SECTION: RefusalCode
SEQUENCE_GAP: RefusalCode
STALE_PRODUCER_EPOCH: RefusalCode
OFFSET_OUT_OF_RANGE: RefusalCode
STALE_ROUTE: RefusalCode
SHUTTING_DOWN: RefusalCode
NOT_SUPPORTED: RefusalCode
INTERNAL: RefusalCode
CATCHING_UP: RefusalCode
FENCED: RefusalCode
GROUP_DRAINING: RefusalCode
OTHER_GROUP: RefusalCode
SLAVE_TIMEOUT: RefusalCode
SLAVES_AWAY: RefusalCode
QUEUE_PERMISSION_UNSPECIFIED: QueuePermission
NONE: QueuePermission
READ: QueuePermission
WRITE: QueuePermission
READ_WRITE: QueuePermission
TOPIC_MESSAGE_TYPE_UNSPECIFIED: TopicMessageType
NORMAL: TopicMessageType
FIFO: TopicMessageType
DELAY: TopicMessageType
TRANSACTION: TopicMessageType
MIXED: TopicMessageType
MODE_ACTIVE: BrokerGroupMode
MODE_DRAINING: BrokerGroupMode
MODE_REMOVED: BrokerGroupMode

class Refusal(_message.Message):
    __slots__ = ("code", "message", "retryable", "retry_after_ms", "leader_id", "leader_address")
    CODE_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    RETRYABLE_FIELD_NUMBER: _ClassVar[int]
    RETRY_AFTER_MS_FIELD_NUMBER: _ClassVar[int]
    LEADER_ID_FIELD_NUMBER: _ClassVar[int]
    LEADER_ADDRESS_FIELD_NUMBER: _ClassVar[int]
    code: RefusalCode
    message: str
    retryable: bool
    retry_after_ms: int
    leader_id: str
    leader_address: str
    def __init__(self, code: _Optional[_Union[RefusalCode, str]] = ..., message: _Optional[str] = ..., retryable: bool = ..., retry_after_ms: _Optional[int] = ..., leader_id: _Optional[str] = ..., leader_address: _Optional[str] = ...) -> None: ...

class ListenerAddresses(_message.Message):
    __slots__ = ("name", "messaging_address", "log_address")
    NAME_FIELD_NUMBER: _ClassVar[int]
    MESSAGING_ADDRESS_FIELD_NUMBER: _ClassVar[int]
    LOG_ADDRESS_FIELD_NUMBER: _ClassVar[int]
    name: str
    messaging_address: str
    log_address: str
    def __init__(self, name: _Optional[str] = ..., messaging_address: _Optional[str] = ..., log_address: _Optional[str] = ...) -> None: ...

class NodeInfo(_message.Message):
    __slots__ = ("node_id", "listeners", "zone", "alive", "voter")
    NODE_ID_FIELD_NUMBER: _ClassVar[int]
    LISTENERS_FIELD_NUMBER: _ClassVar[int]
    ZONE_FIELD_NUMBER: _ClassVar[int]
    ALIVE_FIELD_NUMBER: _ClassVar[int]
    VOTER_FIELD_NUMBER: _ClassVar[int]
    node_id: str
    listeners: _containers.RepeatedCompositeFieldContainer[ListenerAddresses]
    zone: str
    alive: bool
    voter: bool
    def __init__(self, node_id: _Optional[str] = ..., listeners: _Optional[_Iterable[_Union[ListenerAddresses, _Mapping]]] = ..., zone: _Optional[str] = ..., alive: bool = ..., voter: bool = ...) -> None: ...

class TopicInfo(_message.Message):
    __slots__ = ("name", "topic_id", "queue_count", "permission", "message_type", "version", "retention_ms", "keep_unread")
    NAME_FIELD_NUMBER: _ClassVar[int]
    TOPIC_ID_FIELD_NUMBER: _ClassVar[int]
    QUEUE_COUNT_FIELD_NUMBER: _ClassVar[int]
    PERMISSION_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_TYPE_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    RETENTION_MS_FIELD_NUMBER: _ClassVar[int]
    KEEP_UNREAD_FIELD_NUMBER: _ClassVar[int]
    name: str
    topic_id: int
    queue_count: int
    permission: QueuePermission
    message_type: TopicMessageType
    version: int
    retention_ms: int
    keep_unread: bool
    def __init__(self, name: _Optional[str] = ..., topic_id: _Optional[int] = ..., queue_count: _Optional[int] = ..., permission: _Optional[_Union[QueuePermission, str]] = ..., message_type: _Optional[_Union[TopicMessageType, str]] = ..., version: _Optional[int] = ..., retention_ms: _Optional[int] = ..., keep_unread: bool = ...) -> None: ...

class GroupRoute(_message.Message):
    __slots__ = ("cluster", "group", "term", "leader_id", "nodes", "topics", "version", "writable", "max_message_bytes", "max_request_bytes", "mode", "group_id", "former_group_ids", "replication", "master_id", "generation")
    CLUSTER_FIELD_NUMBER: _ClassVar[int]
    GROUP_FIELD_NUMBER: _ClassVar[int]
    TERM_FIELD_NUMBER: _ClassVar[int]
    LEADER_ID_FIELD_NUMBER: _ClassVar[int]
    NODES_FIELD_NUMBER: _ClassVar[int]
    TOPICS_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    WRITABLE_FIELD_NUMBER: _ClassVar[int]
    MAX_MESSAGE_BYTES_FIELD_NUMBER: _ClassVar[int]
    MAX_REQUEST_BYTES_FIELD_NUMBER: _ClassVar[int]
    MODE_FIELD_NUMBER: _ClassVar[int]
    GROUP_ID_FIELD_NUMBER: _ClassVar[int]
    FORMER_GROUP_IDS_FIELD_NUMBER: _ClassVar[int]
    REPLICATION_FIELD_NUMBER: _ClassVar[int]
    MASTER_ID_FIELD_NUMBER: _ClassVar[int]
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    cluster: str
    group: str
    term: int
    leader_id: str
    nodes: _containers.RepeatedCompositeFieldContainer[NodeInfo]
    topics: _containers.RepeatedCompositeFieldContainer[TopicInfo]
    version: int
    writable: bool
    max_message_bytes: int
    max_request_bytes: int
    mode: BrokerGroupMode
    group_id: int
    former_group_ids: _containers.RepeatedScalarFieldContainer[int]
    replication: str
    master_id: str
    generation: int
    def __init__(self, cluster: _Optional[str] = ..., group: _Optional[str] = ..., term: _Optional[int] = ..., leader_id: _Optional[str] = ..., nodes: _Optional[_Iterable[_Union[NodeInfo, _Mapping]]] = ..., topics: _Optional[_Iterable[_Union[TopicInfo, _Mapping]]] = ..., version: _Optional[int] = ..., writable: bool = ..., max_message_bytes: _Optional[int] = ..., max_request_bytes: _Optional[int] = ..., mode: _Optional[_Union[BrokerGroupMode, str]] = ..., group_id: _Optional[int] = ..., former_group_ids: _Optional[_Iterable[int]] = ..., replication: _Optional[str] = ..., master_id: _Optional[str] = ..., generation: _Optional[int] = ...) -> None: ...
