"""Synchronous clients that only forward to their asyncio twins, with the same methods and errors.

`awaited` and `direct` (loop_thread.py) make a method of that of the twin, with its signature and docstring.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, ClassVar

from ..admin.admin import Admin as AsyncAdmin
from ..admin.broker_groups import BrokerGroupAdmin as AsyncGroupAdmin
from ..arguments import an_iterable
from ..consume.pull_consumer import PullConsumer as AsyncPullConsumer
from ..consume.read_source import FetchSource
from ..consume.simple_consumer import SimpleConsumer as AsyncSimpleConsumer
from ..message import LeasedMessage, MessageQueue, MessageView
from .loop_thread import Closing, awaited, direct


class Admin(Closing):
    """Administers one cluster.

    Example:

        with Admin("127.0.0.1:9876") as admin:
            admin.create_topic("orders", queues=8, if_not_exists=True)
            print([topic.name for topic in admin.topics()])
    """

    _kind: ClassVar[type[AsyncAdmin]] = AsyncAdmin

    def __init__(self, nameservers: str | Sequence[str] = "127.0.0.1:9876", **options: Any) -> None:
        """`options`: those of the asyncio Admin."""
        super().__init__()
        self._build(lambda: self._kind(nameservers, **options))

    groups = awaited(AsyncAdmin.groups)
    gone_groups = awaited(AsyncAdmin.gone_groups)

    # topics
    create_topic = awaited(AsyncAdmin.create_topic)
    update_topic = awaited(AsyncAdmin.update_topic)
    delete_topic = awaited(AsyncAdmin.delete_topic)
    topics = awaited(AsyncAdmin.topics)
    describe_topic = awaited(AsyncAdmin.describe_topic)
    topic_losses = awaited(AsyncAdmin.topic_losses)
    hold = awaited(AsyncAdmin.hold)
    holds = awaited(AsyncAdmin.holds)
    release_hold = awaited(AsyncAdmin.release_hold)

    # messages
    find_message = awaited(AsyncAdmin.find_message)
    query_messages = awaited(AsyncAdmin.query_messages)

    # consumer groups
    create_group = awaited(AsyncAdmin.create_group)
    delete_group = awaited(AsyncAdmin.delete_group)
    consumer_groups = awaited(AsyncAdmin.consumer_groups)
    describe_group = awaited(AsyncAdmin.describe_group)
    group_members = awaited(AsyncAdmin.group_members)
    deliveries = awaited(AsyncAdmin.deliveries)
    release_parked = awaited(AsyncAdmin.release_parked)
    reset_offsets = awaited(AsyncAdmin.reset_offsets)

    # nodes
    status = awaited(AsyncAdmin.status)
    transfer_leadership = awaited(AsyncAdmin.transfer_leadership)
    clean = awaited(AsyncAdmin.clean)


class BrokerGroupAdmin(Admin):
    """An `Admin` that also changes which broker groups a cluster has.

    Example:

        with BrokerGroupAdmin("127.0.0.1:9876") as admin:
            admin.add_group("g1")
            print(admin.left("g0").waiting)
    """

    _kind = AsyncGroupAdmin

    # broker groups
    group = awaited(AsyncGroupAdmin.group)
    add_group = awaited(AsyncGroupAdmin.add_group)
    drain = awaited(AsyncGroupAdmin.drain)
    undrain = awaited(AsyncGroupAdmin.undrain)
    remove_group = awaited(AsyncGroupAdmin.remove_group)
    lost_group = awaited(AsyncGroupAdmin.lost_group)
    forget_group = awaited(AsyncGroupAdmin.forget_group)

    # progress of consumers
    left = awaited(AsyncGroupAdmin.left)
    progress = awaited(AsyncGroupAdmin.progress)
    lag = awaited(AsyncGroupAdmin.lag)


class SimpleConsumer(Closing):
    """Receives with leases. Iterate over it, or call `receive`. For a single topic, `Consumer` is shorter.

    Example:

        with SimpleConsumer("127.0.0.1:9876", group="billing") as consumer:
            consumer.subscribe("orders")
            for message in consumer.receive(32, timeout_ms=5_000):
                consumer.ack(message)
    """

    def __init__(
        self, nameservers: str | Sequence[str] = "127.0.0.1:9876", *, group: str, **options: Any
    ) -> None:
        """`options`: those of the asyncio SimpleConsumer."""
        super().__init__()
        self._build(lambda: AsyncSimpleConsumer(nameservers, group=group, **options))

    subscribe = awaited(AsyncSimpleConsumer.subscribe)
    receive = awaited(AsyncSimpleConsumer.receive)
    ack = awaited(AsyncSimpleConsumer.ack)
    change_invisible = awaited(AsyncSimpleConsumer.change_invisible)
    statistics = direct(AsyncSimpleConsumer.statistics)

    def __iter__(self) -> Iterator[LeasedMessage]:
        """Yield messages until close()."""
        return self._until_closed(self.receive)


class PullConsumer(Closing):
    """Reads topics queue by queue. Iterate over it, or call `poll`.

    Example:

        with PullConsumer("127.0.0.1:9876", group="billing") as consumer:
            consumer.subscribe("orders")
            for message in consumer.poll(256, timeout_ms=1_000):
                print(message.queue, message.queue_offset, message.body)
            consumer.commit()
    """

    _twin: AsyncPullConsumer

    def __init__(self, nameservers: str | Sequence[str] = "127.0.0.1:9876", **options: Any) -> None:
        """`options`: those of the asyncio PullConsumer."""
        super().__init__()
        self._build(lambda: AsyncPullConsumer(nameservers, **options))

    # queues
    subscribe = awaited(AsyncPullConsumer.subscribe)
    unsubscribe = direct(AsyncPullConsumer.unsubscribe)
    queues = awaited(AsyncPullConsumer.queues)
    unassign = direct(AsyncPullConsumer.unassign)
    pause = direct(AsyncPullConsumer.pause)
    resume = direct(AsyncPullConsumer.resume)
    statistics = direct(AsyncPullConsumer.statistics)

    def assign(self, queues: Iterable[MessageQueue]) -> None:
        """Also read these queues, from their committed offsets."""
        an_iterable("queues", queues)
        self._thread.call(self._twin.assign(list(queues)))

    @property
    def assignment(self) -> tuple[MessageQueue, ...]:
        """The queues that are read."""
        return self._now(lambda: self._twin.assignment)

    @property
    def missing(self) -> tuple[MessageQueue, ...]:
        """Wanted queues whose broker groups have not answered yet. They join by themselves."""
        return self._now(lambda: self._twin.missing)

    @property
    def paused(self) -> tuple[MessageQueue, ...]:
        """The assigned queues that are paused."""
        return self._now(lambda: self._twin.paused)

    @property
    def sources(self) -> dict[str, FetchSource]:
        """Node that answered last, by broker group."""
        return self._now(lambda: self._twin.sources)

    @property
    def deleted_count(self) -> int:
        """Number of messages that retention deleted before they were read."""
        return self._now(lambda: self._twin.deleted_count)

    # positions and offsets
    position = direct(AsyncPullConsumer.position)
    seek = direct(AsyncPullConsumer.seek)
    seek_to_beginning = awaited(AsyncPullConsumer.seek_to_beginning)
    seek_to_end = awaited(AsyncPullConsumer.seek_to_end)
    seek_to_time = awaited(AsyncPullConsumer.seek_to_time)
    offsets = awaited(AsyncPullConsumer.offsets)
    committed = awaited(AsyncPullConsumer.committed)
    lag = awaited(AsyncPullConsumer.lag)
    commit = awaited(AsyncPullConsumer.commit)

    # reading
    poll = awaited(AsyncPullConsumer.poll)

    def __iter__(self) -> Iterator[MessageView]:
        """Yield messages one by one until the consumer is closed. Each counts as handed out once yielded."""
        return self._until_closed(lambda: self.poll(1))
