"""A client of asyncio belongs to one event loop; the synchronous clients of a process share theirs."""

from __future__ import annotations

import asyncio
import inspect
import subprocess
import sys
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

import pytest

from ledgermq import client
from ledgermq.client import sync
from ledgermq.client.cluster.topic_route import BrokerGroup
from ledgermq.client.errors import ClosedError, UsageError
from ledgermq.client.message import LeasedMessage
from ledgermq.proto import rocketmq_v2_pb2 as v2

from .fake_messaging import MessagingCluster
from .fakes import FakeGroup
from .served import Served, served


async def listener(messages: list[client.MessageView]) -> None: ...


MAKE: dict[str, Callable[[str], Any]] = {
    "Admin": client.Admin,
    "BrokerGroupAdmin": client.BrokerGroupAdmin,
    "Producer": client.Producer,
    "PullConsumer": lambda address: client.PullConsumer(address, group="billing"),
    "PushConsumer": lambda address: client.PushConsumer(address, group="billing", listener=listener),
    "SimpleConsumer": lambda address: client.SimpleConsumer(address, group="billing"),
}
#: The first use, which binds a client to the loop.
FIRST: dict[str, Callable[[Any], Awaitable[Any]]] = {
    "Admin": lambda it: it.topics(),
    "BrokerGroupAdmin": lambda it: it.topics(),
    "Producer": lambda it: it.send("orders", b"x"),
    "PullConsumer": lambda it: it.subscribe("orders"),
    "PushConsumer": lambda it: it.subscribe("orders"),
    "SimpleConsumer": lambda it: it.subscribe("orders"),
}
QUEUE = client.MessageQueue("orders", "g0", 0)
#: What to give for parameters without a default.
GIVEN: dict[str, Any] = {
    "body": b"x",
    "broker_group": "g0",
    "group": "billing",
    "invisible_ms": 1000,
    "message": LeasedMessage(v2.Message(), "g0"),
    "message_id": "A",
    "messages": [client.Message("orders", b"x")],
    "name": "g0",
    "node": "127.0.0.1:1",
    "offset": 0,
    "offsets": {QUEUE: 0},
    "queues": [QUEUE],
    "retention_ms": 0,
    "timestamp_ms": 1,
    "to": "latest",
    "topic": "orders",
}
#: `send` takes a body, too, `update_topic` what to change, and `left` the group itself.
OTHERWISE: dict[str, dict[str, Any]] = {
    "send": {"topic": "orders", "body": b"x"},
    "update_topic": {"topic": "orders", "retention_ms": 0},
    "left": {"group": BrokerGroup("test", "g0", 1, "n1", (), True)},
}


def coroutines() -> list[tuple[str, str]]:
    """Every public coroutine function of every client."""
    return [
        (kind, name)
        for kind in MAKE
        for name, _ in inspect.getmembers(getattr(client, kind), inspect.iscoroutinefunction)
        if not name.startswith("_")
    ]


def call(it: Any, name: str) -> Awaitable[Any]:
    method = getattr(it, name)
    needed = [
        each.name
        for each in inspect.signature(method).parameters.values()
        if each.default is inspect.Parameter.empty
    ]
    called: Awaitable[Any] = method(**OTHERWISE.get(name, {each: GIVEN[each] for each in needed}))
    return called


@pytest.fixture(scope="module")
def cluster() -> Iterator[Served[MessagingCluster]]:
    with served(lambda: MessagingCluster(FakeGroup(topics={"orders": 1}))) as running:
        yield running


@pytest.mark.parametrize("kind", MAKE)
async def test_in_another_event_loop_every_coroutine_of_a_client_fails_at_once(
    cluster: Served[MessagingCluster], kind: str
) -> None:
    it = MAKE[kind](cluster.address)

    async def other_loop() -> None:
        for name in [name for each, name in coroutines() if each == kind]:
            with pytest.raises(UsageError, match="another event loop"):
                await asyncio.wait_for(call(it, name), 20)

    await FIRST[kind](it)
    await asyncio.to_thread(asyncio.run, other_loop())
    await it.close()


@pytest.mark.parametrize("kind", MAKE)
async def test_after_close_every_coroutine_of_a_client_fails_at_once(
    cluster: Served[MessagingCluster], kind: str
) -> None:
    ends_well = {"close", "flush", "ready", "run", "start"}
    it = MAKE[kind](cluster.address)
    await FIRST[kind](it)
    await it.close()
    took = set()
    for name in [name for each, name in coroutines() if each == kind]:
        try:
            await asyncio.wait_for(call(it, name), 20)
            took.add(name)
        except ClosedError:
            pass
    assert took <= ends_well


async def test_a_message_is_not_queued_in_another_loop_or_in_none(cluster: Served[MessagingCluster]) -> None:
    producer = client.Producer(cluster.address)

    async def other_loop() -> None:
        producer.send_nowait("orders", b"y")

    await producer.send("orders", b"x")
    producer.send_nowait("orders", b"a run is open, which the next message would join")
    with pytest.raises(UsageError, match="another event loop"):
        await asyncio.to_thread(asyncio.run, other_loop())
    with pytest.raises(UsageError, match="no event loop runs"):
        await asyncio.to_thread(producer.send_nowait, "orders", b"z")
    await producer.close()


async def test_a_push_consumer_without_a_subscription_does_not_wait_for_ever(
    cluster: Served[MessagingCluster],
) -> None:
    async with MAKE["PushConsumer"](cluster.address) as consumer:
        with pytest.raises(UsageError, match="subscribe"):
            await asyncio.wait_for(consumer.run(), 20)
    with (
        sync.PushConsumer(cluster.address, group="billing", listener=lambda messages: None) as consumer,
        pytest.raises(UsageError, match="subscribe"),
    ):
        consumer.run()


# --- synchronous clients ------------------------------------------------------------------------------------


def test_synchronous_clients_share_a_loop_and_each_ends_alone(cluster: Served[MessagingCluster]) -> None:
    with sync.Producer(cluster.address) as goes_on:
        with sync.SimpleConsumer(cluster.address, group="billing") as ends:
            ends.subscribe("orders")
            assert ends._thread.loop is goes_on._thread.loop
            waits = ends._thread.submit(asyncio.sleep(3600))
        assert waits.cancelled(), "nothing of a client runs after its close()"
        assert goes_on.send("orders", b"x").topic == "orders"
        with pytest.raises(ClosedError):
            ends.receive()


#: One client sends while others come and go: with a loop each, gRPC would tell one loop of calls of another.
COME_AND_GO = """
import sys, threading
from ledgermq.client import sync
address, stop = sys.argv[1], threading.Event()

def go_on():
    with sync.Producer(address) as producer:
        while not stop.is_set():
            producer.send("orders", b"x")

threads = [threading.Thread(target=go_on) for _ in range(2)]
for thread in threads:
    thread.start()
for _ in range(60):
    with sync.SimpleConsumer(address, group="billing") as consumer:
        consumer.subscribe("orders")
    with sync.PushConsumer(address, group="accounts", listener=lambda messages: None) as consumer:
        consumer.subscribe("orders")
stop.set()
for thread in threads:
    thread.join()
print("sent and closed")
"""


def test_the_end_of_a_synchronous_client_leaves_no_trace_in_the_others(
    cluster: Served[MessagingCluster],
) -> None:
    command = [sys.executable, "-c", COME_AND_GO, cluster.address]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "sent and closed\n", "")
