"""Consumer progress: queries of each broker group, some of which may not answer.

Owns: the choice of broker groups, and how silent or gone ones are shown. Must not: change anything.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

import grpc

from ledgermq.proto import admin_pb2 as pb
from ledgermq.proto import route_pb2

from ..arguments import a_consumer_group, a_flag, a_text, a_topic, checked, empty_or
from ..cluster.every_group import Silent, ask_all
from ..cluster.routes import check_address
from ..cluster.topic_route import BrokerGroup, Node
from ..errors import NoQuorumError, UsageError
from ..pauses import ASK_TIMEOUT_S
from ..trace.events import TRACE_TOPIC
from .admin import NEITHER, Admin, Method, Stub

T = TypeVar("T")


@dataclass(slots=True)
class Lag:
    """Progress of consumer groups in the broker groups that answered."""

    rows: list[tuple[str, pb.TopicProgress]]  # (broker group, progress)
    #: (consumer group, broker group, progress)
    queues: list[tuple[str, str, pb.GroupQueueProgress]] = field(default_factory=list)
    silent: Silent = field(default_factory=dict)  # by broker group: why it is missing


class ConsumerGroupProgress(Admin):
    """An `Admin` that also reports consumer progress. Raises what `Admin` raises, and UsageError."""

    @checked(name=a_text, node=a_text)
    async def group(self, name: str, node: str = "") -> BrokerGroup:
        """Return a broker group. Raises: UsageError.

        `node` (host:port of a log port): return one that no nameserver lists.
        """
        if node:
            check_address(node, "the address of a node's log port", 8082)
            return BrokerGroup("", name, 0, "", (Node("", node, "", True),), True)
        groups, gone = await self._routes.groups_and_gone()
        found = next((each for each in groups if each.name == name), None)
        if found is None:
            known = ", ".join(each.name for each in groups)
            down = next((each for each in gone if each.name == name), None)
            if down is not None:
                raise down.refusal
            raise UsageError(
                f'broker group "{name}" is not known to the nameservers',
                f"Known: {known}. Nothing was changed",
                f"Start its nodes with the same nameservers. "
                f"If it was removed: ledgermq cluster undrain {name} --node HOST:8082",
            )
        return found

    @checked(consumer_group=empty_or(a_consumer_group), topic=empty_or(a_topic), broker_group=a_text)
    async def progress(
        self, consumer_group: str = "", topic: str = "", *, broker_group: str = ""
    ) -> list[tuple[str, pb.TopicProgress]]:
        """Return (broker group, progress) of consumer groups in topics; "": all of them."""
        groups = [await self.group(broker_group)] if broker_group else await self._every_group()
        request = pb.GetProgressRequest(group=consumer_group, topic=topic)
        return [
            (known.name, each)
            for known in groups
            for each in (await self._ask_progress(known, request)).topics
        ]

    async def _reading(self, broker_group: BrokerGroup) -> list[pb.LiveReading]:
        """Return readers of the broker group's topics that lag and store no progress there.

        Includes only what the nodes that answer tell.
        """

        async def ask(node: Node) -> Sequence[pb.LiveReading]:
            stub = Stub(self._channels.get(node.log_address))
            try:
                answer = await stub.GetStatus(pb.GetStatusRequest(readers=True), timeout=ASK_TIMEOUT_S)
            except grpc.RpcError:
                return ()
            return answer.readers if answer.group == broker_group.name else ()

        found: dict[tuple[str, str], pb.LiveReading] = {}
        for told in await asyncio.gather(*map(ask, broker_group.nodes)):
            for each in told:
                known = found.setdefault((each.group, each.topic), each)
                if known is not each:
                    known.streams += each.streams
                    known.behind = max(known.behind, each.behind)
        return [found[key] for key in sorted(found)]

    async def _ask_progress(
        self, broker_group: BrokerGroup, request: pb.GetProgressRequest
    ) -> pb.GetProgressResponse:
        asked = pb.GetProgressRequest()
        asked.CopyFrom(request)
        asked.cluster = broker_group.cluster  # others may have its addresses now
        asked.broker_group, asked.broker_group_id = broker_group.name, broker_group.group_id
        return await self._call(broker_group, lambda stub: stub.GetProgress, asked)

    @checked(consumer_group=empty_or(a_consumer_group), topic=empty_or(a_topic), queues=a_flag)
    async def lag(self, consumer_group: str = "", topic: str = "", *, queues: bool = False) -> Lag:
        """Return the progress of consumer groups ("": all) in the broker groups that answer.

        `queues`: also per queue. Raises: ConsumerGroupNotFoundError, TopicNotFoundError; errors of the
        broker groups, if no answer overrides them.
        """
        groups, gone = await self._routes.groups_and_gone()
        away: Silent = {each.name: each.error for each in gone}
        if consumer_group:
            described, silent = await self._describe_in(groups, consumer_group, topic)
            if not described:
                why = next(iter((silent | away).values()), None)
                raise why or await self._group_not_found(consumer_group, topic)
        request = pb.GetProgressRequest(group=consumer_group, topic=topic)
        answers, silent = await ask_all(
            groups, lambda broker_group: self._ask_progress(broker_group, request)
        )
        if silent and not answers:
            raise next(iter(silent.values()))
        silent |= away
        found = Lag(
            [(broker_group.name, row) for broker_group, answer in answers for row in answer.topics],
            silent=silent,
        )
        if topic and not found.rows:
            await self._check_topic([broker_group for broker_group, _ in answers], topic, silent)
        for name in sorted({row.group for _, row in found.rows if row.group}) if queues else ():
            described, quiet = await self._describe_in(
                [broker_group for broker_group, _ in answers], name, topic
            )
            found.silent |= quiet
            found.queues += [(name, where, each) for where, answer in described for each in answer.queues]
        return found

    async def _describe_in(
        self, groups: Sequence[BrokerGroup], name: str, topic: str
    ) -> tuple[list[tuple[str, pb.DescribeGroupResponse]], Silent]:
        """Describe a consumer group in broker groups that know it. Also return the errors of silent ones."""
        request = pb.DescribeGroupRequest(name=name, topic=topic)

        ask = self._in_each(lambda stub: stub.DescribeGroup, request, absent=NEITHER)
        answers, silent = await ask_all(groups, ask)
        return [(broker_group.name, answer) for broker_group, answer in answers if answer is not None], silent

    async def _check_topic(self, groups: Sequence[BrokerGroup], topic: str, silent: Silent) -> None:
        """Check that a topic exists.

        Raises: TopicNotFoundError; the error of a silent broker group if that may have the topic.
        """
        answers, more = await ask_all(groups, self._topics_in)
        if topic == TRACE_TOPIC or any(info.name == topic for _, infos in answers for info in infos):
            return
        if error := next(iter((*silent.values(), *more.values())), None):
            raise error
        raise await self._topic_not_found(topic)

    async def _progress_of_all(self, *, without: str = "") -> tuple[list[pb.TopicProgress], Silent]:
        """Query the progress in all broker groups concurrently. Also return the errors of silent ones.

        Includes broker groups without a running node: their messages and consumers return with them.
        """
        known = await self._routes.groups(gone_too=True)
        groups = [each for each in known if each.name != without]
        answers, silent = await ask_all(
            groups, lambda broker_group: self._ask_progress(broker_group, pb.GetProgressRequest())
        )
        return [row for _, answer in answers for row in answer.topics], silent

    async def _topics_in(self, broker_group: BrokerGroup) -> list[route_pb2.TopicInfo]:
        """Return the users' topics. Nodes create the trace topic themselves, if they are configured to."""
        request = pb.ListTopicsRequest()
        answer = await self._call(broker_group, lambda stub: stub.ListTopics, request)
        return [info for info in answer.topics if info.name != TRACE_TOPIC]

    async def _call(self, broker_group: BrokerGroup, method: Method[T], request: Any) -> T:
        try:
            return await super()._call(broker_group, method, request)
        except NoQuorumError as error:  # name the broker group
            named = NoQuorumError(error.code, f'broker group "{broker_group.name}": {error}')
            named.perhaps_done = error.perhaps_done
            raise named from error
