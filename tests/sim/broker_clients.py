"""Consumers, readers and the administrator of the simulated brokers. Each checks what it was promised."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from ledgermq.broker.leader.selection import Delivery, ReceiveRequest
from ledgermq.broker.state.commands import (
    EARLIEST,
    LATEST,
    PARKED_MESSAGES,
    Ack,
    BrokerGroupMode,
    ChangeInvisible,
    Command,
    CommitOffsets,
    CreateConsumerGroup,
    CreateTopic,
    DeleteConsumerGroup,
    DeleteTopic,
    EvictDedup,
    FeatureLevel,
    ParkMessages,
    ParkReason,
    ReleaseLeases,
    ReleaseParked,
    SetBrokerGroupMode,
    SetTopicRetention,
    TrimQueues,
    change_rows,
    lease_rows,
    park_rows,
    position_rows,
)

from .broker_client import Client
from .broker_life import Answer, Request
from .broker_members import EXCLUSIVE, ConsumerGroupMember, unshared
from .broker_model import Topic
from .broker_producers import MessageSender, StreamProducer
from .invariants import demand

if TYPE_CHECKING:
    from .broker_world import BrokerWorld

MS = 1000
TAGS = (0, 11, 12, 13)
#: Consumer groups that consume by leases, and the one that reads by itself.
LEASING = (("leases", EARLIEST, False), ("order", EARLIEST, True), ("news", LATEST, False))
PULLING = "pull"


class Consumer(Client):
    """Receives under leases. Acknowledges most messages, lets some leases expire, moves or returns some."""

    def __init__(self, world: BrokerWorld, consumer_group: str, *, sessions: bool, filters: bool) -> None:
        super().__init__(world)
        self._group = consumer_group
        self._sessions = sessions
        self._filters = filters
        self._session = self.rng.getrandbits(60) | 1 if sessions else 0
        self._attempt = 0
        self._number = self.rng.getrandbits(32)

    def step(self) -> None:
        topic, consumer_group = self.a_topic(), self.a_consumer_group(self._group)
        if topic is None or consumer_group is None:
            self.soon()
            return
        rng = self.rng
        if self._session and rng.random() < 0.5:
            self._show_life()
        self._attempt += rng.random() < 0.8
        request = ReceiveRequest(
            consumer_group.group_id,
            topic.topic_id,
            rng.choice((1, 3, 32)),
            rng.choice((200, 800, 3000)),
            frozenset(rng.sample(TAGS, 2)) if self._filters and rng.random() < 0.5 else None,
            self._session,
            f"{self._number}-{self._attempt}",
        )
        self.ask("receive", request, partial(self._on_received, request))

    def _show_life(self) -> None:
        leader = self.world.world.leader()
        if leader is not None:
            self.world.deliver(leader, Request("seen", self._session, lambda answer: None))

    def _on_received(self, request: ReceiveRequest, answer: Answer, _newest: bool) -> None:
        if answer.status == "unknown" and self._session:
            # Messages leased under the old session come back when it ends.
            self._session = self.rng.getrandbits(60) | 1
        deliveries: list[Delivery] = answer.value if answer.status == "ok" else []
        for delivery in deliveries:
            self.world.on_delivered(request.group_id, request.topic_id, delivery)
        if not deliveries:
            self.soon()
            return
        what = self.rng.random()
        if self.world.parking and (poison := [each for each in deliveries if each.queue_offset % 5 == 2]):
            self._fail(request, deliveries, poison)
        elif what < 0.75:
            count = self.rng.randint(1, len(deliveries)) if self.rng.random() < 0.4 else len(deliveries)
            self._acknowledge(request, self.rng.sample(deliveries, count), 0)
        elif what < 0.85:
            self._change(request, self.rng.choice(deliveries))
        elif what < 0.9:
            rows = [(each.queue_id, each.queue_offset, each.lease_id) for each in deliveries]
            command = ReleaseLeases(request.group_id, request.topic_id, lease_rows(rows))
            self.ask("command", command, lambda answer, newest: self.soon())
        else:
            self.soon()  # it forgets them

    def _fail(self, request: ReceiveRequest, deliveries: list[Delivery], poison: list[Delivery]) -> None:
        """Acknowledge all but those that cannot be consumed, or let these expire, hurry or park one."""
        what, good = self.rng.random(), [each for each in deliveries if each not in poison]
        if what < 0.4 and good:
            self._acknowledge(request, good, 0)
        elif what < 0.7:
            self._change(request, poison[0])
        elif what < 0.8 and self.world.model.level >= PARKED_MESSAGES:
            rows = park_rows([(each.queue_id, each.queue_offset, each.lease_id, 3) for each in poison[:2]])
            command = ParkMessages(request.group_id, request.topic_id, rows, ParkReason.FORWARDED)
            self.ask("command", command, lambda answer, newest: self.soon())
        else:
            self.soon()

    def _change(self, request: ReceiveRequest, delivery: Delivery) -> None:
        row = (delivery.queue_id, delivery.queue_offset, delivery.lease_id, self.rng.choice((0, 300, 2000)))
        command = ChangeInvisible(request.group_id, request.topic_id, change_rows([row]))
        self.ask("command", command, lambda answer, newest: self.soon())

    def _acknowledge(self, request: ReceiveRequest, deliveries: list[Delivery], tries: int) -> None:
        rows = [(each.queue_id, each.queue_offset, each.lease_id) for each in deliveries]
        command = Ack(request.group_id, request.topic_id, lease_rows(rows))
        heard = partial(self._on_acknowledged, request, deliveries, tries)
        self.ask("command", command, heard, late=partial(self._note, request, deliveries))

    def _on_acknowledged(
        self, request: ReceiveRequest, deliveries: list[Delivery], tries: int, answer: Answer, newest: bool
    ) -> None:
        self._note(request, deliveries, answer, newest)
        if answer.status != "ok" and tries < 3 and self.rng.random() < 0.7 and not self.world.is_quiet:
            self._acknowledge(request, deliveries, tries + 1)
        else:
            self.soon()

    def _note(
        self, request: ReceiveRequest, deliveries: list[Delivery], answer: Answer, _newest: bool
    ) -> None:
        """Record acknowledged messages, which must not come again.

        In an ordered group a whole batch comes again as long as part of it is open.
        """
        if answer.status == "ok" and self._group != "order":
            for delivery, accepted in zip(deliveries, answer.value.accepted.tolist(), strict=True):
                key = (request.group_id, request.topic_id, delivery.queue_id, delivery.queue_offset)
                if accepted:
                    self.world.done.setdefault(key, answer.index)


class Drainer(Consumer):
    """At the end of a run: receives all that is left of one consumer group, and acknowledges it."""

    think_ms = (20, 60)

    def __init__(self, world: BrokerWorld, consumer_group: str) -> None:
        super().__init__(world, consumer_group, sessions=False, filters=False)

    @property
    def may_go_on(self) -> bool:
        return self.world.is_draining

    def left(self) -> str:
        """Return what the consumer group has not finished; "" if nothing is left."""
        model, consumer_group = self.world.model, self.a_consumer_group(self._group)
        if consumer_group is None:
            return ""
        for topic in model.topics.values():
            for queue_id in range(topic.queues):
                key = (topic.topic_id, queue_id)
                found, end = model.positions.get((consumer_group.group_id, *key)), model.queues[key].end
                if found is None or found.committed < end or found.parked:
                    return f"queue {key} of group {self._group}: {found}, its end is {end}"
        return ""

    def step(self) -> None:
        topic, consumer_group = self.a_topic(), self.a_consumer_group(self._group)
        if topic is None or consumer_group is None or not self.left():
            self.world.after(100 * MS, self._go_on)
            return
        if rows := parked_rows(self.world, consumer_group.group_id):
            command = ReleaseParked(consumer_group.group_id, position_rows(rows))
            self.ask("command", command, lambda answer, newest: self.soon())
            return
        request = ReceiveRequest(
            consumer_group.group_id, topic.topic_id, 32, 2000, attempt_id=f"drain-{self._group}"
        )
        self.ask("receive", request, partial(self._on_received, request))

    def _on_received(self, request: ReceiveRequest, answer: Answer, _newest: bool) -> None:
        deliveries: list[Delivery] = answer.value if answer.status == "ok" else []
        for delivery in deliveries:
            self.world.on_delivered(request.group_id, request.topic_id, delivery)
        if deliveries:
            self._acknowledge(request, deliveries, 0)
        else:
            self.soon()


def parked_rows(world: BrokerWorld, group_id: int) -> list[tuple[int, int, int]]:
    """Return (topic, queue, offset) of the messages parked for a group."""
    positions = sorted(world.model.positions.items())
    return [
        (*key[1:], offset) for key, each in positions if key[0] == group_id for offset in sorted(each.parked)
    ]


class Puller(Client):
    """Reads queues on any node, and commits offsets; sometimes sets them back."""

    def __init__(self, world: BrokerWorld) -> None:
        super().__init__(world)
        self._offsets: dict[tuple[int, int], int] = {}

    def step(self) -> None:
        topic = self.a_topic()
        if topic is None:
            self.soon()
            return
        key = (topic.topic_id, self.rng.randrange(topic.queues))
        offset = self._offsets.get(key, 0)
        self.ask(
            "fetch", (*key, offset, self.rng.choice((1, 10, 400))), partial(self._on_fetched, key, offset),
            node=self.any_node(),
        )  # fmt: skip

    def _on_fetched(self, key: tuple[int, int], asked: int, answer: Answer, _newest: bool) -> None:
        consumer_group = self.a_consumer_group(PULLING)
        if answer.status != "ok":
            self.soon()
            return
        begin, rows, end = answer.value
        queue = self.world.model.queues.get(key)
        if queue is not None:
            demand(end <= queue.end, f"B visible: {key} ends at {end} for a reader, committed is {queue.end}")
            demand(
                begin == asked or asked < begin <= queue.begin,
                f"B visible: {key} is read from {begin}, asked was {asked}, hidden are those below "
                f"{queue.begin}",
            )
        for place, row in enumerate(rows):
            self.world.on_seen(*key, begin + place, tuple(row))
        self._offsets[key] = begin + len(rows)
        if consumer_group is None or self.rng.random() < 0.5:
            self.soon()
            return
        offset, reset = self._offsets[key], self.rng.random() < 0.1
        if reset:
            offset = self._offsets[key] = self.rng.randint(0, offset)
        elif self.rng.random() < 0.1:
            offset = self.rng.randint(0, offset)  # an old commit that arrives late: it must not count
        command = CommitOffsets(consumer_group.group_id, position_rows([(*key, offset)]), reset)
        self.ask("command", command, lambda answer, newest: self.soon())


class Administrator(Client):
    """Creates and deletes topics and consumer groups; hides old messages."""

    def step(self) -> None:
        command = self._command()
        self.think_ms = (5, 40) if isinstance(command, CreateConsumerGroup | CreateTopic) else (20, 600)
        if command is None:
            self.soon()
        else:
            self.ask("command", command, lambda answer, newest: self.soon())

    def _command(self) -> Command | None:
        rng, model = self.rng, self.world.model
        if self.world.parking == "yes":
            if model.level < PARKED_MESSAGES:
                return FeatureLevel(PARKED_MESSAGES)
            consumer_group = self.a_consumer_group(rng.choice(LEASING)[0])
            if (
                consumer_group
                and rng.random() < 0.2
                and (rows := parked_rows(self.world, consumer_group.group_id))
            ):
                count = rng.randint(1, len(rows))
                return ReleaseParked(consumer_group.group_id, position_rows(rng.sample(rows, count)))
        more = [(EXCLUSIVE, self.world.exclusive_start, False)] if self.world.member_count else []
        for name, start, fifo in (*LEASING, (PULLING, EARLIEST, False), *more):
            if self.a_consumer_group(name) is None:
                return CreateConsumerGroup(name, start, self.world.max_attempts, fifo)
        if len(model.topics) < 2:
            return CreateTopic(f"t{rng.randrange(4)}", rng.randint(1, 3), retention_ms=rng.choice((0, 5000)))
        topic, what = self.a_topic(), rng.random()
        if topic is None or what < 0.4:
            return None
        if what < 0.6:
            return CreateTopic(f"t{rng.randrange(4)}", rng.randint(1, 3))
        if what < 0.65:
            return DeleteTopic(topic.topic_id)
        if what < 0.68:
            consumer_group = self.a_consumer_group(rng.choice(LEASING)[0])
            return None if consumer_group is None else DeleteConsumerGroup(consumer_group.group_id)
        if what < 0.75:
            return SetTopicRetention(topic.topic_id, rng.choice((0, 1000)))
        if what < 0.8 and self.world.evicts:
            return EvictDedup(model.stamp - 3000, model.stamp - 3000)
        if what < 0.9:
            queue_id = rng.randrange(topic.queues)
            queue = model.queues[topic.topic_id, queue_id]
            begin = rng.randint(queue.begin, queue.begin + (queue.end - queue.begin) // 3)
            return TrimQueues(position_rows([(topic.topic_id, queue_id, begin)]))
        return self._set_back(topic)

    def _set_back(self, topic: Topic) -> Command | None:
        """Set the position of a leasing group to a random offset: it gets messages again."""
        consumer_group = self.a_consumer_group(self.rng.choice(LEASING)[0])
        if consumer_group is None:
            return None
        queue_id = self.rng.randrange(topic.queues)
        end = self.world.model.queues[topic.topic_id, queue_id].end
        rows = position_rows([(topic.topic_id, queue_id, self.rng.randint(0, end))])
        return CommitOffsets(consumer_group.group_id, rows, self.rng.random() < 0.5)


class Operator(Client):
    """Drains the broker group for a moment, or removes it, and undoes that. At the end it takes messages."""

    think_ms = (100, 1200)

    @property
    def may_go_on(self) -> bool:
        """Return True also when all others rest: a late drain may still arrive."""
        return not self.world.is_quiet

    def step(self) -> None:
        mode, command = BrokerGroupMode(self.world.model.mode), None
        if mode is not BrokerGroupMode.ACTIVE:
            command = SetBrokerGroupMode(BrokerGroupMode.ACTIVE)
        elif not self.world.is_draining and self.rng.random() < 0.4:
            modes = (BrokerGroupMode.DRAINING, BrokerGroupMode.REMOVED)
            command = SetBrokerGroupMode(self.rng.choice(modes))
        if command is None:
            self.soon()
        else:
            self.ask("command", command, lambda answer, newest: self.soon())


class Clients:
    """All clients of one run."""

    def __init__(self, world: BrokerWorld) -> None:
        rng = world.rng
        self.world = world
        producers = [StreamProducer(world) for _ in range(rng.randint(1, 3))]
        self.producers: list[StreamProducer | MessageSender] = [*producers, MessageSender(world)]
        consumers = [
            Consumer(world, name, sessions=rng.random() < 0.2, filters=rng.random() < 0.4)
            for name, _, _ in LEASING
            for _ in range(rng.randint(1, 2))
        ]
        self._others: list[Client] = [Administrator(world), Puller(world), *consumers]
        self._members = [ConsumerGroupMember(world, number) for number in range(world.member_count)]
        self._drainers = [Drainer(world, name) for name, _, _ in LEASING]
        self._operators = [Operator(world) for _ in range(world.operator_count)]

    def start(self) -> None:
        """Start or resume all clients."""
        for client in (*self._others, *self._members, *self.producers, *self._operators):
            client.wake()

    def drain(self) -> None:
        """Let producers learn the outcome of their last messages, then consume everything."""
        for client in (*self.producers, *self._members, *self._drainers, *self._operators):
            client.wake()

    def undrained(self) -> str:
        """Return what is left to do; "" if nothing is."""
        for producer in self.producers:
            if not producer.is_finished:
                return f"an answer that {producer} waits for"
        left = next((left for drainer in self._drainers if (left := drainer.left())), "")
        return left or unshared(self.world, self._members)

    def progress(self) -> int:
        """Return a number that grows with each finished message and each finished producer."""
        committed = sum(position.committed for position in self.world.model.positions.values())
        return committed + sum(producer.is_finished for producer in self.producers)
