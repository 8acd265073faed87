"""Group id comparison of nodes with equal names, and the list of nodes refused lately because of it.

Owns: the comparison, a bounded list of refused nodes. Must not: read clocks (callers pass `now` in ms), send.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from ledgermq.proto import nameserver_pb2 as ns
from ledgermq.proto import route_pb2 as pb
from ledgermq.proto.group_ids import are_related

#: Maximum number of refused nodes to remember, and for how many ms after their last attempt.
MAX_STRANGERS: Final = 64
SHOWN_MS: Final = 10_000


def belongs_to(one: pb.GroupRoute, other: pb.GroupRoute, told: Iterable[pb.GroupRoute] = ()) -> bool:
    """Return whether two nodes that name the same broker group belong to the same one, as far as they and
    `told` know.

    The id differs between generations of a broker group that was recovered, or in which a master was
    promoted. The later generation names the earlier one. A node that joined the later one without data does
    not know the earlier one.
    """
    if are_related(one.group_id, one.former_group_ids, other.group_id, other.former_group_ids):
        return True
    ids = {one.group_id, other.group_id}
    return any(each.group_id in ids and not ids.isdisjoint(each.former_group_ids) for each in told)


class Strangers:
    """Nodes that tried to register under the name of a broker group that is not theirs."""

    def __init__(self) -> None:
        self._seen: dict[tuple[str, str, str, int], tuple[int, pb.NodeInfo]] = {}

    def note(self, node_id: str, route: pb.GroupRoute, now: int) -> bool:
        """Record a refused node.

        Returns whether to log it: it was not refused lately, and the list is not full.
        """
        self._drop_old(now)
        key = (route.cluster, route.group, node_id, route.group_id)
        is_new = self._seen.pop(key, None) is None and len(self._seen) < MAX_STRANGERS
        info = next((each for each in route.nodes if each.node_id == node_id), pb.NodeInfo(node_id=node_id))
        self._seen[key] = now, info
        while len(self._seen) > MAX_STRANGERS:
            del self._seen[next(iter(self._seen))]
        return is_new

    def lately(self, cluster: str, listener: str, now: int) -> list[ns.Stranger]:
        """Return the nodes of `cluster` ("": of all) that were refused lately, with the addresses of a
        listener.
        """
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
    """Return the refusal for a node that registers under the name of a broker group to which it does not
    belong.
    """
    group = f'broker group "{route.group}" of cluster "{route.cluster}"'
    return pb.Refusal(
        code=pb.OTHER_GROUP,
        message=(
            f"{node_id} belongs to another {group} than the one that is registered here, with "
            f"{', '.join(rivals)}: two groups were made under one name. No client is sent to {node_id}. Stop "
            "it, or the others; a group that is to stay beside the other one needs a name of its own, which "
            "it gets when it is made. This node goes on asking"
        ),
        retryable=True,
    )
