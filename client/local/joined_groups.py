"""Which broker groups of other folders belong to a local cluster: only they know, so they are waited for.

Owns: one watch, for a while. Must not: print, start anything.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Collection, Iterable
from typing import Final

import grpc

from ledgermq.proto import nameserver_pb2, nameserver_pb2_grpc, route_pb2

#: Nodes that run look for a nameserver that is back at least every 2 s, and register.
REGISTERED_WITHIN_S: Final = 4.0


def groups_there(
    nameserver: str, names: Collection[str], nodes: Collection[str], seconds: float = REGISTERED_WITHIN_S
) -> dict[str, list[str]]:
    """Return broker groups that have one of these names, or a node with one of these, with their nodes.

    They have `seconds` to register at a nameserver that was just started; the first that does ends the wait.
    """
    end = time.monotonic() + seconds
    with grpc.insecure_channel(nameserver) as channel:
        stub = nameserver_pb2_grpc.NameServerServiceStub(channel)
        while (rest := end - time.monotonic()) > 0:
            request = nameserver_pb2.WatchRoutesRequest()
            with contextlib.suppress(grpc.RpcError):  # the time is over, or the nameserver is still starting
                for listed in stub.WatchRoutes(request, timeout=rest, wait_for_ready=True):
                    if clashes := _clashes(listed.groups, names, nodes):
                        return clashes
    return {}


def _clashes(
    views: Iterable[route_pb2.GroupRoute], names: Collection[str], nodes: Collection[str]
) -> dict[str, list[str]]:
    found = {view.group: [node.node_id for node in view.nodes] for view in views}
    return {
        group: there
        for group, there in found.items()
        if group in names or any(node in nodes for node in there)
    }
