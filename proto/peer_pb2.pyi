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
