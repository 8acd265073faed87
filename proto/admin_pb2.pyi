from ledgermq.proto import route_pb2 as _route_pb2
from ledgermq.proto import log_pb2 as _log_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class ParkReason(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    PARK_REASON_UNSPECIFIED: _ClassVar[ParkReason]
    PARK_ATTEMPTS: _ClassVar[ParkReason]
    PARK_FORWARDED: _ClassVar[ParkReason]
PARK_REASON_UNSPECIFIED: ParkReason
PARK_ATTEMPTS: ParkReason
PARK_FORWARDED: ParkReason

class CreateTopicRequest(_message.Message):
    __slots__ = ("topic", "queue_count", "message_type", "if_not_exists", "perhaps_done", "retention_ms", "keep_unread")
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    QUEUE_COUNT_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_TYPE_FIELD_NUMBER: _ClassVar[int]
    IF_NOT_EXISTS_FIELD_NUMBER: _ClassVar[int]
    PERHAPS_DONE_FIELD_NUMBER: _ClassVar[int]
    RETENTION_MS_FIELD_NUMBER: _ClassVar[int]
    KEEP_UNREAD_FIELD_NUMBER: _ClassVar[int]
    topic: str
    queue_count: int
    message_type: _route_pb2.TopicMessageType
    if_not_exists: bool
    perhaps_done: bool
    retention_ms: int
    keep_unread: bool
    def __init__(self, topic: _Optional[str] = ..., queue_count: _Optional[int] = ..., message_type: _Optional[_Union[_route_pb2.TopicMessageType, str]] = ..., if_not_exists: bool = ..., perhaps_done: bool = ..., retention_ms: _Optional[int] = ..., keep_unread: bool = ...) -> None: ...

class CreateTopicResponse(_message.Message):
    __slots__ = ("refusal", "topic")
    REFUSAL_FIELD_NUMBER: _ClassVar[int]
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    refusal: _route_pb2.Refusal
    topic: _route_pb2.TopicInfo
    def __init__(self, refusal: _Optional[_Union[_route_pb2.Refusal, _Mapping]] = ..., topic: _Optional[_Union[_route_pb2.TopicInfo, _Mapping]] = ...) -> None: ...

class UpdateTopicRequest(_message.Message):
    __slots__ = ("topic", "retention_ms", "keep_unread")
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    RETENTION_MS_FIELD_NUMBER: _ClassVar[int]
    KEEP_UNREAD_FIELD_NUMBER: _ClassVar[int]
    topic: str
    retention_ms: int
    keep_unread: bool
    def __init__(self, topic: _Optional[str] = ..., retention_ms: _Optional[int] = ..., keep_unread: bool = ...) -> None: ...

class UpdateTopicResponse(_message.Message):
    __slots__ = ("refusal", "topic")
    REFUSAL_FIELD_NUMBER: _ClassVar[int]
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    refusal: _route_pb2.Refusal
    topic: _route_pb2.TopicInfo
    def __init__(self, refusal: _Optional[_Union[_route_pb2.Refusal, _Mapping]] = ..., topic: _Optional[_Union[_route_pb2.TopicInfo, _Mapping]] = ...) -> None: ...

class DeleteTopicRequest(_message.Message):
    __slots__ = ("topic", "perhaps_done")
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    PERHAPS_DONE_FIELD_NUMBER: _ClassVar[int]
    topic: str
    perhaps_done: bool
    def __init__(self, topic: _Optional[str] = ..., perhaps_done: bool = ...) -> None: ...

class DeleteTopicResponse(_message.Message):
    __slots__ = ("refusal",)
    REFUSAL_FIELD_NUMBER: _ClassVar[int]
    refusal: _route_pb2.Refusal
    def __init__(self, refusal: _Optional[_Union[_route_pb2.Refusal, _Mapping]] = ...) -> None: ...

class ListTopicsRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ListTopicsResponse(_message.Message):
    __slots__ = ("refusal", "topics")
    REFUSAL_FIELD_NUMBER: _ClassVar[int]
    TOPICS_FIELD_NUMBER: _ClassVar[int]
    refusal: _route_pb2.Refusal
    topics: _containers.RepeatedCompositeFieldContainer[_route_pb2.TopicInfo]
    def __init__(self, refusal: _Optional[_Union[_route_pb2.Refusal, _Mapping]] = ..., topics: _Optional[_Iterable[_Union[_route_pb2.TopicInfo, _Mapping]]] = ...) -> None: ...

class DescribeTopicRequest(_message.Message):
    __slots__ = ("topic",)
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    topic: str
    def __init__(self, topic: _Optional[str] = ...) -> None: ...

class DescribeTopicResponse(_message.Message):
    __slots__ = ("refusal", "topic", "queues", "consumers", "holds")
    REFUSAL_FIELD_NUMBER: _ClassVar[int]
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    QUEUES_FIELD_NUMBER: _ClassVar[int]
    CONSUMERS_FIELD_NUMBER: _ClassVar[int]
    HOLDS_FIELD_NUMBER: _ClassVar[int]
    refusal: _route_pb2.Refusal
    topic: _route_pb2.TopicInfo
    queues: _containers.RepeatedCompositeFieldContainer[_log_pb2.QueueOffset]
    consumers: _containers.RepeatedCompositeFieldContainer[TopicProgress]
    holds: _containers.RepeatedCompositeFieldContainer[HoldInfo]
    def __init__(self, refusal: _Optional[_Union[_route_pb2.Refusal, _Mapping]] = ..., topic: _Optional[_Union[_route_pb2.TopicInfo, _Mapping]] = ..., queues: _Optional[_Iterable[_Union[_log_pb2.QueueOffset, _Mapping]]] = ..., consumers: _Optional[_Iterable[_Union[TopicProgress, _Mapping]]] = ..., holds: _Optional[_Iterable[_Union[HoldInfo, _Mapping]]] = ...) -> None: ...

class HoldInfo(_message.Message):
    __slots__ = ("name", "queue_id", "offset", "advanced_ms", "lost", "expired")
    NAME_FIELD_NUMBER: _ClassVar[int]
    QUEUE_ID_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    ADVANCED_MS_FIELD_NUMBER: _ClassVar[int]
    LOST_FIELD_NUMBER: _ClassVar[int]
    EXPIRED_FIELD_NUMBER: _ClassVar[int]
    name: str
    queue_id: int
    offset: int
    advanced_ms: int
    lost: int
    expired: bool
    def __init__(self, name: _Optional[str] = ..., queue_id: _Optional[int] = ..., offset: _Optional[int] = ..., advanced_ms: _Optional[int] = ..., lost: _Optional[int] = ..., expired: bool = ...) -> None: ...

class SetHoldRequest(_message.Message):
    __slots__ = ("topic", "name", "queues")
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    QUEUES_FIELD_NUMBER: _ClassVar[int]
    topic: str
    name: str
    queues: _containers.RepeatedCompositeFieldContainer[HeldOffset]
    def __init__(self, topic: _Optional[str] = ..., name: _Optional[str] = ..., queues: _Optional[_Iterable[_Union[HeldOffset, _Mapping]]] = ...) -> None: ...

class HeldOffset(_message.Message):
    __slots__ = ("queue_id", "offset")
    QUEUE_ID_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    queue_id: int
    offset: int
    def __init__(self, queue_id: _Optional[int] = ..., offset: _Optional[int] = ...) -> None: ...

class SetHoldResponse(_message.Message):
    __slots__ = ("refusal", "queues")
    REFUSAL_FIELD_NUMBER: _ClassVar[int]
    QUEUES_FIELD_NUMBER: _ClassVar[int]
    refusal: _route_pb2.Refusal
    queues: _containers.RepeatedCompositeFieldContainer[HoldInfo]
    def __init__(self, refusal: _Optional[_Union[_route_pb2.Refusal, _Mapping]] = ..., queues: _Optional[_Iterable[_Union[HoldInfo, _Mapping]]] = ...) -> None: ...

class ReleaseHoldRequest(_message.Message):
    __slots__ = ("topic", "name")
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    topic: str
    name: str
    def __init__(self, topic: _Optional[str] = ..., name: _Optional[str] = ...) -> None: ...

class ReleaseHoldResponse(_message.Message):
    __slots__ = ("refusal", "released")
    REFUSAL_FIELD_NUMBER: _ClassVar[int]
    RELEASED_FIELD_NUMBER: _ClassVar[int]
    refusal: _route_pb2.Refusal
    released: bool
    def __init__(self, refusal: _Optional[_Union[_route_pb2.Refusal, _Mapping]] = ..., released: bool = ...) -> None: ...

class ConsumerGroupInfo(_message.Message):
    __slots__ = ("name", "start_position", "max_attempts", "fifo", "connected_clients")
    NAME_FIELD_NUMBER: _ClassVar[int]
    START_POSITION_FIELD_NUMBER: _ClassVar[int]
    MAX_ATTEMPTS_FIELD_NUMBER: _ClassVar[int]
    FIFO_FIELD_NUMBER: _ClassVar[int]
    CONNECTED_CLIENTS_FIELD_NUMBER: _ClassVar[int]
    name: str
    start_position: str
    max_attempts: int
    fifo: bool
    connected_clients: int
    def __init__(self, name: _Optional[str] = ..., start_position: _Optional[str] = ..., max_attempts: _Optional[int] = ..., fifo: bool = ..., connected_clients: _Optional[int] = ...) -> None: ...

class CreateGroupRequest(_message.Message):
    __slots__ = ("group", "if_not_exists", "perhaps_done")
    GROUP_FIELD_NUMBER: _ClassVar[int]
    IF_NOT_EXISTS_FIELD_NUMBER: _ClassVar[int]
    PERHAPS_DONE_FIELD_NUMBER: _ClassVar[int]
    group: ConsumerGroupInfo
    if_not_exists: bool
    perhaps_done: bool
    def __init__(self, group: _Optional[_Union[ConsumerGroupInfo, _Mapping]] = ..., if_not_exists: bool = ..., perhaps_done: bool = ...) -> None: ...

class CreateGroupResponse(_message.Message):
    __slots__ = ("refusal",)
    REFUSAL_FIELD_NUMBER: _ClassVar[int]
    refusal: _route_pb2.Refusal
    def __init__(self, refusal: _Optional[_Union[_route_pb2.Refusal, _Mapping]] = ...) -> None: ...

class DeleteGroupRequest(_message.Message):
    __slots__ = ("name", "perhaps_done")
    NAME_FIELD_NUMBER: _ClassVar[int]
    PERHAPS_DONE_FIELD_NUMBER: _ClassVar[int]
    name: str
    perhaps_done: bool
    def __init__(self, name: _Optional[str] = ..., perhaps_done: bool = ...) -> None: ...

class DeleteGroupResponse(_message.Message):
    __slots__ = ("refusal",)
    REFUSAL_FIELD_NUMBER: _ClassVar[int]
    refusal: _route_pb2.Refusal
    def __init__(self, refusal: _Optional[_Union[_route_pb2.Refusal, _Mapping]] = ...) -> None: ...

class ListConsumerGroupsRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ListConsumerGroupsResponse(_message.Message):
    __slots__ = ("refusal", "groups")
    REFUSAL_FIELD_NUMBER: _ClassVar[int]
    GROUPS_FIELD_NUMBER: _ClassVar[int]
    refusal: _route_pb2.Refusal
    groups: _containers.RepeatedCompositeFieldContainer[ConsumerGroupInfo]
    def __init__(self, refusal: _Optional[_Union[_route_pb2.Refusal, _Mapping]] = ..., groups: _Optional[_Iterable[_Union[ConsumerGroupInfo, _Mapping]]] = ...) -> None: ...

class DescribeGroupRequest(_message.Message):
    __slots__ = ("name", "topic")
    NAME_FIELD_NUMBER: _ClassVar[int]
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    name: str
    topic: str
    def __init__(self, name: _Optional[str] = ..., topic: _Optional[str] = ...) -> None: ...

class GroupQueueProgress(_message.Message):
    __slots__ = ("topic", "queue_id", "committed_offset", "end_offset", "leased", "begin_offset", "lost", "owner", "epoch", "parked")
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    QUEUE_ID_FIELD_NUMBER: _ClassVar[int]
    COMMITTED_OFFSET_FIELD_NUMBER: _ClassVar[int]
    END_OFFSET_FIELD_NUMBER: _ClassVar[int]
    LEASED_FIELD_NUMBER: _ClassVar[int]
    BEGIN_OFFSET_FIELD_NUMBER: _ClassVar[int]
    LOST_FIELD_NUMBER: _ClassVar[int]
    OWNER_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    PARKED_FIELD_NUMBER: _ClassVar[int]
    topic: str
    queue_id: int
    committed_offset: int
    end_offset: int
    leased: int
    begin_offset: int
    lost: int
    owner: str
    epoch: int
    parked: int
    def __init__(self, topic: _Optional[str] = ..., queue_id: _Optional[int] = ..., committed_offset: _Optional[int] = ..., end_offset: _Optional[int] = ..., leased: _Optional[int] = ..., begin_offset: _Optional[int] = ..., lost: _Optional[int] = ..., owner: _Optional[str] = ..., epoch: _Optional[int] = ..., parked: _Optional[int] = ...) -> None: ...

class GroupMember(_message.Message):
    __slots__ = ("member_id", "topics", "filter", "allocation", "zone", "queues", "joined_ms")
    MEMBER_ID_FIELD_NUMBER: _ClassVar[int]
    TOPICS_FIELD_NUMBER: _ClassVar[int]
    FILTER_FIELD_NUMBER: _ClassVar[int]
    ALLOCATION_FIELD_NUMBER: _ClassVar[int]
    ZONE_FIELD_NUMBER: _ClassVar[int]
    QUEUES_FIELD_NUMBER: _ClassVar[int]
    JOINED_MS_FIELD_NUMBER: _ClassVar[int]
    member_id: str
    topics: _containers.RepeatedScalarFieldContainer[str]
    filter: str
    allocation: str
    zone: str
    queues: int
    joined_ms: int
    def __init__(self, member_id: _Optional[str] = ..., topics: _Optional[_Iterable[str]] = ..., filter: _Optional[str] = ..., allocation: _Optional[str] = ..., zone: _Optional[str] = ..., queues: _Optional[int] = ..., joined_ms: _Optional[int] = ...) -> None: ...

class DescribeGroupResponse(_message.Message):
    __slots__ = ("refusal", "group", "queues", "members")
    REFUSAL_FIELD_NUMBER: _ClassVar[int]
    GROUP_FIELD_NUMBER: _ClassVar[int]
    QUEUES_FIELD_NUMBER: _ClassVar[int]
    MEMBERS_FIELD_NUMBER: _ClassVar[int]
    refusal: _route_pb2.Refusal
    group: ConsumerGroupInfo
    queues: _containers.RepeatedCompositeFieldContainer[GroupQueueProgress]
    members: _containers.RepeatedCompositeFieldContainer[GroupMember]
    def __init__(self, refusal: _Optional[_Union[_route_pb2.Refusal, _Mapping]] = ..., group: _Optional[_Union[ConsumerGroupInfo, _Mapping]] = ..., queues: _Optional[_Iterable[_Union[GroupQueueProgress, _Mapping]]] = ..., members: _Optional[_Iterable[_Union[GroupMember, _Mapping]]] = ...) -> None: ...

class GetDeliveriesRequest(_message.Message):
    __slots__ = ("group", "topic", "max_parked")
    GROUP_FIELD_NUMBER: _ClassVar[int]
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    MAX_PARKED_FIELD_NUMBER: _ClassVar[int]
    group: str
    topic: str
    max_parked: int
    def __init__(self, group: _Optional[str] = ..., topic: _Optional[str] = ..., max_parked: _Optional[int] = ...) -> None: ...

class ParkedMessage(_message.Message):
    __slots__ = ("topic", "queue_id", "queue_offset", "message_id", "attempts", "parked_ms", "reason")
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    QUEUE_ID_FIELD_NUMBER: _ClassVar[int]
    QUEUE_OFFSET_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_ID_FIELD_NUMBER: _ClassVar[int]
    ATTEMPTS_FIELD_NUMBER: _ClassVar[int]
    PARKED_MS_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    topic: str
    queue_id: int
    queue_offset: int
    message_id: str
    attempts: int
    parked_ms: int
    reason: ParkReason
    def __init__(self, topic: _Optional[str] = ..., queue_id: _Optional[int] = ..., queue_offset: _Optional[int] = ..., message_id: _Optional[str] = ..., attempts: _Optional[int] = ..., parked_ms: _Optional[int] = ..., reason: _Optional[_Union[ParkReason, str]] = ...) -> None: ...

class LeaseHolder(_message.Message):
    __slots__ = ("topic", "client_id", "leases", "oldest_ms", "by_session", "ended")
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    CLIENT_ID_FIELD_NUMBER: _ClassVar[int]
    LEASES_FIELD_NUMBER: _ClassVar[int]
    OLDEST_MS_FIELD_NUMBER: _ClassVar[int]
    BY_SESSION_FIELD_NUMBER: _ClassVar[int]
    ENDED_FIELD_NUMBER: _ClassVar[int]
    topic: str
    client_id: str
    leases: int
    oldest_ms: int
    by_session: bool
    ended: bool
    def __init__(self, topic: _Optional[str] = ..., client_id: _Optional[str] = ..., leases: _Optional[int] = ..., oldest_ms: _Optional[int] = ..., by_session: bool = ..., ended: bool = ...) -> None: ...

class GetDeliveriesResponse(_message.Message):
    __slots__ = ("refusal", "parked", "parked_count", "holders", "parked_limit")
    REFUSAL_FIELD_NUMBER: _ClassVar[int]
    PARKED_FIELD_NUMBER: _ClassVar[int]
    PARKED_COUNT_FIELD_NUMBER: _ClassVar[int]
    HOLDERS_FIELD_NUMBER: _ClassVar[int]
    PARKED_LIMIT_FIELD_NUMBER: _ClassVar[int]
    refusal: _route_pb2.Refusal
    parked: _containers.RepeatedCompositeFieldContainer[ParkedMessage]
    parked_count: int
    holders: _containers.RepeatedCompositeFieldContainer[LeaseHolder]
    parked_limit: int
    def __init__(self, refusal: _Optional[_Union[_route_pb2.Refusal, _Mapping]] = ..., parked: _Optional[_Iterable[_Union[ParkedMessage, _Mapping]]] = ..., parked_count: _Optional[int] = ..., holders: _Optional[_Iterable[_Union[LeaseHolder, _Mapping]]] = ..., parked_limit: _Optional[int] = ...) -> None: ...

class ReleaseParkedRequest(_message.Message):
    __slots__ = ("group", "topic", "places")
    GROUP_FIELD_NUMBER: _ClassVar[int]
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    PLACES_FIELD_NUMBER: _ClassVar[int]
    group: str
    topic: str
    places: _containers.RepeatedCompositeFieldContainer[ParkedPlace]
    def __init__(self, group: _Optional[str] = ..., topic: _Optional[str] = ..., places: _Optional[_Iterable[_Union[ParkedPlace, _Mapping]]] = ...) -> None: ...

class ParkedPlace(_message.Message):
    __slots__ = ("queue_id", "queue_offset")
    QUEUE_ID_FIELD_NUMBER: _ClassVar[int]
    QUEUE_OFFSET_FIELD_NUMBER: _ClassVar[int]
    queue_id: int
    queue_offset: int
    def __init__(self, queue_id: _Optional[int] = ..., queue_offset: _Optional[int] = ...) -> None: ...

class ReleaseParkedResponse(_message.Message):
    __slots__ = ("refusal", "released")
    REFUSAL_FIELD_NUMBER: _ClassVar[int]
    RELEASED_FIELD_NUMBER: _ClassVar[int]
    refusal: _route_pb2.Refusal
    released: int
    def __init__(self, refusal: _Optional[_Union[_route_pb2.Refusal, _Mapping]] = ..., released: _Optional[int] = ...) -> None: ...

class ResetOffsetsRequest(_message.Message):
    __slots__ = ("group", "topic", "earliest", "latest", "timestamp_ms")
    GROUP_FIELD_NUMBER: _ClassVar[int]
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    EARLIEST_FIELD_NUMBER: _ClassVar[int]
    LATEST_FIELD_NUMBER: _ClassVar[int]
    TIMESTAMP_MS_FIELD_NUMBER: _ClassVar[int]
    group: str
    topic: str
    earliest: bool
    latest: bool
    timestamp_ms: int
    def __init__(self, group: _Optional[str] = ..., topic: _Optional[str] = ..., earliest: bool = ..., latest: bool = ..., timestamp_ms: _Optional[int] = ...) -> None: ...

class GetStatusRequest(_message.Message):
    __slots__ = ("readers",)
    READERS_FIELD_NUMBER: _ClassVar[int]
    readers: bool
    def __init__(self, readers: bool = ...) -> None: ...

class NodeStatus(_message.Message):
    __slots__ = ("node_id", "role", "addresses", "durable_index", "commit_index", "applied_index", "behind_bytes", "fsync_p50_ms", "fsync_p99_ms", "disk_used_ratio", "last_contact_ms", "state", "log_check", "refused")
    NODE_ID_FIELD_NUMBER: _ClassVar[int]
    ROLE_FIELD_NUMBER: _ClassVar[int]
    ADDRESSES_FIELD_NUMBER: _ClassVar[int]
    DURABLE_INDEX_FIELD_NUMBER: _ClassVar[int]
    COMMIT_INDEX_FIELD_NUMBER: _ClassVar[int]
    APPLIED_INDEX_FIELD_NUMBER: _ClassVar[int]
    BEHIND_BYTES_FIELD_NUMBER: _ClassVar[int]
    FSYNC_P50_MS_FIELD_NUMBER: _ClassVar[int]
    FSYNC_P99_MS_FIELD_NUMBER: _ClassVar[int]
    DISK_USED_RATIO_FIELD_NUMBER: _ClassVar[int]
    LAST_CONTACT_MS_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    LOG_CHECK_FIELD_NUMBER: _ClassVar[int]
    REFUSED_FIELD_NUMBER: _ClassVar[int]
    node_id: str
    role: str
    addresses: _route_pb2.ListenerAddresses
    durable_index: int
    commit_index: int
    applied_index: int
    behind_bytes: int
    fsync_p50_ms: float
    fsync_p99_ms: float
    disk_used_ratio: float
    last_contact_ms: int
    state: str
    log_check: LogCheck
    refused: str
    def __init__(self, node_id: _Optional[str] = ..., role: _Optional[str] = ..., addresses: _Optional[_Union[_route_pb2.ListenerAddresses, _Mapping]] = ..., durable_index: _Optional[int] = ..., commit_index: _Optional[int] = ..., applied_index: _Optional[int] = ..., behind_bytes: _Optional[int] = ..., fsync_p50_ms: _Optional[float] = ..., fsync_p99_ms: _Optional[float] = ..., disk_used_ratio: _Optional[float] = ..., last_contact_ms: _Optional[int] = ..., state: _Optional[str] = ..., log_check: _Optional[_Union[LogCheck, _Mapping]] = ..., refused: _Optional[str] = ...) -> None: ...

class LogCheck(_message.Message):
    __slots__ = ("read_bytes", "passes", "found", "repaired", "last")
    READ_BYTES_FIELD_NUMBER: _ClassVar[int]
    PASSES_FIELD_NUMBER: _ClassVar[int]
    FOUND_FIELD_NUMBER: _ClassVar[int]
    REPAIRED_FIELD_NUMBER: _ClassVar[int]
    LAST_FIELD_NUMBER: _ClassVar[int]
    read_bytes: int
    passes: int
    found: int
    repaired: int
    last: str
    def __init__(self, read_bytes: _Optional[int] = ..., passes: _Optional[int] = ..., found: _Optional[int] = ..., repaired: _Optional[int] = ..., last: _Optional[str] = ...) -> None: ...

class GetStatusResponse(_message.Message):
    __slots__ = ("cluster", "group", "node_id", "role", "term", "term_age_ms", "leader_id", "leader", "voters", "voters_in_contact", "flush", "nodes", "produce_refused", "produce_refused_reason", "version", "incarnation", "first_index", "log_bytes", "uptime_ms", "log_start_ms", "log_start_offset", "disk_step", "disk_step_text", "disk_used_bytes", "disk_limit_bytes", "segments_going", "protection", "held_back", "mode", "mode_since_ms", "replication", "master_id", "generation", "last_index", "last_term", "promoting", "slaves_needed", "slaves_in_contact", "readers", "claims", "clock_offset_ms", "max_store_bytes", "timer_lateness_ms", "heartbeat_lateness_ms", "election_timeout_ms", "election_timeout_added_ms")
    CLUSTER_FIELD_NUMBER: _ClassVar[int]
    GROUP_FIELD_NUMBER: _ClassVar[int]
    NODE_ID_FIELD_NUMBER: _ClassVar[int]
    ROLE_FIELD_NUMBER: _ClassVar[int]
    TERM_FIELD_NUMBER: _ClassVar[int]
    TERM_AGE_MS_FIELD_NUMBER: _ClassVar[int]
    LEADER_ID_FIELD_NUMBER: _ClassVar[int]
    LEADER_FIELD_NUMBER: _ClassVar[int]
    VOTERS_FIELD_NUMBER: _ClassVar[int]
    VOTERS_IN_CONTACT_FIELD_NUMBER: _ClassVar[int]
    FLUSH_FIELD_NUMBER: _ClassVar[int]
    NODES_FIELD_NUMBER: _ClassVar[int]
    PRODUCE_REFUSED_FIELD_NUMBER: _ClassVar[int]
    PRODUCE_REFUSED_REASON_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    FIRST_INDEX_FIELD_NUMBER: _ClassVar[int]
    LOG_BYTES_FIELD_NUMBER: _ClassVar[int]
    UPTIME_MS_FIELD_NUMBER: _ClassVar[int]
    LOG_START_MS_FIELD_NUMBER: _ClassVar[int]
    LOG_START_OFFSET_FIELD_NUMBER: _ClassVar[int]
    DISK_STEP_FIELD_NUMBER: _ClassVar[int]
    DISK_STEP_TEXT_FIELD_NUMBER: _ClassVar[int]
    DISK_USED_BYTES_FIELD_NUMBER: _ClassVar[int]
    DISK_LIMIT_BYTES_FIELD_NUMBER: _ClassVar[int]
    SEGMENTS_GOING_FIELD_NUMBER: _ClassVar[int]
    PROTECTION_FIELD_NUMBER: _ClassVar[int]
    HELD_BACK_FIELD_NUMBER: _ClassVar[int]
    MODE_FIELD_NUMBER: _ClassVar[int]
    MODE_SINCE_MS_FIELD_NUMBER: _ClassVar[int]
    REPLICATION_FIELD_NUMBER: _ClassVar[int]
    MASTER_ID_FIELD_NUMBER: _ClassVar[int]
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    LAST_INDEX_FIELD_NUMBER: _ClassVar[int]
    LAST_TERM_FIELD_NUMBER: _ClassVar[int]
    PROMOTING_FIELD_NUMBER: _ClassVar[int]
    SLAVES_NEEDED_FIELD_NUMBER: _ClassVar[int]
    SLAVES_IN_CONTACT_FIELD_NUMBER: _ClassVar[int]
    READERS_FIELD_NUMBER: _ClassVar[int]
    CLAIMS_FIELD_NUMBER: _ClassVar[int]
    CLOCK_OFFSET_MS_FIELD_NUMBER: _ClassVar[int]
    MAX_STORE_BYTES_FIELD_NUMBER: _ClassVar[int]
    TIMER_LATENESS_MS_FIELD_NUMBER: _ClassVar[int]
    HEARTBEAT_LATENESS_MS_FIELD_NUMBER: _ClassVar[int]
    ELECTION_TIMEOUT_MS_FIELD_NUMBER: _ClassVar[int]
    ELECTION_TIMEOUT_ADDED_MS_FIELD_NUMBER: _ClassVar[int]
    cluster: str
    group: str
    node_id: str
    role: str
    term: int
    term_age_ms: int
    leader_id: str
    leader: _route_pb2.ListenerAddresses
    voters: int
    voters_in_contact: int
    flush: str
    nodes: _containers.RepeatedCompositeFieldContainer[NodeStatus]
    produce_refused: bool
    produce_refused_reason: str
    version: str
    incarnation: str
    first_index: int
    log_bytes: int
    uptime_ms: int
    log_start_ms: int
    log_start_offset: int
    disk_step: int
    disk_step_text: str
    disk_used_bytes: int
    disk_limit_bytes: int
    segments_going: int
    protection: str
    held_back: str
    mode: _route_pb2.BrokerGroupMode
    mode_since_ms: int
    replication: str
    master_id: str
    generation: int
    last_index: int
    last_term: int
    promoting: str
    slaves_needed: int
    slaves_in_contact: int
    readers: _containers.RepeatedCompositeFieldContainer[LiveReading]
    claims: _containers.RepeatedCompositeFieldContainer[GenerationClaim]
    clock_offset_ms: int
    max_store_bytes: int
    timer_lateness_ms: int
    heartbeat_lateness_ms: int
    election_timeout_ms: int
    election_timeout_added_ms: int
    def __init__(self, cluster: _Optional[str] = ..., group: _Optional[str] = ..., node_id: _Optional[str] = ..., role: _Optional[str] = ..., term: _Optional[int] = ..., term_age_ms: _Optional[int] = ..., leader_id: _Optional[str] = ..., leader: _Optional[_Union[_route_pb2.ListenerAddresses, _Mapping]] = ..., voters: _Optional[int] = ..., voters_in_contact: _Optional[int] = ..., flush: _Optional[str] = ..., nodes: _Optional[_Iterable[_Union[NodeStatus, _Mapping]]] = ..., produce_refused: bool = ..., produce_refused_reason: _Optional[str] = ..., version: _Optional[str] = ..., incarnation: _Optional[str] = ..., first_index: _Optional[int] = ..., log_bytes: _Optional[int] = ..., uptime_ms: _Optional[int] = ..., log_start_ms: _Optional[int] = ..., log_start_offset: _Optional[int] = ..., disk_step: _Optional[int] = ..., disk_step_text: _Optional[str] = ..., disk_used_bytes: _Optional[int] = ..., disk_limit_bytes: _Optional[int] = ..., segments_going: _Optional[int] = ..., protection: _Optional[str] = ..., held_back: _Optional[str] = ..., mode: _Optional[_Union[_route_pb2.BrokerGroupMode, str]] = ..., mode_since_ms: _Optional[int] = ..., replication: _Optional[str] = ..., master_id: _Optional[str] = ..., generation: _Optional[int] = ..., last_index: _Optional[int] = ..., last_term: _Optional[int] = ..., promoting: _Optional[str] = ..., slaves_needed: _Optional[int] = ..., slaves_in_contact: _Optional[int] = ..., readers: _Optional[_Iterable[_Union[LiveReading, _Mapping]]] = ..., claims: _Optional[_Iterable[_Union[GenerationClaim, _Mapping]]] = ..., clock_offset_ms: _Optional[int] = ..., max_store_bytes: _Optional[int] = ..., timer_lateness_ms: _Optional[int] = ..., heartbeat_lateness_ms: _Optional[int] = ..., election_timeout_ms: _Optional[int] = ..., election_timeout_added_ms: _Optional[int] = ...) -> None: ...

class LiveReading(_message.Message):
    __slots__ = ("group", "topic", "streams", "behind")
    GROUP_FIELD_NUMBER: _ClassVar[int]
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    STREAMS_FIELD_NUMBER: _ClassVar[int]
    BEHIND_FIELD_NUMBER: _ClassVar[int]
    group: str
    topic: str
    streams: int
    behind: int
    def __init__(self, group: _Optional[str] = ..., topic: _Optional[str] = ..., streams: _Optional[int] = ..., behind: _Optional[int] = ...) -> None: ...

class GenerationClaim(_message.Message):
    __slots__ = ("master", "generation", "group_id", "began_after", "former_group_ids")
    MASTER_FIELD_NUMBER: _ClassVar[int]
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    GROUP_ID_FIELD_NUMBER: _ClassVar[int]
    BEGAN_AFTER_FIELD_NUMBER: _ClassVar[int]
    FORMER_GROUP_IDS_FIELD_NUMBER: _ClassVar[int]
    master: str
    generation: int
    group_id: int
    began_after: int
    former_group_ids: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, master: _Optional[str] = ..., generation: _Optional[int] = ..., group_id: _Optional[int] = ..., began_after: _Optional[int] = ..., former_group_ids: _Optional[_Iterable[int]] = ...) -> None: ...

class TransferLeadershipRequest(_message.Message):
    __slots__ = ("to_node",)
    TO_NODE_FIELD_NUMBER: _ClassVar[int]
    to_node: str
    def __init__(self, to_node: _Optional[str] = ...) -> None: ...

class TransferLeadershipResponse(_message.Message):
    __slots__ = ("refusal", "leader_id")
    REFUSAL_FIELD_NUMBER: _ClassVar[int]
    LEADER_ID_FIELD_NUMBER: _ClassVar[int]
    refusal: _route_pb2.Refusal
    leader_id: str
    def __init__(self, refusal: _Optional[_Union[_route_pb2.Refusal, _Mapping]] = ..., leader_id: _Optional[str] = ...) -> None: ...

class PromoteRequest(_message.Message):
    __slots__ = ("node_id", "generation", "incomplete", "instead_of")
    NODE_ID_FIELD_NUMBER: _ClassVar[int]
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    INCOMPLETE_FIELD_NUMBER: _ClassVar[int]
    INSTEAD_OF_FIELD_NUMBER: _ClassVar[int]
    node_id: str
    generation: int
    incomplete: bool
    instead_of: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, node_id: _Optional[str] = ..., generation: _Optional[int] = ..., incomplete: bool = ..., instead_of: _Optional[_Iterable[str]] = ...) -> None: ...

class PromoteResponse(_message.Message):
    __slots__ = ("refusal", "generation")
    REFUSAL_FIELD_NUMBER: _ClassVar[int]
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    refusal: _route_pb2.Refusal
    generation: int
    def __init__(self, refusal: _Optional[_Union[_route_pb2.Refusal, _Mapping]] = ..., generation: _Optional[int] = ...) -> None: ...

class NoteClaimRequest(_message.Message):
    __slots__ = ("claim",)
    CLAIM_FIELD_NUMBER: _ClassVar[int]
    claim: GenerationClaim
    def __init__(self, claim: _Optional[_Union[GenerationClaim, _Mapping]] = ...) -> None: ...

class NoteClaimResponse(_message.Message):
    __slots__ = ("refusal",)
    REFUSAL_FIELD_NUMBER: _ClassVar[int]
    refusal: _route_pb2.Refusal
    def __init__(self, refusal: _Optional[_Union[_route_pb2.Refusal, _Mapping]] = ...) -> None: ...

class DumpRequest(_message.Message):
    __slots__ = ("without_consume_queues", "digests", "ranges")
    WITHOUT_CONSUME_QUEUES_FIELD_NUMBER: _ClassVar[int]
    DIGESTS_FIELD_NUMBER: _ClassVar[int]
    RANGES_FIELD_NUMBER: _ClassVar[int]
    without_consume_queues: bool
    digests: bool
    ranges: _containers.RepeatedCompositeFieldContainer[LogRange]
    def __init__(self, without_consume_queues: bool = ..., digests: bool = ..., ranges: _Optional[_Iterable[_Union[LogRange, _Mapping]]] = ...) -> None: ...

class LogRange(_message.Message):
    __slots__ = ("begin", "end")
    BEGIN_FIELD_NUMBER: _ClassVar[int]
    END_FIELD_NUMBER: _ClassVar[int]
    begin: int
    end: int
    def __init__(self, begin: _Optional[int] = ..., end: _Optional[int] = ...) -> None: ...

class DumpChunk(_message.Message):
    __slots__ = ("refusal", "path", "offset", "data", "total_bytes")
    REFUSAL_FIELD_NUMBER: _ClassVar[int]
    PATH_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    DATA_FIELD_NUMBER: _ClassVar[int]
    TOTAL_BYTES_FIELD_NUMBER: _ClassVar[int]
    refusal: _route_pb2.Refusal
    path: str
    offset: int
    data: bytes
    total_bytes: int
    def __init__(self, refusal: _Optional[_Union[_route_pb2.Refusal, _Mapping]] = ..., path: _Optional[str] = ..., offset: _Optional[int] = ..., data: _Optional[bytes] = ..., total_bytes: _Optional[int] = ...) -> None: ...

class CleanRequest(_message.Message):
    __slots__ = ("dry_run", "older_than_ms", "even_unexpired")
    DRY_RUN_FIELD_NUMBER: _ClassVar[int]
    OLDER_THAN_MS_FIELD_NUMBER: _ClassVar[int]
    EVEN_UNEXPIRED_FIELD_NUMBER: _ClassVar[int]
    dry_run: bool
    older_than_ms: int
    even_unexpired: bool
    def __init__(self, dry_run: bool = ..., older_than_ms: _Optional[int] = ..., even_unexpired: bool = ...) -> None: ...

class CleanResponse(_message.Message):
    __slots__ = ("refusal", "segments", "bytes", "log_start_index", "note")
    REFUSAL_FIELD_NUMBER: _ClassVar[int]
    SEGMENTS_FIELD_NUMBER: _ClassVar[int]
    BYTES_FIELD_NUMBER: _ClassVar[int]
    LOG_START_INDEX_FIELD_NUMBER: _ClassVar[int]
    NOTE_FIELD_NUMBER: _ClassVar[int]
    refusal: _route_pb2.Refusal
    segments: _containers.RepeatedScalarFieldContainer[str]
    bytes: int
    log_start_index: int
    note: str
    def __init__(self, refusal: _Optional[_Union[_route_pb2.Refusal, _Mapping]] = ..., segments: _Optional[_Iterable[str]] = ..., bytes: _Optional[int] = ..., log_start_index: _Optional[int] = ..., note: _Optional[str] = ...) -> None: ...

class QueryMessagesRequest(_message.Message):
    __slots__ = ("message_id", "topic", "key", "begin_ms", "end_ms", "limit", "before_offset")
    MESSAGE_ID_FIELD_NUMBER: _ClassVar[int]
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    KEY_FIELD_NUMBER: _ClassVar[int]
    BEGIN_MS_FIELD_NUMBER: _ClassVar[int]
    END_MS_FIELD_NUMBER: _ClassVar[int]
    LIMIT_FIELD_NUMBER: _ClassVar[int]
    BEFORE_OFFSET_FIELD_NUMBER: _ClassVar[int]
    message_id: str
    topic: str
    key: str
    begin_ms: int
    end_ms: int
    limit: int
    before_offset: int
    def __init__(self, message_id: _Optional[str] = ..., topic: _Optional[str] = ..., key: _Optional[str] = ..., begin_ms: _Optional[int] = ..., end_ms: _Optional[int] = ..., limit: _Optional[int] = ..., before_offset: _Optional[int] = ...) -> None: ...

class StoredMessage(_message.Message):
    __slots__ = ("topic", "queue_id", "queue_offset", "store_timestamp", "physical_offset", "record")
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    QUEUE_ID_FIELD_NUMBER: _ClassVar[int]
    QUEUE_OFFSET_FIELD_NUMBER: _ClassVar[int]
    STORE_TIMESTAMP_FIELD_NUMBER: _ClassVar[int]
    PHYSICAL_OFFSET_FIELD_NUMBER: _ClassVar[int]
    RECORD_FIELD_NUMBER: _ClassVar[int]
    topic: str
    queue_id: int
    queue_offset: int
    store_timestamp: int
    physical_offset: int
    record: bytes
    def __init__(self, topic: _Optional[str] = ..., queue_id: _Optional[int] = ..., queue_offset: _Optional[int] = ..., store_timestamp: _Optional[int] = ..., physical_offset: _Optional[int] = ..., record: _Optional[bytes] = ...) -> None: ...

class QueryMessagesResponse(_message.Message):
    __slots__ = ("refusal", "messages", "next_before", "unsearched_bytes", "stale", "node_id")
    REFUSAL_FIELD_NUMBER: _ClassVar[int]
    MESSAGES_FIELD_NUMBER: _ClassVar[int]
    NEXT_BEFORE_FIELD_NUMBER: _ClassVar[int]
    UNSEARCHED_BYTES_FIELD_NUMBER: _ClassVar[int]
    STALE_FIELD_NUMBER: _ClassVar[int]
    NODE_ID_FIELD_NUMBER: _ClassVar[int]
    refusal: _route_pb2.Refusal
    messages: _containers.RepeatedCompositeFieldContainer[StoredMessage]
    next_before: int
    unsearched_bytes: int
    stale: bool
    node_id: str
    def __init__(self, refusal: _Optional[_Union[_route_pb2.Refusal, _Mapping]] = ..., messages: _Optional[_Iterable[_Union[StoredMessage, _Mapping]]] = ..., next_before: _Optional[int] = ..., unsearched_bytes: _Optional[int] = ..., stale: bool = ..., node_id: _Optional[str] = ...) -> None: ...

class SetBrokerGroupModeRequest(_message.Message):
    __slots__ = ("group", "mode", "force", "consumers", "cluster", "broker_group_id")
    GROUP_FIELD_NUMBER: _ClassVar[int]
    MODE_FIELD_NUMBER: _ClassVar[int]
    FORCE_FIELD_NUMBER: _ClassVar[int]
    CONSUMERS_FIELD_NUMBER: _ClassVar[int]
    CLUSTER_FIELD_NUMBER: _ClassVar[int]
    BROKER_GROUP_ID_FIELD_NUMBER: _ClassVar[int]
    group: str
    mode: _route_pb2.BrokerGroupMode
    force: bool
    consumers: _containers.RepeatedCompositeFieldContainer[TopicConsumer]
    cluster: str
    broker_group_id: int
    def __init__(self, group: _Optional[str] = ..., mode: _Optional[_Union[_route_pb2.BrokerGroupMode, str]] = ..., force: bool = ..., consumers: _Optional[_Iterable[_Union[TopicConsumer, _Mapping]]] = ..., cluster: _Optional[str] = ..., broker_group_id: _Optional[int] = ...) -> None: ...

class TopicConsumer(_message.Message):
    __slots__ = ("group", "topic")
    GROUP_FIELD_NUMBER: _ClassVar[int]
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    group: str
    topic: str
    def __init__(self, group: _Optional[str] = ..., topic: _Optional[str] = ...) -> None: ...

class SetBrokerGroupModeResponse(_message.Message):
    __slots__ = ("refusal", "mode", "since_ms", "changed")
    REFUSAL_FIELD_NUMBER: _ClassVar[int]
    MODE_FIELD_NUMBER: _ClassVar[int]
    SINCE_MS_FIELD_NUMBER: _ClassVar[int]
    CHANGED_FIELD_NUMBER: _ClassVar[int]
    refusal: _route_pb2.Refusal
    mode: _route_pb2.BrokerGroupMode
    since_ms: int
    changed: bool
    def __init__(self, refusal: _Optional[_Union[_route_pb2.Refusal, _Mapping]] = ..., mode: _Optional[_Union[_route_pb2.BrokerGroupMode, str]] = ..., since_ms: _Optional[int] = ..., changed: bool = ...) -> None: ...

class GetProgressRequest(_message.Message):
    __slots__ = ("group", "topic", "consumers", "cluster", "broker_group", "broker_group_id")
    GROUP_FIELD_NUMBER: _ClassVar[int]
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    CONSUMERS_FIELD_NUMBER: _ClassVar[int]
    CLUSTER_FIELD_NUMBER: _ClassVar[int]
    BROKER_GROUP_FIELD_NUMBER: _ClassVar[int]
    BROKER_GROUP_ID_FIELD_NUMBER: _ClassVar[int]
    group: str
    topic: str
    consumers: _containers.RepeatedCompositeFieldContainer[TopicConsumer]
    cluster: str
    broker_group: str
    broker_group_id: int
    def __init__(self, group: _Optional[str] = ..., topic: _Optional[str] = ..., consumers: _Optional[_Iterable[_Union[TopicConsumer, _Mapping]]] = ..., cluster: _Optional[str] = ..., broker_group: _Optional[str] = ..., broker_group_id: _Optional[int] = ...) -> None: ...

class TopicProgress(_message.Message):
    __slots__ = ("group", "topic", "queues", "behind", "leased", "lost", "members", "parked")
    GROUP_FIELD_NUMBER: _ClassVar[int]
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    QUEUES_FIELD_NUMBER: _ClassVar[int]
    BEHIND_FIELD_NUMBER: _ClassVar[int]
    LEASED_FIELD_NUMBER: _ClassVar[int]
    LOST_FIELD_NUMBER: _ClassVar[int]
    MEMBERS_FIELD_NUMBER: _ClassVar[int]
    PARKED_FIELD_NUMBER: _ClassVar[int]
    group: str
    topic: str
    queues: int
    behind: int
    leased: int
    lost: int
    members: int
    parked: int
    def __init__(self, group: _Optional[str] = ..., topic: _Optional[str] = ..., queues: _Optional[int] = ..., behind: _Optional[int] = ..., leased: _Optional[int] = ..., lost: _Optional[int] = ..., members: _Optional[int] = ..., parked: _Optional[int] = ...) -> None: ...

class GetProgressResponse(_message.Message):
    __slots__ = ("refusal", "topics", "mode", "mode_since_ms")
    REFUSAL_FIELD_NUMBER: _ClassVar[int]
    TOPICS_FIELD_NUMBER: _ClassVar[int]
    MODE_FIELD_NUMBER: _ClassVar[int]
    MODE_SINCE_MS_FIELD_NUMBER: _ClassVar[int]
    refusal: _route_pb2.Refusal
    topics: _containers.RepeatedCompositeFieldContainer[TopicProgress]
    mode: _route_pb2.BrokerGroupMode
    mode_since_ms: int
    def __init__(self, refusal: _Optional[_Union[_route_pb2.Refusal, _Mapping]] = ..., topics: _Optional[_Iterable[_Union[TopicProgress, _Mapping]]] = ..., mode: _Optional[_Union[_route_pb2.BrokerGroupMode, str]] = ..., mode_since_ms: _Optional[int] = ...) -> None: ...
