"""Which nodes belong together although only names were compared before, and which were refused lately for not doing so.

Owns: the comparison of group ids, a bounded list of refused nodes. Must not: read clocks (callers pass `now` in ms), send.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from ledgermq.proto import nameserver_pb2 as ns
from ledgermq.proto import route_pb2 as pb
from ledgermq.proto.group_ids import are_related

#: So many refused nodes are remembered, each for so long after its last attempt, ms.
MAX_STRANGERS: Final = 64
SHOWN_MS: Final = 10_000


def belongs_to(one: pb.GroupRoute, other: pb.GroupRoute, told: Iterable[pb.GroupRoute] = ()) -> bool:
    """Tell whether two nodes that name the same group are of the same one, as far as they, and those of `told`, know it.

    The ids differ between generations of a group that was recovered, or in which a master was promoted: then the later one
    names the earlier one. A node that came into the later one without data does not know the earlier one.
    """
    if are_related(one.group_id, one.former_group_ids, other.group_id, other.former_group_ids):
        return True
    ids = {one.group_id, other.group_id}
    return any(each.group_id in ids and not ids.isdisjoint(each.former_group_ids) for each in told)


class Strangers:
    """Nodes that wanted to register under the name of a group that is not theirs."""

    def __init__(self) -> None:
        self._seen: dict[tuple[str, str, str, int], tuple[int, pb.NodeInfo]] = {}

    def note(self, node_id: str, route: pb.GroupRoute, now: int) -> bool:
        """Take note of a refused node; return whether it was not refused lately already, and is not one of very many."""
        self._drop_old(now)
        key = (route.cluster, route.group, node_id, route.group_id)
        is_new = self._seen.pop(key, None) is None and len(self._seen) < MAX_STRANGERS
        info = next((each for each in route.nodes if each.node_id == node_id), pb.NodeInfo(node_id=node_id))
        self._seen[key] = now, info
        while len(self._seen) > MAX_STRANGERS:
            del self._seen[next(iter(self._seen))]
        return is_new

    def lately(self, cluster: str, listener: str, now: int) -> list[ns.Stranger]:
        """Return the nodes of `cluster` ("": of all) that were refused lately, with the addresses of a listener."""
        self._drop_old(now)
        return [
            ns.Stranger(
                cluster=its_cluster,
                group=group,
                node_id=node_id,
                group_id=group_id,
                log_address=_log_address(info.listeners, listener),
            )
            for (its_cluster, group, node_id, group_id), (_, info) in sorted(self._seen.items(), key=_key)
            if cluster in ("", its_cluster)
        ]

    def _drop_old(self, now: int) -> None:
        for key in [key for key, (seen, _) in self._seen.items() if now - seen >= SHOWN_MS]:
            del self._seen[key]


def _key(item: tuple[tuple[str, str, str, int], object]) -> tuple[str, str, str, int]:
    return item[0]


def _log_address(listeners: Iterable[pb.ListenerAddresses], name: str) -> str:
    known = list(listeners)
    chosen = next((each for each in known if each.name == name), known[0] if known else None)
    return chosen.log_address if chosen is not None else ""


def refusal_of_stranger(node_id: str, route: pb.GroupRoute, rivals: Iterable[str]) -> pb.Refusal:
    """Return what a node is told that registers under the name of a group to which it does not belong."""
    group = f'broker group "{route.group}" of cluster "{route.cluster}"'
    return pb.Refusal(
        code=pb.OTHER_GROUP,
        message=(
            f"{node_id} belongs to another {group} than the one that is registered here, with {', '.join(rivals)}: two groups "
            f"were made under one name. No client is sent to {node_id}. Stop it, or the others; a group that is to stay beside "
            "the other one needs a name of its own, which it gets when it is made. This node goes on asking"
        ),
        retryable=True,
    )
