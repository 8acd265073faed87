from ledgermq.proto import route_pb2 as _route_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class RegisterRequest(_message.Message):
    __slots__ = ("node_id", "incarnation", "route", "is_leader", "knows_group_ids")
    NODE_ID_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    ROUTE_FIELD_NUMBER: _ClassVar[int]
    IS_LEADER_FIELD_NUMBER: _ClassVar[int]
    KNOWS_GROUP_IDS_FIELD_NUMBER: _ClassVar[int]
    node_id: str
    incarnation: str
    route: _route_pb2.GroupRoute
    is_leader: bool
    knows_group_ids: bool
    def __init__(self, node_id: _Optional[str] = ..., incarnation: _Optional[str] = ..., route: _Optional[_Union[_route_pb2.GroupRoute, _Mapping]] = ..., is_leader: bool = ..., knows_group_ids: bool = ...) -> None: ...

class RegisterResponse(_message.Message):
    __slots__ = ("refusal", "expiry_ms", "master_id", "generation")
    REFUSAL_FIELD_NUMBER: _ClassVar[int]
    EXPIRY_MS_FIELD_NUMBER: _ClassVar[int]
    MASTER_ID_FIELD_NUMBER: _ClassVar[int]
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    refusal: _route_pb2.Refusal
    expiry_ms: int
    master_id: str
    generation: int
    def __init__(self, refusal: _Optional[_Union[_route_pb2.Refusal, _Mapping]] = ..., expiry_ms: _Optional[int] = ..., master_id: _Optional[str] = ..., generation: _Optional[int] = ...) -> None: ...

class HeartbeatBeat(_message.Message):
    __slots__ = ("cluster", "group", "node_id", "term", "leader_id", "group_id")
    CLUSTER_FIELD_NUMBER: _ClassVar[int]
    GROUP_FIELD_NUMBER: _ClassVar[int]
    NODE_ID_FIELD_NUMBER: _ClassVar[int]
    TERM_FIELD_NUMBER: _ClassVar[int]
    LEADER_ID_FIELD_NUMBER: _ClassVar[int]
    GROUP_ID_FIELD_NUMBER: _ClassVar[int]
    cluster: str
    group: str
    node_id: str
    term: int
    leader_id: str
    group_id: int
    def __init__(self, cluster: _Optional[str] = ..., group: _Optional[str] = ..., node_id: _Optional[str] = ..., term: _Optional[int] = ..., leader_id: _Optional[str] = ..., group_id: _Optional[int] = ...) -> None: ...

class HeartbeatReply(_message.Message):
    __slots__ = ("register_again",)
    REGISTER_AGAIN_FIELD_NUMBER: _ClassVar[int]
    register_again: bool
    def __init__(self, register_again: bool = ...) -> None: ...

class UnregisterRequest(_message.Message):
    __slots__ = ("cluster", "group", "node_id", "group_removed", "group_id")
    CLUSTER_FIELD_NUMBER: _ClassVar[int]
    GROUP_FIELD_NUMBER: _ClassVar[int]
    NODE_ID_FIELD_NUMBER: _ClassVar[int]
    GROUP_REMOVED_FIELD_NUMBER: _ClassVar[int]
    GROUP_ID_FIELD_NUMBER: _ClassVar[int]
    cluster: str
    group: str
    node_id: str
    group_removed: bool
    group_id: int
    def __init__(self, cluster: _Optional[str] = ..., group: _Optional[str] = ..., node_id: _Optional[str] = ..., group_removed: bool = ..., group_id: _Optional[int] = ...) -> None: ...

class UnregisterResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class GetRouteRequest(_message.Message):
    __slots__ = ("cluster", "topic")
    CLUSTER_FIELD_NUMBER: _ClassVar[int]
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    cluster: str
    topic: str
    def __init__(self, cluster: _Optional[str] = ..., topic: _Optional[str] = ...) -> None: ...

class GetRouteResponse(_message.Message):
    __slots__ = ("refusal", "groups", "cluster")
    REFUSAL_FIELD_NUMBER: _ClassVar[int]
    GROUPS_FIELD_NUMBER: _ClassVar[int]
    CLUSTER_FIELD_NUMBER: _ClassVar[int]
    refusal: _route_pb2.Refusal
    groups: _containers.RepeatedCompositeFieldContainer[_route_pb2.GroupRoute]
    cluster: str
    def __init__(self, refusal: _Optional[_Union[_route_pb2.Refusal, _Mapping]] = ..., groups: _Optional[_Iterable[_Union[_route_pb2.GroupRoute, _Mapping]]] = ..., cluster: _Optional[str] = ...) -> None: ...

class WatchRoutesRequest(_message.Message):
    __slots__ = ("cluster", "topics", "all_listeners", "without_group")
    CLUSTER_FIELD_NUMBER: _ClassVar[int]
    TOPICS_FIELD_NUMBER: _ClassVar[int]
    ALL_LISTENERS_FIELD_NUMBER: _ClassVar[int]
    WITHOUT_GROUP_FIELD_NUMBER: _ClassVar[int]
    cluster: str
    topics: _containers.RepeatedScalarFieldContainer[str]
    all_listeners: bool
    without_group: str
    def __init__(self, cluster: _Optional[str] = ..., topics: _Optional[_Iterable[str]] = ..., all_listeners: bool = ..., without_group: _Optional[str] = ...) -> None: ...

class WatchRoutesResponse(_message.Message):
    __slots__ = ("groups",)
    GROUPS_FIELD_NUMBER: _ClassVar[int]
    groups: _containers.RepeatedCompositeFieldContainer[_route_pb2.GroupRoute]
    def __init__(self, groups: _Optional[_Iterable[_Union[_route_pb2.GroupRoute, _Mapping]]] = ...) -> None: ...

class ListGroupsRequest(_message.Message):
    __slots__ = ("cluster", "gone_too", "gone_topics")
    CLUSTER_FIELD_NUMBER: _ClassVar[int]
    GONE_TOO_FIELD_NUMBER: _ClassVar[int]
    GONE_TOPICS_FIELD_NUMBER: _ClassVar[int]
    cluster: str
    gone_too: bool
    gone_topics: bool
    def __init__(self, cluster: _Optional[str] = ..., gone_too: bool = ..., gone_topics: bool = ...) -> None: ...

class ListGroupsResponse(_message.Message):
    __slots__ = ("groups", "clusters", "strangers", "gone")
    GROUPS_FIELD_NUMBER: _ClassVar[int]
    CLUSTERS_FIELD_NUMBER: _ClassVar[int]
    STRANGERS_FIELD_NUMBER: _ClassVar[int]
    GONE_FIELD_NUMBER: _ClassVar[int]
    groups: _containers.RepeatedCompositeFieldContainer[_route_pb2.GroupRoute]
    clusters: _containers.RepeatedScalarFieldContainer[str]
    strangers: _containers.RepeatedCompositeFieldContainer[Stranger]
    gone: _containers.RepeatedCompositeFieldContainer[GoneGroup]
    def __init__(self, groups: _Optional[_Iterable[_Union[_route_pb2.GroupRoute, _Mapping]]] = ..., clusters: _Optional[_Iterable[str]] = ..., strangers: _Optional[_Iterable[_Union[Stranger, _Mapping]]] = ..., gone: _Optional[_Iterable[_Union[GoneGroup, _Mapping]]] = ...) -> None: ...

class Stranger(_message.Message):
    __slots__ = ("cluster", "group", "node_id", "log_address", "group_id")
    CLUSTER_FIELD_NUMBER: _ClassVar[int]
    GROUP_FIELD_NUMBER: _ClassVar[int]
    NODE_ID_FIELD_NUMBER: _ClassVar[int]
    LOG_ADDRESS_FIELD_NUMBER: _ClassVar[int]
    GROUP_ID_FIELD_NUMBER: _ClassVar[int]
    cluster: str
    group: str
    node_id: str
    log_address: str
    group_id: int
    def __init__(self, cluster: _Optional[str] = ..., group: _Optional[str] = ..., node_id: _Optional[str] = ..., log_address: _Optional[str] = ..., group_id: _Optional[int] = ...) -> None: ...

class GoneGroup(_message.Message):
    __slots__ = ("cluster", "group", "silent_ms", "topics")
    CLUSTER_FIELD_NUMBER: _ClassVar[int]
    GROUP_FIELD_NUMBER: _ClassVar[int]
    SILENT_MS_FIELD_NUMBER: _ClassVar[int]
    TOPICS_FIELD_NUMBER: _ClassVar[int]
    cluster: str
    group: str
    silent_ms: int
    topics: _containers.RepeatedCompositeFieldContainer[_route_pb2.TopicInfo]
    def __init__(self, cluster: _Optional[str] = ..., group: _Optional[str] = ..., silent_ms: _Optional[int] = ..., topics: _Optional[_Iterable[_Union[_route_pb2.TopicInfo, _Mapping]]] = ...) -> None: ...

class ForgetGroupRequest(_message.Message):
    __slots__ = ("cluster", "group")
    CLUSTER_FIELD_NUMBER: _ClassVar[int]
    GROUP_FIELD_NUMBER: _ClassVar[int]
    cluster: str
    group: str
    def __init__(self, cluster: _Optional[str] = ..., group: _Optional[str] = ...) -> None: ...

class ForgetGroupResponse(_message.Message):
    __slots__ = ("refusal", "forgotten")
    REFUSAL_FIELD_NUMBER: _ClassVar[int]
    FORGOTTEN_FIELD_NUMBER: _ClassVar[int]
    refusal: _route_pb2.Refusal
    forgotten: bool
    def __init__(self, refusal: _Optional[_Union[_route_pb2.Refusal, _Mapping]] = ..., forgotten: bool = ...) -> None: ...
