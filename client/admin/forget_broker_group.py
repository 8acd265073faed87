"""Removing a permanently lost broker group from the lists of all nameservers.

Owns: the check that none of its nodes is alive, as far as that can be known. Must not: ask people.
Nothing is deleted: a node of it that returns after all registers again, with its data.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from ledgermq.proto import nameserver_pb2 as ns
from ledgermq.proto import nameserver_pb2_grpc
from ledgermq.proto.grpc_answers import decoded

from ..arguments import a_text, checked
from ..cluster.gone_groups import GoneGroup, gone_of
from ..cluster.topic_route import Node
from ..errors import LedgerMQError, NameserversDownError, NotANameserverError, UsageError, error_of
from ..pauses import ASK_TIMEOUT_S
from .consumer_progress import GroupProgress

# the live broker groups, and the answer that includes gone ones
Listed = tuple[ns.ListGroupsResponse, ns.ListGroupsResponse]


@dataclass(frozen=True, slots=True)
class LostGroup:
    """A broker group without a running node, and its topics as far as the nameservers remember."""

    gone: GoneGroup  # from the nameserver with the latest contact
    alone: Sequence[str]  # topics that no other broker group has


@dataclass(frozen=True, slots=True)
class Forgotten:
    """Nameservers that dropped a broker group; `silent`: those that may not have, with the errors."""

    nameservers: Sequence[str]
    silent: Mapping[str, LedgerMQError] = field(default_factory=dict)


class GroupForgetting(GroupProgress):
    """A `GroupProgress` that also removes lost broker groups from the nameservers' lists."""

    @checked(name=a_text)
    async def lost_group(self, name: str) -> LostGroup:
        """Return what is lost with a broker group.

        Raises: UsageError: one of its nodes is alive, or no nameserver remembers it. NameserversDownError.
        """
        answers, _ = await self._routes.ask_every(self._listed)
        if not answers:
            raise NameserversDownError(self._routes.nameservers)
        found: list[GoneGroup] = []
        for address, (listed, every) in answers.items():
            if (view := next((each for each in listed.groups if each.group == name), None)) is not None:
                nodes = [node.node_id for node in view.nodes]
                raise _lives(name, f"the nameserver {address} lists its nodes {', '.join(nodes)}")
            found += [each for each in gone_of(listed, every) if each.name == name]
        if not found:
            raise _not_remembered(name, answers.values())
        if len(clusters := sorted({each.group.cluster for each in found})) > 1:
            raise UsageError(
                f'clusters {", ".join(clusters)} each have a broker group "{name}" that is down',
                "Nothing was changed",
                "Use GroupAdmin(nameservers, cluster=...) in Python, which says which one is meant",
            )
        await self._check_nodes(name, found)
        newest = min(found, key=lambda each: (each.silent_ms is None, each.silent_ms or 0))
        others = {
            info.name for listed, _ in answers.values() for view in listed.groups for info in view.topics
        }
        return LostGroup(newest, [topic for topic in newest.topics if topic not in others])

    async def _listed(self, stub: nameserver_pb2_grpc.NameServerServiceStub) -> Listed:
        request = ns.ListGroupsRequest(cluster=self._routes.cluster)
        listed = decoded(await stub.ListGroups(request, timeout=ASK_TIMEOUT_S))
        request.gone_too = request.gone_topics = True
        return listed, decoded(await stub.ListGroups(request, timeout=ASK_TIMEOUT_S))

    async def _check_nodes(self, name: str, found: Iterable[GoneGroup]) -> None:
        """Query the nodes themselves: they may run without reaching a nameserver. Raises: UsageError."""
        clusters = {each.group.cluster for each in found}
        nodes = {node.log_address: node for each in found for node in each.group.nodes}

        async def lives(node: Node) -> bool:
            try:
                answer = await self.status(node)
            except LedgerMQError:
                return False
            return answer.group == name and answer.cluster in clusters

        for node, is_alive in zip(
            nodes.values(), await asyncio.gather(*map(lives, nodes.values())), strict=True
        ):
            if is_alive:
                raise _lives(name, f"its node {node.node_id} answers at {node.log_address}")

    @checked(name=a_text)
    async def forget_group(self, name: str) -> Forgotten:
        """Remove a permanently lost broker group from the lists of all nameservers. May be repeated.

        Raises: as `lost_group`.
        """
        lost = await self.lost_group(name)
        request = ns.ForgetGroupRequest(cluster=lost.gone.group.cluster, group=name)
        answers, silent = await self._routes.ask_every(
            lambda stub: stub.ForgetGroup(request, timeout=ASK_TIMEOUT_S)
        )
        for address, error in silent.items():
            if isinstance(error, NotANameserverError):
                silent[address] = _too_old(address)
        done = []
        for address, answer in answers.items():
            if answer.refusal.code:
                silent[address] = error_of(answer.refusal)
            else:
                done.append(address)
        return Forgotten(done, silent)


def _lives(name: str, how: str) -> UsageError:
    return UsageError(
        f'broker group "{name}" is not lost: {how}',
        "Nothing was changed",
        "A nameserver drops a node that has just died within seconds: repeat it then. "
        "To take a living group out: ledgermq "
        f"cluster drain {name}, then ledgermq cluster remove-group {name}",
    )


def _not_remembered(name: str, answers: Iterable[Listed]) -> UsageError:
    gone = sorted({each.name for listed, every in answers for each in gone_of(listed, every)})
    return UsageError(
        f'no nameserver remembers a broker group "{name}"',
        f"Those that are down: {', '.join(gone) or 'none'}. Nothing was changed",
        "See: ledgermq cluster status",
    )


def _too_old(address: str) -> LedgerMQError:
    return LedgerMQError(
        f"the nameserver {address} is of an older version, which cannot forget a group",
        "",
        "Start it again: then it remembers none",
    )
