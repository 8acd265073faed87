"""Growing and shrinking a cluster by broker groups: add, drain, undrain, remove, forget.

    async with BrokerGroupAdmin("127.0.0.1:9876") as admin:
        await admin.add_group("g1")
        await admin.drain("g0")

Owns: the checks in all broker groups before one is changed, and the order of the steps.
Must not: decide what a broker decides (whether it may be removed), wait for consumers (its callers do).
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from ledgermq.proto import admin_pb2 as pb
from ledgermq.proto import log_pb2, nameserver_pb2, nameserver_pb2_grpc, route_pb2

from ..arguments import a_flag, a_text, checked, instance_of, texts
from ..cluster.calls import call_log_service
from ..cluster.every_group import Silent
from ..cluster.gone_groups import GoneBrokerGroup, gone_of
from ..cluster.topic_route import BrokerGroup, Node
from ..errors import (
    FencedError,
    LedgerMQError,
    NameserversDownError,
    NotANameserverError,
    RouteError,
    UsageError,
    error_of,
    shortened,
)
from ..pauses import ASK_TIMEOUT_S, NAMESERVER_LOOK_S, NAMESERVER_WAIT_S
from .broker_group_rules import (
    ORDERED_TYPES,
    OtherBrokerGroup,
    RuleComparison,
    check_kept,
    compare_consumer_groups,
    compare_topics,
    left_alone,
)
from .consumer_progress import ConsumerGroupProgress

logger = logging.getLogger(__name__)

_WHY_NOT = {route_pb2.MODE_DRAINING: "is being drained", route_pb2.MODE_REMOVED: "was removed"}

#: The live broker groups, and the answer that includes gone ones.
Listed = tuple[nameserver_pb2.ListGroupsResponse, nameserver_pb2.ListGroupsResponse]


@dataclass(frozen=True, slots=True)
class LostBrokerGroup:
    """A broker group without a running node, and its topics as far as the nameservers remember."""

    gone: GoneBrokerGroup  # from the nameserver with the latest contact
    alone: Sequence[str]  # topics that no other broker group has


@dataclass(frozen=True, slots=True)
class Forgotten:
    """Nameservers that dropped a broker group; `silent`: those that may not have, with the errors."""

    nameservers: Sequence[str]
    silent: Mapping[str, LedgerMQError] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class AddedBrokerGroup:
    """What a broker group got, or (`dry_run`) would get."""

    group: str
    topics: RuleComparison[route_pb2.TopicInfo]
    consumer_groups: RuleComparison[pb.ConsumerGroupInfo]
    dry_run: bool
    draining: bool  # it was being drained before, and remains so

    @property
    def conflicts(self) -> list[str]:
        return self.topics.conflicts + self.consumer_groups.conflicts


@dataclass(frozen=True, slots=True)
class Left:
    """What a broker group holds that was not consumed, as it reports itself.

    A consumer group that consumes a topic only in other broker groups has consumed nothing of it here.
    """

    mode: route_pb2.BrokerGroupMode
    rows: Sequence[pb.TopicProgress]  # consumer group "": no consumer group consumes that topic anywhere
    unheard: Sequence[str] = ()  # broker groups that did not report their consumers
    # consumers that read now, lag, and store no progress there
    reading: Sequence[pb.LiveReading] = ()
    parked: Sequence[pb.TopicProgress] = ()  # not waited for: delivered again only after a release

    @property
    def waiting(self) -> list[pb.TopicProgress]:
        """Progress of the consumer groups that still have messages to consume."""
        return [row for row in self.rows if row.group]

    @property
    def is_unfinished(self) -> bool:
        """Whether consumers need more, or may."""
        return bool(self.waiting or self.unheard or self.reading)


def reading_text(each: pb.LiveReading) -> str:
    """Describe a reader, its topic and how far it is behind."""
    who = f'consumer group "{each.group}"' if each.group else "a consumer without a consumer group"
    return f'{who} reads topic "{each.topic}", {each.behind:,} messages behind'


class BrokerGroupAdmin(ConsumerGroupProgress):
    """Changes which broker groups a cluster has. Raises what `Admin` raises, and UsageError.

    Example:

        async with BrokerGroupAdmin("127.0.0.1:9876") as admin:
            await admin.add_group("g1")
            await admin.drain("g0")
            print((await admin.left("g0")).waiting)
    """

    # --- drain, take back, remove ---------------------------------------------------------------------------

    @checked(name=a_text, allow_reordering=a_flag, even_the_last=a_flag)
    async def drain(
        self, name: str, *, allow_reordering: bool = False, even_the_last: bool = False
    ) -> pb.SetBrokerGroupModeResponse:
        """Stop new messages to a broker group; all else goes on. Returns once a majority has stored it.

        `even_the_last`: also if no other broker group takes messages, of all topics or of some.
        Raises: UsageError: no other broker group takes the messages; or that became so meanwhile, and the
        drain was undone; or messages of ordered topics are not consumed, and later ones of their message
        groups, which then go to other queues, could overtake them. RouteError: a broker group that must tell
        does not answer.
        """
        broker_group = await self.group(name)
        needs_others = not (even_the_last or broker_group.draining)
        if needs_others and (alone := await self._left_alone(broker_group)) is not None:
            raise alone
        if not (allow_reordering or broker_group.draining):
            await self._check_order(await self._ordered_in(broker_group), "drain")
        answer = await self._set_mode(broker_group, route_pb2.MODE_DRAINING)
        if needs_others and answer.changed:
            await self._check_again(broker_group)
        return answer

    async def _check_again(self, broker_group: BrokerGroup) -> None:
        """Check again after the drain: of two operators who drain at once, both pass the first check.

        Each checks again after its own drain, so the later one finds both drained, and undoes its own.
        Raises: UsageError: the drain was undone. RouteError: it was not, or it is unknown whether it should
        be.
        """
        name = broker_group.name
        undo = f"Take it back: ledgermq cluster undrain {name}"
        try:
            alone = await self._left_alone(broker_group)
            if alone is not None:
                await self._set_mode(broker_group, route_pb2.MODE_ACTIVE)
        except LedgerMQError as error:
            raise RouteError(
                f"{name} is being drained, and whether another broker group still takes its topics is not "
                f"certain: {error.what}",
                "It was so before the drain",
                f"See: ledgermq cluster status. {undo}",
            ) from error
        if alone is not None:
            raise UsageError(
                f"{name} was drained and taken back: {alone.what}",
                "That was not so before the drain: another broker group is being drained, or fell silent. "
                f"{name} takes messages again",
                alone.next_step,
            )

    async def _left_alone(self, broker_group: BrokerGroup) -> UsageError | None:
        """Return why a broker group must not be drained: some topic has no other taker. None: it may."""
        name = broker_group.name
        groups, gone = await self._routes.groups_and_gone()
        others = await asyncio.gather(*(self._as_it_is(each) for each in groups if each.name != name))
        others += [OtherBrokerGroup(each.name, "is down") for each in gone]
        takers = [each.name for each in others if not each.why_not]
        if not takers:
            others_are = "".join(f"; {each.name} {each.why_not}" for each in others)
            return UsageError(
                f'no other broker group takes messages than "{name}"{others_are}',
                "Drained, it would leave producers nowhere to send to. Nothing was changed",
                "Add a broker group first (docs/runbook.md, Grow and shrink), or insist: --even-the-last",
            )
        if alone := left_alone(await self._topics_in(broker_group), others):
            named = shortened([f"{topic} ({why})" for topic, why in alone.items()])
            return UsageError(
                f"no other broker group takes messages of: {named}",
                f'Drained, "{name}" would leave their producers nowhere to send to. Nothing was changed',
                f"Give another broker group what it lacks (ledgermq cluster add-group {takers[0]}) and "
                "repeat it, or insist: --even-the-last",
            )
        return None

    async def _as_it_is(self, broker_group: BrokerGroup) -> OtherBrokerGroup:
        """Return a broker group as its leader reports it: a route may be outdated."""
        try:
            topics = await self._topics_in(broker_group)
            mode = await self._mode_of(broker_group)
        except LedgerMQError as error:
            if not error.retryable:
                raise
            return OtherBrokerGroup(broker_group.name, "has no leader, or does not answer")
        full = "has a full disk" if not (broker_group.writable or broker_group.draining) else ""
        return OtherBrokerGroup(
            broker_group.name, _WHY_NOT.get(mode, full), {info.name: info for info in topics}
        )

    @checked(name=a_text, allow_reordering=a_flag, node=a_text)
    async def undrain(
        self, name: str, *, allow_reordering: bool = False, node: str = ""
    ) -> pb.SetBrokerGroupModeResponse:
        """Let a broker group take messages again.

        `node` (host:port of its log port): for one that was removed.
        Raises: UsageError: messages of ordered topics are not consumed, see `drain`.
        """
        broker_group = await self.group(name, node)
        if not allow_reordering and await self._mode_of(broker_group) != route_pb2.MODE_ACTIVE:
            await self._check_order(await self._ordered_in(broker_group), "take back")
        return await self._set_mode(broker_group, route_pb2.MODE_ACTIVE)

    @checked(name=a_text, force=a_flag)
    async def remove_group(self, name: str, *, force: bool = False) -> pb.SetBrokerGroupModeResponse:
        """Remove a drained and consumed broker group from all nameservers. Its nodes keep their data.

        A consumer group that consumes its topics only in other broker groups has consumed nothing of it.
        `force`: also remove one that takes messages, or holds messages that were not consumed. Raises:
        RefusedError; RouteError: a broker group does not report its consumers; UsageError: consumers that
        store no progress there read it now, and lag.
        """
        broker_group = await self.group(name)
        if force:
            return await self._leave(
                broker_group, await self._set_mode(broker_group, route_pb2.MODE_REMOVED, force=True)
            )
        consumers, silent = await self._consumers_elsewhere(name)
        if silent:
            raise _not_heard("who consumes the topics", silent, "lose what they may lack: --force")
        if reading := await self._reading(broker_group):
            raise UsageError(
                f"{shortened([reading_text(each) for each in reading])}, "
                f"and broker group {name} does not know how far they are",
                "Nothing was changed",
                f"Wait for them (ledgermq cluster drain {name} --wait), or let them lose it: --force",
            )
        return await self._leave(
            broker_group, await self._set_mode(broker_group, route_pb2.MODE_REMOVED, consumers=consumers)
        )

    async def _leave(
        self, broker_group: BrokerGroup, removed: pb.SetBrokerGroupModeResponse
    ) -> pb.SetBrokerGroupModeResponse:
        """Wait until no answering nameserver lists a removed broker group; each node tells on its own."""
        end = time.monotonic() + NAMESERVER_WAIT_S
        request = nameserver_pb2.ListGroupsRequest(cluster=broker_group.cluster)
        while time.monotonic() < end:
            answers, _ = await self._routes.ask_every(
                lambda stub: stub.ListGroups(request, timeout=NAMESERVER_WAIT_S)
            )
            views = [view for answer in answers.values() for view in answer.groups]
            if not any(
                (view.group, view.group_id) == (broker_group.name, broker_group.group_id) for view in views
            ):
                return removed
            await asyncio.sleep(NAMESERVER_LOOK_S)
        logger.warning(
            "removed, and a nameserver still lists it: a node that is down, or just came back, "
            "broker_group=%s",
            broker_group.name,
        )
        return removed

    async def _set_mode(
        self,
        broker_group: BrokerGroup,
        mode: route_pb2.BrokerGroupMode,
        *,
        force: bool = False,
        consumers: Sequence[pb.TopicConsumer] = (),
    ) -> pb.SetBrokerGroupModeResponse:
        request = pb.SetBrokerGroupModeRequest(
            group=broker_group.name,
            mode=mode,
            force=force,
            consumers=consumers,
            cluster=broker_group.cluster,
            broker_group_id=broker_group.group_id,
        )
        return await self._call(broker_group, lambda stub: stub.SetBrokerGroupMode, request)

    # --- how far consumers are ------------------------------------------------------------------------------

    @checked(group=instance_of(BrokerGroup, "a BrokerGroup, as groups() returns them"))
    async def left(self, group: BrokerGroup) -> Left:
        """Return what a broker group holds that was not consumed, including one that no nameserver lists."""
        consumers, silent = await self._consumers_elsewhere(group.name)
        answer = await self._ask_progress(group, pb.GetProgressRequest(consumers=consumers))
        behind = [row for row in answer.topics if row.behind]
        parked = [row for row in answer.topics if row.parked]
        return Left(answer.mode, behind, sorted(silent), await self._reading(group), parked)

    async def _consumers_elsewhere(self, name: str) -> tuple[list[pb.TopicConsumer], Silent]:
        """Return (consumer group, topic) pairs of the other broker groups, and the errors of silent ones."""
        rows, silent = await self._progress_of_all(without=name)
        found = sorted({(row.group, row.topic) for row in rows if row.group})
        return [pb.TopicConsumer(group=consumer, topic=topic) for consumer, topic in found], silent

    async def _mode_of(self, broker_group: BrokerGroup) -> route_pb2.BrokerGroupMode:
        """Return the mode of a broker group as its leader reports it: the route may lag."""
        return (await self._ask_progress(broker_group, pb.GetProgressRequest())).mode

    async def _ordered_in(self, broker_group: BrokerGroup) -> set[str]:
        return {
            info.name for info in await self._topics_in(broker_group) if info.message_type in ORDERED_TYPES
        }

    async def _check_order(self, ordered: Collection[str], what: str) -> None:
        """Check that no message group can be reordered by a change in the number of writable queues.

        Messages of a message group share a queue, which depends on that number.
        Raises: UsageError: some are not consumed, in any broker group. RouteError: a broker group does not
        tell.
        """
        if not ordered:
            return
        rows, silent = await self._progress_of_all()
        found = sorted({row.topic for row in rows if row.group and row.behind} & set(ordered))
        if found:
            raise UsageError(
                f"ordered topics have messages that are not consumed: {shortened(found)}",
                f"To {what} a broker group moves message groups to other queues, where later messages could "
                "overtake those. Nothing was changed",
                "Stop who sends to these topics, wait until they are consumed (ledgermq group lag), and try "
                "again; or let it happen: --allow-reordering",
            )
        if silent:
            raise _not_heard(
                "whether messages of ordered topics are consumed", silent, "let it happen: --allow-reordering"
            )

    # --- add ------------------------------------------------------------------------------------------------

    @checked(name=a_text, source=a_text, topics=texts, dry_run=a_flag, allow_reordering=a_flag)
    async def add_group(
        self,
        name: str,
        *,
        source: str = "",
        topics: Sequence[str] = (),
        dry_run: bool = False,
        allow_reordering: bool = False,
    ) -> AddedBrokerGroup:
        """Give a broker group topics and consumer groups of the others (or of `source`), or only `topics`.

        What exists stays as it is. Consumer groups that consume a topic elsewhere begin at the first message
        of its new queues. Running clients start to use the new queues by themselves. May be repeated. Raises:
        UsageError.
        """
        broker_group = await self.group(name)
        known = await (self.groups() if source else self._every_group())
        names = [each.name for each in known if each.name != name]
        if source and source not in names:
            raise UsageError(f'broker group "{source}" is not another one', f"The others: {', '.join(names)}")
        sources = [source] if source else names
        if not sources:
            raise UsageError(f'"{name}" is the only broker group', "There is nothing to take topics from")
        mode = await self._mode_of(broker_group)
        if mode == route_pb2.MODE_REMOVED:
            raise UsageError(
                f'broker group "{name}" was removed',
                "Nothing was changed",
                f"Take it back first: ledgermq cluster undrain {name} --node HOST:8082",
            )
        draining = mode == route_pb2.MODE_DRAINING
        theirs = {each: await self._topics_of(each) for each in sources}
        found = compare_topics(name, await self._topics_of(name), theirs, topics)
        unknown = set(topics) - {info.name for infos in theirs.values() for info in infos}
        if unknown:
            raise UsageError(f"no other broker group has {', '.join(sorted(unknown))}", "Nothing was changed")
        groups = {each: await self._consumer_groups_of(each) for each in sources}
        consumers = compare_consumer_groups(name, await self._consumer_groups_of(name), groups)
        added = AddedBrokerGroup(name, found, consumers, dry_run, draining)
        if found.missing and not (allow_reordering or draining):
            ordered = {info.name for info in found.missing if info.message_type in ORDERED_TYPES}
            ordered |= await self._ordered_in(broker_group)  # it takes no messages while it is being filled
            await self._check_order(ordered, "add")
        if not dry_run:
            await self._copy(broker_group, added)
        return added

    async def _copy(self, broker_group: BrokerGroup, added: AddedBrokerGroup) -> None:
        """Create what is missing. Start offsets are stored before a message can reach a new queue."""
        for consumer_group in added.consumer_groups.missing:
            await self._create_consumer_group(broker_group, consumer_group)
        missing = added.topics.missing
        if not missing and not added.draining:
            return
        await self._consumers_everywhere(broker_group.name)  # fails before anything was changed
        # If another operator drained it meanwhile, it stays drained.
        own_drain = (
            not added.draining and (await self._set_mode(broker_group, route_pb2.MODE_DRAINING)).changed
        )
        try:
            for info in missing:
                await self._create_topic(broker_group, info)
            names = {info.name for info in missing} | set(added.topics.existing if added.draining else ())
            await self._begin_all(broker_group, names)
        except BaseException:
            logger.error(
                "broken off, the broker group takes no messages yet broker_group=%s; repeat add-group, "
                "then undrain it",
                broker_group.name,
            )
            raise
        if own_drain:
            await self._set_mode(broker_group, route_pb2.MODE_ACTIVE)
        for info in missing:
            await self._routes.until_known(info.name, [broker_group.name])

    async def _begin_all(self, broker_group: BrokerGroup, topics: Collection[str]) -> None:
        """Let consumer groups that consume one of these topics elsewhere begin at the first message here."""
        begun = {
            (each.group, each.topic)
            for _, each in await self.progress(broker_group=broker_group.name)
            if each.group
        }
        for each in await self._consumers_everywhere(broker_group.name):
            if each.topic in topics and (each.group, each.topic) not in begun:
                await self._begin(broker_group, each.group, each.topic)

    async def _consumers_everywhere(self, name: str) -> list[pb.TopicConsumer]:
        """As `_consumers_elsewhere`. Raises: RouteError: a broker group does not answer."""
        consumers, silent = await self._consumers_elsewhere(name)
        if silent:
            insist = (
                "when it is lost for good, take it off the lists: "
                f"ledgermq cluster forget-group {min(silent)}"
            )
            raise _not_heard("where consumer groups begin", silent, insist)
        return consumers

    async def _begin(self, broker_group: BrokerGroup, consumer_group: str, topic: str) -> None:
        request = pb.DescribeTopicRequest(topic=topic)
        described = await self._call(broker_group, lambda stub: stub.DescribeTopic, request)
        commit = log_pb2.CommitOffsetsRequest(group=consumer_group)
        for queue in described.queues:
            commit.offsets.add(topic=topic, queue_id=queue.queue_id, offset=queue.begin_offset)
        try:
            await call_log_service(
                lambda: broker_group,
                self._channels,
                lambda stub: stub.CommitOffsets,
                commit,
                timeout_s=self._timeout_s,
            )
        except FencedError:
            # consumers were quicker: the queues are empty
            logger.info("consumers were quicker topic=%s group=%s", topic, consumer_group)

    async def _create_topic(self, broker_group: BrokerGroup, info: route_pb2.TopicInfo) -> None:
        request = pb.CreateTopicRequest(
            topic=info.name,
            queue_count=info.queue_count,
            message_type=info.message_type,
            retention_ms=info.retention_ms,
            keep_unread=info.keep_unread,
            if_not_exists=True,
        )
        answer = await self._call(broker_group, lambda stub: stub.CreateTopic, request)
        if info.keep_unread:
            check_kept(info.name, [(broker_group, answer.topic)])

    async def _create_consumer_group(self, broker_group: BrokerGroup, info: pb.ConsumerGroupInfo) -> None:
        request = pb.CreateGroupRequest(group=info, if_not_exists=True)
        await self._call(broker_group, lambda stub: stub.CreateGroup, request)

    async def _topics_of(self, group: str) -> list[route_pb2.TopicInfo]:
        return await self._topics_in(await self.group(group))

    async def _consumer_groups_of(self, group: str) -> list[pb.ConsumerGroupInfo]:
        request = pb.ListConsumerGroupsRequest()
        answer = await self._call(await self.group(group), lambda stub: stub.ListGroups, request)
        return list(answer.groups)

    # --- forget ---------------------------------------------------------------------------------------------

    @checked(name=a_text)
    async def lost_group(self, name: str) -> LostBrokerGroup:
        """Return what is lost with a broker group.

        Raises: UsageError: one of its nodes is alive, or no nameserver remembers it. NameserversDownError.
        """
        answers, _ = await self._routes.ask_every(self._listed)
        if not answers:
            raise NameserversDownError(self._routes.nameservers)
        found: list[GoneBrokerGroup] = []
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
                "Use BrokerGroupAdmin(nameservers, cluster=...) in Python, which says which one is meant",
            )
        await self._check_nodes(name, found)
        newest = min(found, key=lambda each: (each.silent_ms is None, each.silent_ms or 0))
        others = {
            info.name for listed, _ in answers.values() for view in listed.groups for info in view.topics
        }
        return LostBrokerGroup(newest, [topic for topic in newest.topics if topic not in others])

    async def _listed(self, stub: nameserver_pb2_grpc.NameServerServiceStub) -> Listed:
        request = nameserver_pb2.ListGroupsRequest(cluster=self._routes.cluster)
        listed = await stub.ListGroups(request, timeout=ASK_TIMEOUT_S)
        request.gone_too = request.gone_topics = True
        return listed, await stub.ListGroups(request, timeout=ASK_TIMEOUT_S)

    async def _check_nodes(self, name: str, found: Iterable[GoneBrokerGroup]) -> None:
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
        request = nameserver_pb2.ForgetGroupRequest(cluster=lost.gone.group.cluster, group=name)
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


def _not_heard(what: str, silent: Silent, insist: str) -> RouteError:
    """Return the error of a change that needs every broker group's answer. `insist`: the way around it."""
    groups = ", ".join(sorted(silent))
    why = next(iter(silent.values())).what
    return RouteError(
        f"{what} in every broker group is not known: {groups} does not answer, or has no leader ({why})",
        "Nothing was changed",
        f"Repeat it when the broker group answers again (ledgermq cluster status), or {insist}",
    )


def _lives(name: str, how: str) -> UsageError:
    return UsageError(
        f'broker group "{name}" is not lost: {how}',
        "Nothing was changed",
        "A nameserver drops a node that has just died within seconds: repeat it then. To take a living "
        f"broker group out: ledgermq cluster drain {name}, then ledgermq cluster remove-group {name}",
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
        f"the nameserver {address} is of an older version, which cannot forget a broker group",
        "",
        "Start it again: then it remembers none",
    )
