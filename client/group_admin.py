"""Growing and shrinking a cluster by whole broker groups: give a new one the topics, drain one, take it back, remove it.

    async with GroupAdmin("127.0.0.1:9876") as admin:
        await admin.add_group("g1")
        await admin.drain("g0")

Owns: what is asked of all broker groups before one is changed, and in which order things are done.
Must not: judge what a broker judges (whether a group may be removed), wait for consumers (its callers do).
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any

from ledgermq.proto import admin_pb2 as pb
from ledgermq.proto import log_pb2, log_pb2_grpc, route_pb2

from .admin import Admin
from .calls import call_group
from .errors import FencedError, UsageError
from .group_copy import ORDERED_TYPES, Comparison, compare_consumer_groups, compare_topics
from .routes import check_address
from .topic_route import BrokerGroup, Node

logger = logging.getLogger(__name__)

_TOPICS_NAMED = 5


@dataclass(frozen=True, slots=True)
class AddedGroup:
    """What a broker group got, or (`dry_run`) would get."""

    group: str
    topics: Comparison[route_pb2.TopicInfo]
    consumer_groups: Comparison[pb.ConsumerGroupInfo]
    dry_run: bool
    draining: bool  # it was being drained before, and is left so

    @property
    def conflicts(self) -> list[str]:
        return self.topics.conflicts + self.consumer_groups.conflicts


class GroupAdmin(Admin):
    """An `Admin` that also changes which broker groups a cluster has. Raises what `Admin` raises, and UsageError."""

    async def group(self, name: str, node: str = "") -> BrokerGroup:
        """Return a broker group; `node` (host:port of a log port): one that no nameserver lists. Raises: UsageError."""
        if node:
            check_address(node, "the address of a node's log port", 8082)
            return BrokerGroup("", name, 0, "", (Node("", node, "", True),), True)
        groups = await self.groups()
        found = next((each for each in groups if each.name == name), None)
        if found is None:
            known = ", ".join(each.name for each in groups)
            raise UsageError(
                f'broker group "{name}" is not known to the nameservers',
                f"Known: {known}. Nothing was changed",
                "Start its nodes with the same nameservers; of a group that was removed, name a node: --node HOST:8082",
            )
        return found

    # --- drain, take back, remove -----------------------------------------------------------------------------

    async def drain(
        self, name: str, *, allow_reordering: bool = False, even_the_last: bool = False
    ) -> pb.SetBrokerGroupModeResponse:
        """Let a group take no new messages; all else goes on. Returns when that is stored on a majority of its nodes.

        Raises: UsageError: no other group takes messages; or messages of ordered topics are not consumed, and later ones of
        their message groups, which then go to other queues, could overtake them.
        """
        group = await self.group(name)
        others = [each for each in await self.groups() if each.name != name and not each.draining]
        if not others and not even_the_last and not group.draining:
            raise UsageError(
                f'no other broker group takes messages than "{name}"',
                "Drained, it would leave producers nowhere to send to. Nothing was changed",
                "Add a group first (docs/runbook.md, Grow and shrink), or insist: --even-the-last",
            )
        if not (allow_reordering or group.draining):
            await self._check_order(await self._ordered_of(name), "drain")
        return await self._set_mode(group, route_pb2.MODE_DRAINING)

    async def undrain(
        self, name: str, *, allow_reordering: bool = False, node: str = ""
    ) -> pb.SetBrokerGroupModeResponse:
        """Let a group take messages again, also (`node`: host:port of its log port) one that was removed.

        Raises: UsageError: messages of ordered topics are not consumed, see `drain`.
        """
        group = await self.group(name, node)
        if not allow_reordering and not node and group.draining:
            await self._check_order(await self._ordered_of(name), "take back")
        return await self._set_mode(group, route_pb2.MODE_ACTIVE)

    async def remove_group(self, name: str, *, force: bool = False) -> pb.SetBrokerGroupModeResponse:
        """Take a drained and consumed group out of the cluster: no nameserver lists it any more. Its nodes keep their data.

        `force`: also one that takes messages or holds some that nobody consumed. Raises: RefusedError.
        """
        return await self._set_mode(await self.group(name), route_pb2.MODE_REMOVED, force=force)

    async def _set_mode(
        self, group: BrokerGroup, mode: route_pb2.BrokerGroupMode, *, force: bool = False
    ) -> pb.SetBrokerGroupModeResponse:
        request = pb.SetBrokerGroupModeRequest(group=group.name, mode=mode, force=force)
        return await self._call(
            group, lambda stub, timeout: stub.SetBrokerGroupMode(request, timeout=timeout)
        )

    async def progress(
        self, consumer_group: str = "", topic: str = "", *, broker_group: str = ""
    ) -> list[tuple[str, pb.TopicProgress]]:
        """Return (broker group, progress) of consumer groups in topics; "" is all of them."""
        groups = [await self.group(broker_group)] if broker_group else await self.groups()
        request = pb.GetProgressRequest(group=consumer_group, topic=topic)
        found = []
        for group in groups:
            answer = await self._call(group, lambda stub, timeout: stub.GetProgress(request, timeout=timeout))
            found += [(group.name, each) for each in answer.topics]
        return found

    async def _ordered_of(self, group: str) -> set[str]:
        return {info.name for info in await self._topics_of(group) if info.message_type in ORDERED_TYPES}

    async def _check_order(self, ordered: Collection[str], what: str) -> None:
        """Messages of a message group share a queue, which changes with the number of queues that take messages.

        Raises: UsageError: there are some that are not consumed, in any broker group.
        """
        if not ordered:
            return
        left = {each.topic for _, each in await self.progress() if each.group and each.behind}
        found = sorted(left & set(ordered))
        if found:
            names = ", ".join(found[:_TOPICS_NAMED]) + (", ..." if len(found) > _TOPICS_NAMED else "")
            raise UsageError(
                f"ordered topics have messages that are not consumed: {names}",
                f"To {what} a group moves message groups to other queues, where later messages could overtake those. "
                "Nothing was changed",
                "Stop who sends to these topics, wait until they are consumed (ledgermq group lag), and try again; or let "
                "it happen: --allow-reordering",
            )

    # --- add --------------------------------------------------------------------------------------------------

    async def add_group(
        self,
        name: str,
        *,
        source: str = "",
        topics: Sequence[str] = (),
        dry_run: bool = False,
        allow_reordering: bool = False,
    ) -> AddedGroup:
        """Give a group the topics and consumer groups of the others (of `source` alone), or only these `topics`.

        What is there stays as it is. Consumer groups that consume a topic elsewhere begin at the first message of its new
        queues. Running clients take the new queues into use by themselves. May be repeated. Raises: UsageError.
        """
        group = await self.group(name)
        names = [each.name for each in await self.groups() if each.name != name]
        if source and source not in names:
            raise UsageError(
                f'broker group "{source}" is not another group', f"The others: {', '.join(names)}"
            )
        sources = [source] if source else names
        if not sources:
            raise UsageError(f'"{name}" is the only broker group', "There is nothing to take topics from")
        theirs = {each: await self._topics_of(each) for each in sources}
        found = compare_topics(name, await self._topics_of(name), theirs, topics)
        unknown = set(topics) - {info.name for infos in theirs.values() for info in infos}
        if unknown:
            raise UsageError(f"no other group has {', '.join(sorted(unknown))}", "Nothing was changed")
        groups = {each: await self._consumer_groups_of(each) for each in sources}
        consumers = compare_consumer_groups(name, await self._consumer_groups_of(name), groups)
        added = AddedGroup(name, found, consumers, dry_run, group.draining)
        if found.missing and not allow_reordering and not group.draining:
            ordered = {info.name for info in found.missing if info.message_type in ORDERED_TYPES}
            ordered |= await self._ordered_of(name)  # it takes no messages while it is filled
            await self._check_order(ordered, "add")
        if not dry_run:
            await self._copy(group, added)
        return added

    async def _copy(self, group: BrokerGroup, added: AddedGroup) -> None:
        """Create what is missing. No message may come into a new queue before it is known where groups begin in it."""
        for consumer_group in added.consumer_groups.missing:
            await self._create_consumer_group(group, consumer_group)
        missing = added.topics.missing
        if not missing and not added.draining:
            return
        # Who drained it already, although the route does not tell yet, wants it to stay so.
        own_drain = not added.draining and (await self._set_mode(group, route_pb2.MODE_DRAINING)).changed
        try:
            for info in missing:
                await self._create_topic(group, info)
            names = {info.name for info in missing} | set(added.topics.existing if added.draining else ())
            await self._begin_all(group, names)
        except BaseException:
            logger.error("broken off, the group takes no messages yet broker_group=%s", group.name)
            raise
        if own_drain:
            await self._set_mode(group, route_pb2.MODE_ACTIVE)
        for info in missing:
            await self._routes.until_known(info.name, [group.name])

    async def _begin_all(self, group: BrokerGroup, topics: Collection[str]) -> None:
        """Let every consumer group that consumes one of these topics elsewhere begin at the first message here."""
        begun = {
            (each.group, each.topic) for _, each in await self.progress(broker_group=group.name) if each.group
        }
        for where, each in await self.progress():
            if where == group.name or not each.group or each.topic not in topics:
                continue
            if (each.group, each.topic) not in begun:
                begun.add((each.group, each.topic))
                await self._begin(group, each.group, each.topic)

    async def _begin(self, group: BrokerGroup, consumer_group: str, topic: str) -> None:
        request = pb.DescribeTopicRequest(topic=topic)
        described = await self._call(
            group, lambda stub, timeout: stub.DescribeTopic(request, timeout=timeout)
        )
        commit = log_pb2.CommitOffsetsRequest(group=consumer_group)
        for queue in described.queues:
            commit.offsets.add(topic=topic, queue_id=queue.queue_id, offset=queue.begin_offset)

        def send(channel: Any, timeout_s: float) -> Any:
            return log_pb2_grpc.LogServiceStub(channel).CommitOffsets(commit, timeout=timeout_s)

        try:
            await call_group(lambda: group, self._channels, send, timeout_s=self._timeout_s)
        except FencedError:
            logger.info(
                "consumers were quicker topic=%s group=%s", topic, consumer_group
            )  # the queues are empty

    async def _create_topic(self, group: BrokerGroup, info: route_pb2.TopicInfo) -> None:
        request = pb.CreateTopicRequest(
            topic=info.name,
            queue_count=info.queue_count,
            message_type=info.message_type,
            retention_ms=info.retention_ms,
            if_not_exists=True,
        )
        await self._call(group, lambda stub, timeout: stub.CreateTopic(request, timeout=timeout), request)

    async def _create_consumer_group(self, group: BrokerGroup, info: pb.ConsumerGroupInfo) -> None:
        request = pb.CreateGroupRequest(group=info, if_not_exists=True)
        await self._call(group, lambda stub, timeout: stub.CreateGroup(request, timeout=timeout), request)

    async def _topics_of(self, group: str) -> list[route_pb2.TopicInfo]:
        request = pb.ListTopicsRequest()
        answer = await self._call(
            await self.group(group), lambda stub, timeout: stub.ListTopics(request, timeout=timeout)
        )
        return list(answer.topics)

    async def _consumer_groups_of(self, group: str) -> list[pb.ConsumerGroupInfo]:
        request = pb.ListConsumerGroupsRequest()
        answer = await self._call(
            await self.group(group), lambda stub, timeout: stub.ListGroups(request, timeout=timeout)
        )
        return list(answer.groups)
