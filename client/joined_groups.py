"""Which broker groups of other folders belong to a local cluster: only they know, so they are waited for.

Owns: one question, asked for a while. Must not: print, start anything.
"""

from __future__ import annotations

import time
from collections.abc import Collection
from typing import Final

import grpc

from ledgermq.proto import nameserver_pb2, nameserver_pb2_grpc

#: Nodes that run look for a nameserver that is back at least every 2 s, and register.
REGISTERED_WITHIN_S: Final = 4.0
_PAUSE_S: Final = 0.2


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
            try:
                listed = stub.ListGroups(
                    nameserver_pb2.ListGroupsRequest(), timeout=max(rest, _PAUSE_S), wait_for_ready=True
                )
            except grpc.RpcError:
                continue
            found = {view.group: [node.node_id for node in view.nodes] for view in listed.groups}
            clashes = {
                group: there
                for group, there in found.items()
                if group in names or any(node in nodes for node in there)
            }
            if clashes:
                return clashes
            time.sleep(_PAUSE_S)
    return {}
