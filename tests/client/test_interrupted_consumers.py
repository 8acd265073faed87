"""Ctrl-C ends a program that consumes, with what was begun finished and nothing on stderr."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Callable, Iterator

import pytest

from .fake_messaging import MessagingCluster
from .fakes import FakeGroup
from .push_listeners import fill, numbers, until_committed
from .served import Served, served

#: Says so when the main thread waits: it is in the client's code, and there in a wait. A line is one write,
#: because `print` writes the end of a line by itself, and two threads speak.
BEGIN = """
import sys, threading, time
from contextlib import suppress

def say(line):
    print(line + "\\n", end="", flush=True)

def say_when_waiting():
    main = threading.main_thread().ident
    while True:
        names, frame = [], sys._current_frames()[main]
        while frame:
            names.append(frame.f_code.co_name)
            frame = frame.f_back
        if names[0] in ("wait", "select", "run_forever") and "WAITS" in names:
            say("waits")
            return
        time.sleep(0.01)

threading.Thread(target=say_when_waiting, daemon=True).start()

def work(messages):
    say("listens")
    sys.stdin.readline()
"""
PUSH = """
from ledgermq.client.sync import PushConsumer
with PushConsumer(sys.argv[1], group="billing", listener=work) as consumer:
    consumer.subscribe("orders")
    consumer.run()
"""
ASYNC_PUSH = """
import asyncio
from ledgermq.client import PushConsumer

async def listener(messages):
    await asyncio.to_thread(work, messages)

async def main():
    async with PushConsumer(sys.argv[1], group="billing", listener=listener) as consumer:
        await consumer.subscribe("orders")
        await consumer.run()

with suppress(KeyboardInterrupt):
    asyncio.run(main())
"""
LOOP = """
from ledgermq.client.sync import Consumer
with suppress(KeyboardInterrupt), Consumer(sys.argv[1], group="billing", topic="orders") as consumer:
    for message in consumer:
        message.ack()
        say("has one")
        sys.stdin.readline()
"""
ASYNC_LOOP = """
import asyncio
from ledgermq.client import SimpleConsumer

async def main():
    async with SimpleConsumer(sys.argv[1], group="billing") as consumer:
        await consumer.subscribe("orders")
        while True:
            for message in await consumer.receive():
                await consumer.ack(message)
                say("has one")
                await asyncio.Event().wait()

with suppress(KeyboardInterrupt):
    asyncio.run(main())
"""


@pytest.fixture
def cluster() -> Iterator[Served[MessagingCluster]]:
    with served(lambda: MessagingCluster(FakeGroup(topics={"orders": 1}))) as running:
        yield running


def interrupted(
    program: str,
    cluster: Served[MessagingCluster],
    says: str,
    then: Callable[[], object] = lambda: None,
    waits: str = "run",
) -> None:
    """Run a program, send SIGINT when it says something and `then` has returned, and demand a clean end."""
    with subprocess.Popen(
        [sys.executable, "-c", BEGIN.replace("WAITS", waits) + program, cluster.address],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            assert process.stdout is not None
            while (line := process.stdout.readline()) != f"{says}\n":
                assert line, process.communicate()[1]
            then()
            process.send_signal(signal.SIGINT)
            _, said = process.communicate(input="\n", timeout=60)
        finally:
            process.kill()
    assert (process.returncode, said) == (0, "")


def members(cluster: Served[MessagingCluster]) -> list[str]:
    coordinator = cluster.cluster.groups[0].coordinators.get("billing")
    return list(coordinator.members) if coordinator is not None else []


@pytest.mark.parametrize("program", [PUSH, ASYNC_PUSH])
def test_an_interrupted_push_consumer_leaves_its_group_before_its_first_message(
    program: str, cluster: Served[MessagingCluster]
) -> None:
    interrupted(program, cluster, "waits")
    assert not members(cluster)


@pytest.mark.parametrize("program", [PUSH, ASYNC_PUSH])
def test_an_interrupted_push_consumer_finishes_what_its_listener_has(
    program: str, cluster: Served[MessagingCluster]
) -> None:
    cluster.run(fill(cluster.cluster, numbers(3)))
    interrupted(program, cluster, "listens", lambda: members(cluster) or pytest.fail("it never joined"))
    assert cluster.cluster.groups[0].committed["billing", "orders", 0] == 3
    assert not members(cluster)


def test_an_interrupted_push_consumer_leaves_its_group_when_it_has_finished_everything(
    cluster: Served[MessagingCluster],
) -> None:
    cluster.run(fill(cluster.cluster, numbers(3)))
    done = PUSH.replace("work)", "lambda messages: say('listens'))")
    group = cluster.cluster.groups[0]
    interrupted(done, cluster, "listens", lambda: cluster.run(until_committed(group, 3)))
    assert not members(cluster)


def test_a_signal_that_does_not_wake_the_main_thread_is_noticed_all_the_same(
    cluster: Served[MessagingCluster],
) -> None:
    """It may come in the last moment before the wait; here another thread gets it."""
    other = PUSH.replace(
        "    consumer.run()", "    threading.Thread(target=signal_itself).start()\n    consumer.run()"
    )
    program = """
import signal
def signal_itself():
    sys.stdin.readline()
    signal.pthread_kill(threading.get_ident(), signal.SIGINT)
"""
    with subprocess.Popen(
        [sys.executable, "-c", BEGIN.replace("WAITS", "run") + program + other, cluster.address],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            assert process.stdout is not None and process.stdout.readline() == "waits\n"
            _, said = process.communicate(input="\n", timeout=60)
        finally:
            process.kill()
    assert (process.returncode, said) == (0, "")
    assert not members(cluster)


@pytest.mark.parametrize("program", [LOOP, ASYNC_LOOP])
def test_an_interrupted_loop_that_waits_ends_without_a_word(
    program: str, cluster: Served[MessagingCluster]
) -> None:
    interrupted(program, cluster, "waits", waits="__iter__" if program == LOOP else "run")


@pytest.mark.parametrize(("program", "kept"), [(LOOP, 0), (ASYNC_LOOP, 2)])
def test_an_interrupted_loop_gives_back_what_it_has_not_handed_out(
    program: str, kept: int, cluster: Served[MessagingCluster]
) -> None:
    messages = cluster.cluster.messages
    messages.add(*numbers(3))
    interrupted(program, cluster, "has one")
    assert (messages.acked, len(messages.leased)) == ([b"0"], kept)
