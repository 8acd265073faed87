"""asyncio admin client: topics, consumer groups, offsets, status, leadership, retention.

Owns: distributing a call over all broker groups (a topic has queues in each of them) and joining the answers.
Must not: keep state. Every method raises: NameserversDownError, NoBrokersError, BrokerUnreachableError,
RefusedError, BrokerGroupsGoneError (if it needs every broker group). With several broker groups every change
also raises: BrokerGroupsSilentError (one does not answer, nothing was changed), PartlyChangedError.

The `silent` argument of a query collects, by broker group, why its part of the answer is missing. Without it
that is an error.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from functools import partial
from typing import Any, Final, TypeVar

import grpc
from google.protobuf.message import Message

from ledgermq.proto import admin_pb2 as pb
from ledgermq.proto import admin_pb2_grpc, route_pb2
from ledgermq.proto.log_pb2 import QueueOffset

from ..arguments import (
    a_consumer_group,
    a_flag,
    a_hold,
    a_text,
    a_topic,
    check_count,
    checked,
    empty_or,
    none_or,
    silent_groups,
    start_position,
    whole,
    wrong,
)
from ..async_client import AsyncClient
from ..cluster.calls import call_broker_group
from ..cluster.channels import Channels, unreachable
from ..cluster.every_group import Silent, ask_all, change_each, check_that_all_answer
from ..cluster.gone_groups import groups_gone_error
from ..cluster.routes import Routes, check_address
from ..cluster.topic_route import BrokerGroup, Node
from ..errors import (
    ConsumerGroupNotFoundError,
    LedgerMQError,
    RefusedError,
    TopicNotFoundError,
    UsageError,
    similar_names,
)
from ..message import MessageQueue
from ..pauses import CALL_TIMEOUT_S
from .broker_group_rules import check_kept
from .held_queues import Hold, held_offsets, hold_requests, holds_of
from .message_query import DEFAULT_LIMIT, FoundMessages, query_broker_groups

#: Topic types by their lower-case names.
MESSAGE_TYPES: Final = {
    "normal": route_pb2.NORMAL,
    "fifo": route_pb2.FIFO,
    "delay": route_pb2.DELAY,
    "transaction": route_pb2.TRANSACTION,
    "mixed": route_pb2.MIXED,
}

#: Topics of these types are refused by brokers, too. Those after `transaction` do not even have a number.
_NOT_BUILT: Final = ("delay", "transaction", "priority", "lite")
#: Supported types of new topics.
BUILT_TYPES: Final = tuple(name for name in MESSAGE_TYPES if name not in _NOT_BUILT)

_MOST_QUEUES: Final = (1 << 31) - 1  # limit of the protocol; brokers accept fewer
_MOST_ATTEMPTS: Final = (1 << 31) - 1
_MOST_PARKED: Final = (1 << 31) - 1
_MAX_COPIES: Final = 16  # maximum of returned messages with one id

#: Refusals of a broker group that does not have the named object. Another one may have it.
_NO_TOPIC: Final = ("TOPIC_NOT_FOUND",)
_NO_GROUP: Final = ("GROUP_NOT_FOUND",)
NEITHER: Final = (*_NO_TOPIC, *_NO_GROUP)

#: Advice about repeating a change that stopped half way.
_CREATE_AGAIN: Final = (
    "It may be repeated: with --if-not-exists (if_not_exists=True) what is there stays as it is"
)
_DELETE_AGAIN: Final = (
    'It may be repeated as it is; "does not exist" then means that it is deleted everywhere'
)
_HOLD_AGAIN: Final = "It may be repeated as it is: the offsets of a hold never move back"
_RESET_AGAIN: Final = (
    "It may be repeated as it is; broker groups that are changed move once more, to where it says by then"
)

T = TypeVar("T")
Stub = admin_pb2_grpc.AdminServiceStub


#: Selects a method of the stub, which takes a request and `timeout`.
Method = Callable[[Stub], Callable[..., Awaitable[T]]]

#: Maximum of parked messages that are searched for an id, per broker group.
_MAX_PARKED: Final = 10_000


class Admin(AsyncClient):
    """Administers one cluster. Use it as an async context manager, or call close().

    Example:

        async with Admin("127.0.0.1:9876") as admin:
            await admin.create_topic("orders", queues=8, if_not_exists=True)
            await admin.create_group("billing", start="earliest", if_not_exists=True)
            for topic in await admin.topics():
                print(topic.name, topic.queue_count)

    Besides what a method names, each call raises NameserversDownError, NoBrokersError, BrokerUnreachableError
    and RefusedError (NoQuorumError: no leader in time). `timeout_ms`: the deadline of one call, ms.
    """

    @checked(cluster=a_text, timeout_ms=check_count)
    def __init__(
        self,
        nameservers: str | Sequence[str] = "127.0.0.1:9876",
        *,
        cluster: str = "",
        timeout_ms: int = int(CALL_TIMEOUT_S * 1000),
    ) -> None:
        self._channels = Channels()
        self._routes = Routes(nameservers, self._channels, cluster)
        self._timeout_s = timeout_ms / 1000

    async def close(self) -> None:
        """Close every connection."""
        self._channels.check_loop()
        await self._routes.close()
        await self._channels.close()

    async def groups(self) -> list[BrokerGroup]:
        """Return all broker groups of the cluster with their nodes."""
        return await self._routes.groups()

    async def gone_groups(self) -> list[str]:
        """Return the names of broker groups without a running node that were not removed."""
        return [each.name for each in (await self._routes.groups_and_gone())[1]]

    async def _every_group(self) -> list[BrokerGroup]:
        """Return all broker groups, for operations that need all of them.

        Raises: BrokerGroupsGoneError (one has no running node).
        """
        groups, gone = await self._routes.groups_and_gone()
        if gone:
            raise groups_gone_error(gone)
        return groups

    async def _read_all(
        self, ask: Callable[[BrokerGroup], Awaitable[T | None]], silent: Silent | None
    ) -> list[tuple[BrokerGroup, T]]:
        """Query all broker groups; leave out those that answer None.

        Raises: the error of a broker group that does not answer, unless `silent` collects it; if none
        answers, the first error.
        """
        groups, gone = await self._routes.groups_and_gone()
        if gone and silent is None:
            raise groups_gone_error(gone)
        answers, missing = await ask_all(groups, ask)
        found = [(broker_group, answer) for broker_group, answer in answers if answer is not None]
        missing |= {each.name: each.error for each in gone}
        if missing and (silent is None or not found):
            raise next(iter(missing.values()))  # it may have what the others do not
        if silent is not None:
            silent |= missing
        return found

    async def _change_all(
        self,
        change: Callable[[BrokerGroup], Awaitable[T | None]],
        *,
        again: str = "It may be repeated as it is",
        up_only: bool = False,
    ) -> list[tuple[BrokerGroup, T]]:
        """Change all broker groups, or none if one does not answer.

        `up_only`: broker groups without a running node may be left out.
        """
        groups = await (self.groups() if up_only else self._every_group())
        # No topic has that name. Only a leader with a quorum says so, and it is the cheapest such call.
        request = pb.DescribeTopicRequest(topic="")

        await check_that_all_answer(groups, self._in_each(lambda stub: stub.DescribeTopic, request))
        return await change_each(groups, change, again)

    def _in_each(
        self, method: Method[T], request: Message, *, absent: Collection[str] = ()
    ) -> Callable[[BrokerGroup], Awaitable[T | None]]:
        """Return the call to one broker group, which returns None if refused with a code of `absent`."""

        async def call_one(broker_group: BrokerGroup) -> T | None:
            try:
                return await self._call(broker_group, method, request)
            except RefusedError as error:
                if error.code not in absent:
                    raise
                return None

        return call_one

    async def _call(self, broker_group: BrokerGroup, method: Method[T], request: Any) -> T:
        """Call the leader of a broker group, or any node: each forwards to its leader.

        A request with the field `perhaps_done` says there whether an earlier attempt may have taken effect.
        """
        tells = "perhaps_done" in request.DESCRIPTOR.fields_by_name
        if tells:
            request.perhaps_done = False  # the result in one broker group says nothing about the next

        def unknown() -> None:
            if tells:
                request.perhaps_done = True

        return await call_broker_group(
            lambda: broker_group,
            self._channels,
            lambda channel, timeout: method(Stub(channel))(request, timeout=timeout),
            timeout_s=self._timeout_s,
            on_unknown=unknown,
        )

    # --- topics ---------------------------------------------------------------------------------------------

    @checked(
        topic=a_topic,
        queues=whole(0, _MOST_QUEUES),
        message_type=a_text,
        if_not_exists=a_flag,
        retention_ms=whole(0),
        keep_unread=a_flag,
    )
    async def create_topic(
        self,
        topic: str,
        queues: int = 0,
        *,
        message_type: str = "normal",
        if_not_exists: bool = False,
        retention_ms: int = 0,
        keep_unread: bool = False,
    ) -> int:
        """Create a topic in every broker group; return its number of queues over all of them.

        Returns once the nameserver knows the topic, so that later calls find it. `queues` is per broker
        group; 0: the broker group's default. `retention_ms`: how long messages are visible; 0: as long as the
        log holds them. `keep_unread`: retention deletes no message that a consumer group still has to read; a
        full disk then refuses new messages of all topics.
        Raises: AlreadyExistsError, InvalidNameError, UsageError (also if the topic exists, but does not keep
        unread messages).
        """
        if message_type in _NOT_BUILT:
            raise UsageError(
                f"topics of type {message_type} are not built yet",
                "Nothing was created",
                f"Use one of {', '.join(BUILT_TYPES)}",
            )
        if message_type not in BUILT_TYPES:
            raise UsageError(f"{message_type!r} is no message type", "", f"One of {', '.join(BUILT_TYPES)}")
        request = pb.CreateTopicRequest(
            topic=topic,
            queue_count=queues,
            message_type=MESSAGE_TYPES[message_type],
            if_not_exists=if_not_exists,
            retention_ms=retention_ms,
            keep_unread=keep_unread,
        )
        create = self._in_each(lambda stub: stub.CreateTopic, request)
        answers = await self._change_all(create, again=_CREATE_AGAIN, up_only=True)
        await self._routes.until_known(topic, [broker_group.name for broker_group, _ in answers])
        if keep_unread:
            check_kept(topic, [(broker_group, answer.topic) for broker_group, answer in answers])
        return sum(answer.topic.queue_count for _, answer in answers)

    @checked(topic=a_topic, retention_ms=none_or(whole(0)), keep_unread=none_or(a_flag))
    async def update_topic(
        self, topic: str, *, retention_ms: int | None = None, keep_unread: bool | None = None
    ) -> None:
        """Change `retention_ms` or `keep_unread` of a topic in every broker group.

        `retention_ms`: how long messages are visible; 0: as long as the log holds them. None: unchanged.
        Messages that are already hidden stay hidden. Raises: TopicNotFoundError, UsageError.
        """
        if retention_ms is None and keep_unread is None:
            raise UsageError("nothing to change was named", "", "Give retention_ms, keep_unread, or both")
        request = pb.UpdateTopicRequest(topic=topic, retention_ms=retention_ms)
        if keep_unread is not None:
            request.keep_unread = keep_unread
        update = self._in_each(lambda stub: stub.UpdateTopic, request, absent=_NO_TOPIC)
        answers = await self._change_all(update)
        if not answers:
            raise await self._topic_not_found(topic)
        if keep_unread:
            check_kept(topic, [(broker_group, answer.topic) for broker_group, answer in answers])

    @checked(topic=a_topic)
    async def delete_topic(self, topic: str) -> None:
        """Delete a topic with its messages from every broker group. Raises: TopicNotFoundError."""
        request = pb.DeleteTopicRequest(topic=topic)
        delete = self._in_each(lambda stub: stub.DeleteTopic, request, absent=_NO_TOPIC)
        if not await self._change_all(delete, again=_DELETE_AGAIN):
            raise await self._topic_not_found(topic)

    @checked(silent=none_or(silent_groups))
    async def topics(self, *, silent: Silent | None = None) -> list[route_pb2.TopicInfo]:
        """Return every topic once, sorted by name. `queue_count` is the sum over all broker groups."""
        request = pb.ListTopicsRequest()
        ask = self._in_each(lambda stub: stub.ListTopics, request)
        found: dict[str, route_pb2.TopicInfo] = {}
        for _, answer in await self._read_all(ask, silent):
            for info in answer.topics:
                if info.name in found:
                    found[info.name].queue_count += info.queue_count
                else:
                    found[info.name] = info
        return [found[name] for name in sorted(found)]

    @checked(topic=a_topic, silent=none_or(silent_groups))
    async def describe_topic(
        self, topic: str, *, silent: Silent | None = None
    ) -> tuple[route_pb2.TopicInfo, list[tuple[MessageQueue, QueueOffset]]]:
        """Return a topic with the offsets of its queues in every broker group. Raises: TopicNotFoundError."""
        answers = await self._describe_topic_everywhere(topic, silent)
        queues = [
            (MessageQueue(topic, broker_group.name, each.queue_id), each)
            for broker_group, answer in answers
            for each in answer.queues
        ]
        return answers[0][1].topic, queues

    @checked(topic=a_topic, silent=none_or(silent_groups))
    async def topic_losses(
        self, topic: str, *, silent: Silent | None = None
    ) -> list[tuple[str, pb.TopicProgress]]:
        """Return (broker group, consumer group) pairs with `lost` or `parked` messages.

        `lost`: messages that retention deleted before the consumer group had consumed them; reset when it
        continues. Name "": no consumer group consumes the topic there. Raises: TopicNotFoundError.
        """
        answers = await self._describe_topic_everywhere(topic, silent)
        return [(broker_group.name, each) for broker_group, answer in answers for each in answer.consumers]

    @checked(topic=a_topic, name=a_hold, offsets=held_offsets)
    async def hold(self, topic: str, name: str, offsets: Mapping[MessageQueue, int]) -> list[Hold]:
        """Let retention wait for messages of a topic, from an offset on in each queue; or advance a hold.

        Offsets never move back, and the call may be repeated; repeat it now and then although nothing
        changed: a silent holder's hold expires. Only broker groups with one of the queues are called. Returns
        these queues as they are afterwards: `overridden` if messages were deleted although the hold waited
        for them (also if they were before it was set), `lost` says how many.
        Raises: TopicNotFoundError, OffsetOutOfRangeError (behind the end), UsageError; RefusedError (too many
        holds, or nodes of an older version).
        """
        requests = hold_requests(topic, name, offsets)
        groups, gone = await self._routes.groups_and_gone()
        if away := [each for each in gone if each.name in requests]:
            raise away[0].refusal
        if unknown := sorted(requests.keys() - {each.name for each in groups}):
            raise UsageError(
                f'broker group "{unknown[0]}" does not exist',
                f"Known: {', '.join(each.name for each in groups)}. Nothing was changed",
                "Name queues as describe_topic() returns them",
            )

        async def set_hold(broker_group: BrokerGroup) -> list[Hold]:
            answer = await self._call(
                broker_group, lambda stub: partial(_set_hold, stub), requests[broker_group.name]
            )
            return holds_of(topic, broker_group.name, answer.queues)

        named = [each for each in groups if each.name in requests]
        try:
            answers = await change_each(named, set_hold, _HOLD_AGAIN)
        except RefusedError as error:
            if error.code in _NO_TOPIC:
                raise await self._topic_not_found(topic) from error
            raise
        return [hold for _, holds in answers for hold in holds]

    @checked(topic=a_topic, silent=none_or(silent_groups))
    async def holds(self, topic: str, *, silent: Silent | None = None) -> list[Hold]:
        """Return the holds of a topic in all broker groups, by name and queue. Raises: TopicNotFoundError."""
        answers = await self._describe_topic_everywhere(topic, silent)
        found = [hold for group, answer in answers for hold in holds_of(topic, group.name, answer.holds)]
        return sorted(found, key=lambda hold: (hold.name, hold.queue))

    @checked(topic=a_topic, name=a_hold)
    async def release_hold(self, topic: str, name: str) -> bool:
        """Remove a hold in every broker group; return whether there was one. Raises: TopicNotFoundError."""
        request = pb.ReleaseHoldRequest(topic=topic, name=name)
        release = self._in_each(lambda stub: stub.ReleaseHold, request, absent=_NO_TOPIC)
        answers = await self._change_all(release)
        if not answers:
            raise await self._topic_not_found(topic)
        return any(answer.released for _, answer in answers)

    async def _describe_topic_everywhere(
        self, topic: str, silent: Silent | None
    ) -> list[tuple[BrokerGroup, pb.DescribeTopicResponse]]:
        request = pb.DescribeTopicRequest(topic=topic)
        ask = self._in_each(lambda stub: stub.DescribeTopic, request, absent=_NO_TOPIC)
        if answers := await self._read_all(ask, silent):
            return answers
        raise await self._topic_not_found(topic)

    async def _topic_not_found(self, topic: str) -> TopicNotFoundError:
        known = [info.name for info in await self.topics(silent={})]
        cluster = (await self.groups())[0].cluster
        return TopicNotFoundError(
            topic, cluster=cluster, asked=self._routes.asked, similar=similar_names(topic, known)
        )

    # --- messages -------------------------------------------------------------------------------------------

    @checked(message_id=a_text, topic=empty_or(a_topic))
    async def find_message(self, message_id: str, *, topic: str = "") -> FoundMessages:
        """Return the messages with an id from every broker group: several if a producer used it twice.

        Raises: UsageError, TopicNotFoundError.
        """
        if not message_id:
            raise UsageError("the message id is empty")
        return await self._query(pb.QueryMessagesRequest(message_id=message_id, topic=topic), _MAX_COPIES)

    @checked(topic=a_topic, key=a_text, begin_ms=whole(0), end_ms=whole(0), limit=check_count)
    async def query_messages(
        self, topic: str, *, key: str = "", begin_ms: int = 0, end_ms: int = 0, limit: int = DEFAULT_LIMIT
    ) -> FoundMessages:
        """Return the newest messages of a topic from all broker groups, only those with `key` if it is given.

        Times are ms since the epoch: stored at or after `begin_ms`, before `end_ms` (0: unbounded).
        Raises: UsageError, TopicNotFoundError.
        """
        if end_ms and begin_ms >= end_ms:
            raise UsageError(f"no time is between {begin_ms} and {end_ms}")
        request = pb.QueryMessagesRequest(topic=topic, key=key, begin_ms=begin_ms, end_ms=end_ms)
        return await self._query(request, limit)

    async def _query(self, request: pb.QueryMessagesRequest, limit: int) -> FoundMessages:
        async def ask(broker_group: BrokerGroup, asked: pb.QueryMessagesRequest) -> pb.QueryMessagesResponse:
            answer: pb.QueryMessagesResponse = await self._call(
                broker_group, lambda stub: stub.QueryMessages, asked
            )
            return answer

        groups, gone = await self._routes.groups_and_gone()
        found = await query_broker_groups(
            groups, ask, request, limit, {each.name: each.error for each in gone}
        )
        if found is None:
            raise await self._topic_not_found(request.topic)
        return found

    # --- consumer groups ------------------------------------------------------------------------------------

    @checked(
        name=a_consumer_group,
        start=start_position,
        max_attempts=whole(0, _MOST_ATTEMPTS),
        fifo=a_flag,
        if_not_exists=a_flag,
    )
    async def create_group(
        self,
        name: str,
        *,
        start: str = "earliest",
        max_attempts: int = 0,
        fifo: bool = False,
        if_not_exists: bool = False,
    ) -> None:
        """Create a consumer group. `start`: "earliest", "latest" or ms since the epoch; resolved once.

        Raises: AlreadyExistsError, InvalidNameError.
        """
        info = pb.ConsumerGroupInfo(name=name, start_position=start, max_attempts=max_attempts, fifo=fifo)
        request = pb.CreateGroupRequest(group=info, if_not_exists=if_not_exists)
        create = self._in_each(lambda stub: stub.CreateGroup, request)
        await self._change_all(create, again=_CREATE_AGAIN, up_only=True)

    @checked(name=a_consumer_group)
    async def delete_group(self, name: str) -> None:
        """Delete a consumer group with its offsets. Raises: ConsumerGroupNotFoundError."""
        request = pb.DeleteGroupRequest(name=name)
        delete = self._in_each(lambda stub: stub.DeleteGroup, request, absent=_NO_GROUP)
        if not await self._change_all(delete, again=_DELETE_AGAIN):
            raise await self._group_not_found(name)

    @checked(silent=none_or(silent_groups))
    async def consumer_groups(self, *, silent: Silent | None = None) -> list[pb.ConsumerGroupInfo]:
        """Return every consumer group once, sorted by name."""
        found: dict[str, pb.ConsumerGroupInfo] = {}
        request = pb.ListConsumerGroupsRequest()
        ask = self._in_each(lambda stub: stub.ListGroups, request)
        for _, answer in await self._read_all(ask, silent):
            for info in answer.groups:
                found.setdefault(info.name, info)
        return [found[name] for name in sorted(found)]

    @checked(name=a_consumer_group, topic=empty_or(a_topic), silent=none_or(silent_groups))
    async def describe_group(
        self, name: str, topic: str = "", *, silent: Silent | None = None
    ) -> tuple[pb.ConsumerGroupInfo, list[tuple[str, pb.GroupQueueProgress]]]:
        """Return the consumer group, and (broker group, progress) of every queue that it has consumed.

        Raises: ConsumerGroupNotFoundError.
        """
        answers = await self._describe_everywhere(name, topic, silent)
        progress = [(broker_group.name, each) for broker_group, answer in answers for each in answer.queues]
        return answers[0][1].group, progress

    @checked(name=a_consumer_group, silent=none_or(silent_groups))
    async def group_members(
        self, name: str, *, silent: Silent | None = None
    ) -> list[tuple[str, pb.GroupMember]]:
        """Return (broker group, member) of a consumer group whose members own its queues, oldest first.

        Raises: ConsumerGroupNotFoundError.
        """
        answers = await self._describe_everywhere(name, "", silent)
        return [(broker_group.name, each) for broker_group, answer in answers for each in answer.members]

    @checked(
        name=a_consumer_group,
        topic=empty_or(a_topic),
        max_parked=whole(0, _MOST_PARKED),
        silent=none_or(silent_groups),
    )
    async def deliveries(
        self, name: str, topic: str = "", *, max_parked: int = 0, silent: Silent | None = None
    ) -> list[tuple[str, pb.GetDeliveriesResponse]]:
        """Return (broker group, leases and parked messages) of a consumer group; topic "": all topics.

        `max_parked`: maximum of named parked messages per broker group; 0: 1,000. Older brokers name none.
        Raises: ConsumerGroupNotFoundError.
        """
        request = pb.GetDeliveriesRequest(group=name, topic=topic, max_parked=max_parked)

        answers = await self._read_all(
            self._in_each(lambda stub: partial(_deliveries, stub), request, absent=NEITHER), silent
        )
        if not answers:
            raise await self._group_not_found(name, topic)
        return [(broker_group.name, answer) for broker_group, answer in answers]

    @checked(name=a_consumer_group, topic=empty_or(a_topic), message_id=a_text)
    async def release_parked(self, name: str, topic: str = "", *, message_id: str = "") -> int:
        """Deliver parked messages of a consumer group again, with all attempts: all, of one topic, or by id.

        Returns the number of released messages. Broker groups without a running node are skipped.
        Raises: ConsumerGroupNotFoundError, UsageError (none of that id is parked).
        """
        places = await self._parked_places(name, topic, message_id) if message_id else {}
        wanted = {broker_group for broker_group, _ in places}

        async def release(broker_group: BrokerGroup) -> int | None:
            if message_id and broker_group.name not in wanted:
                return None
            requests = [
                pb.ReleaseParkedRequest(group=name, topic=of_topic, places=found)
                for (where, of_topic), found in places.items()
                if where == broker_group.name
            ] or [pb.ReleaseParkedRequest(group=name, topic=topic)]
            return await self._release_in(broker_group, requests)

        answers = await self._change_all(release, up_only=True)
        if not answers:
            raise await self._group_not_found(name, topic)
        return sum(count for _, count in answers)

    async def _release_in(
        self, broker_group: BrokerGroup, requests: list[pb.ReleaseParkedRequest]
    ) -> int | None:
        """Release in one broker group. None: it does not know the consumer group or the topic."""
        released, known = 0, False
        for request in requests:
            ask = self._in_each(lambda stub: stub.ReleaseParked, request, absent=NEITHER)
            if (answer := await ask(broker_group)) is not None:
                known, released = True, released + answer.released
        return released if known else None

    async def _parked_places(
        self, name: str, topic: str, message_id: str
    ) -> dict[tuple[str, str], list[pb.ParkedPlace]]:
        """Return where a message is parked, by (broker group, topic). Raises: UsageError."""
        found: dict[tuple[str, str], list[pb.ParkedPlace]] = {}
        for where, answer in await self.deliveries(name, topic, max_parked=_MAX_PARKED, silent={}):
            for each in answer.parked:
                if each.message_id == message_id:
                    place = pb.ParkedPlace(queue_id=each.queue_id, queue_offset=each.queue_offset)
                    found.setdefault((where, each.topic), []).append(place)
        if not found:
            raise UsageError(
                f"no parked message of consumer group {name} has the id {message_id}",
                "Nothing was released",
                f"See: ledgermq group describe {name}",
            )
        return found

    async def _describe_everywhere(
        self, name: str, topic: str, silent: Silent | None
    ) -> list[tuple[BrokerGroup, pb.DescribeGroupResponse]]:
        request = pb.DescribeGroupRequest(name=name, topic=topic)
        ask = self._in_each(lambda stub: stub.DescribeGroup, request, absent=NEITHER)
        answers = await self._read_all(ask, silent)
        if not answers:
            raise await self._group_not_found(name, topic)
        return answers

    async def _group_not_found(self, name: str, topic: str = "") -> LedgerMQError:
        """Return why no broker group has a consumer group, or the consumer group together with the topic."""
        known = [info.name for info in await self.consumer_groups(silent={})]
        if not topic or name not in known:
            return group_not_found(name, known)
        if topic not in {info.name for info in await self.topics(silent={})}:
            return await self._topic_not_found(topic)
        return ConsumerGroupNotFoundError(
            "GROUP_NOT_FOUND",
            f'consumer group "{name}" does not exist where topic "{topic}" is. '
            "Create it there, too: ledgermq group create "
            f"{name} --if-not-exists",
        )

    @checked(group=a_consumer_group, topic=a_topic, to=a_text)
    async def reset_offsets(self, group: str, topic: str, to: str) -> None:
        """Move a consumer group to "earliest", "latest", or a time, in all queues of the topic.

        A time is in ms since the epoch. Raises: ConsumerGroupNotFoundError, TopicNotFoundError, UsageError.
        """
        request = pb.ResetOffsetsRequest(group=group, topic=topic)
        if to == "earliest":
            request.earliest = True
        elif to == "latest":
            request.latest = True
        elif to.isdigit():
            request.timestamp_ms = int(to)
        else:
            raise UsageError(
                f"{to!r} is no position", "", 'It must be "earliest", "latest" or ms since the epoch'
            )
        reset = self._in_each(lambda stub: stub.ResetOffsets, request, absent=NEITHER)
        if not await self._change_all(reset, again=_RESET_AGAIN):
            raise await self._group_not_found(group, topic)

    # --- nodes ----------------------------------------------------------------------------------------------

    @checked(timeout_ms=check_count)
    async def status(self, node: Node | str, *, timeout_ms: int = 2000) -> pb.GetStatusResponse:
        """Return the status that a node reports: its own, and as leader also that of its broker group.

        `node`: a Node, or host:port of its LogService. `timeout_ms`: ms.
        """
        if isinstance(node, str):
            check_address(node, "the address of a node's LogService", 8082)
        elif not isinstance(node, Node):
            raise wrong("node", node, "a Node, or host:port of its LogService")
        address = node if isinstance(node, str) else node.log_address
        stub = Stub(self._channels.get(address))
        try:
            answer: pb.GetStatusResponse = await stub.GetStatus(
                pb.GetStatusRequest(), timeout=timeout_ms / 1000
            )
        except grpc.RpcError as error:
            raise unreachable(address, error) from error
        return answer

    @checked(broker_group=a_text, to_node=a_text)
    async def transfer_leadership(self, broker_group: str = "", to_node: str = "") -> str:
        """Transfer leadership of a broker group to a node ("": the best one); return the new leader's id.

        Without `broker_group`, the broker group of `to_node` is meant. Raises: UsageError (no such broker
        group; several broker groups, and neither argument tells which).
        """
        groups, gone = await self._routes.groups_and_gone()
        if down := [each for each in gone if each.name == broker_group]:
            raise down[0].refusal
        meant = [each for each in groups if each.name == broker_group or not broker_group]
        if not broker_group and len(groups) > 1:
            meant = [each for each in groups if to_node in {node.node_id for node in each.nodes}]
        if len(meant) != 1:
            known = ", ".join(each.name for each in groups)
            what = (
                f'broker group "{broker_group}" does not exist'
                if broker_group
                else "which broker group is not clear"
            )
            raise UsageError(what, f"Known: {known}", "Name the broker group")
        request = pb.TransferLeadershipRequest(to_node=to_node)
        answer = await self._call(meant[0], lambda stub: stub.TransferLeadership, request)
        leader: str = answer.leader_id
        return leader

    @checked(dry_run=a_flag, older_than_ms=whole(0), even_unexpired=a_flag)
    async def clean(
        self, *, dry_run: bool = False, older_than_ms: int = 0, even_unexpired: bool = False
    ) -> list[tuple[str, pb.CleanResponse]]:
        """Delete expired segments in every broker group; return (broker group, what was deleted)."""
        request = pb.CleanRequest(dry_run=dry_run, older_than_ms=older_than_ms, even_unexpired=even_unexpired)
        clean = self._in_each(lambda stub: stub.Clean, request)
        # Deleting in some broker groups is useful without the others, and a full disk cannot wait for them.
        answers = await change_each(await self.groups(), clean, "It may be repeated as it is")
        return [(broker_group.name, answer) for broker_group, answer in answers]


async def _deliveries(
    stub: Stub, request: pb.GetDeliveriesRequest, timeout: float
) -> pb.GetDeliveriesResponse:
    """Ask a node, which may be too old to know the call."""
    try:
        answer: pb.GetDeliveriesResponse = await stub.GetDeliveries(request, timeout=timeout)
    except grpc.aio.AioRpcError as error:
        if error.code() is not grpc.StatusCode.UNIMPLEMENTED:
            raise
        return pb.GetDeliveriesResponse()
    return answer


async def _set_hold(stub: Stub, request: pb.SetHoldRequest, timeout: float) -> pb.SetHoldResponse:
    """Call a node, which may be too old to know the call."""
    try:
        answer: pb.SetHoldResponse = await stub.SetHold(request, timeout=timeout)
    except grpc.aio.AioRpcError as error:
        if error.code() is not grpc.StatusCode.UNIMPLEMENTED:
            raise
        raise RefusedError(
            "NOT_SUPPORTED",
            "a node of the broker group has an older version, which knows no holds. Nothing was changed. "
            "Install this version on every node, one after the other, and repeat it",
        ) from None
    return answer


def group_not_found(name: str, known: list[str]) -> ConsumerGroupNotFoundError:
    """Return the error for an unknown consumer group."""
    similar = similar_names(name, known)
    hint = f' Did you mean "{similar[0]}"?' if similar else ""
    error = ConsumerGroupNotFoundError(
        "GROUP_NOT_FOUND",
        f'consumer group "{name}" does not exist.{hint} Create it: ledgermq group create {name}',
    )
    error.similar = tuple(similar)
    return error
