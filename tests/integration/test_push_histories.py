"""Random histories of push consumers on real nodes: members and brokers die, pause, end and restart.

At every check: no committed offset passes a message that no listener has finished, and none goes back. In
orderly mode, no message is finished before the one in front of it. In the end every message was consumed.
"""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path
from random import Random

import pytest

from ledgermq.client import Admin, Message, Producer
from ledgermq.client.errors import LedgerMQError

from .cluster import Cluster, wait_until

QUEUES = 6
STEPS = 14
_ALONE_S = 1.5  # longer than a session, and than an election


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with Cluster(tmp_path_factory.mktemp("histories"), nodes=3) as running:
        running.wait_leader()
        yield running


class Group:
    """One consumer group with its members, and what is known of it."""

    def __init__(self, cluster: Cluster, topic: str, mode: str, folder: Path, random: Random) -> None:
        self.name = f"{topic}-{folder.name}"
        self.committed: dict[int, int] = dict.fromkeys(range(QUEUES), 0)
        self.members: list[subprocess.Popen[bytes]] = []
        self._cluster = cluster
        self._topic = topic
        self._mode = mode
        self._folder = folder
        self._random = random
        self._started = 0
        folder.mkdir()

    def start_member(self) -> None:
        self._started += 1
        seed = self._random.randrange(1 << 30)
        arguments = [self._cluster.nameserver, self.name, self._topic, str(seed), self._mode]
        with (
            (self._folder / f"{self._started}.done").open("wb") as out,
            (self._folder / f"{self._started}.log").open("wb") as log,
        ):
            self.members.append(
                subprocess.Popen(
                    [sys.executable, "-m", "tests.integration.moody_member", *arguments],
                    stdout=out, stderr=log, cwd=Path(__file__).parents[2],
                )
            )  # fmt: skip

    async def end_member(self, how: signal.Signals) -> None:
        member = self.members.pop(self._random.randrange(len(self.members)))
        member.send_signal(how)
        await asyncio.to_thread(member.wait, 60)

    async def stop_member(self) -> None:
        member = self._random.choice(self.members)
        member.send_signal(signal.SIGSTOP)
        await asyncio.sleep(_ALONE_S)
        member.send_signal(signal.SIGCONT)

    def close(self) -> None:
        for member in self.members:
            os.kill(member.pid, signal.SIGKILL)
            member.wait()

    # --- what must hold -----------------------------------------------------------------------------------

    def done(self) -> dict[tuple[int, int], tuple[int, str]]:
        """Return when a listener was first done with a message, and its body, by queue and offset."""
        first: dict[tuple[int, int], tuple[int, str]] = {}
        for path in self._folder.glob("*.done"):
            text = path.read_text()
            for line in text[: text.rfind("\n") + 1].splitlines():
                at, queue_id, offset, body = line.split()
                key = int(queue_id), int(offset)
                first[key] = min(first.get(key, (int(at), body)), (int(at), body))
        return first

    async def check(self, admin: Admin) -> int:
        """Return how many messages count as consumed."""
        try:
            _, queues = await admin.describe_group(self.name, self._topic)
        except LedgerMQError:  # no member has joined yet, or there is no leader
            return 0
        done = self.done()
        for _, each in queues:
            before, now = self.committed[each.queue_id], max(each.committed_offset, 0)
            assert now >= before, f"{self.name}: queue {each.queue_id} went back from {before} to {now}"
            self.committed[each.queue_id] = now
            passed = [offset for offset in range(now) if (each.queue_id, offset) not in done]
            assert not passed, (
                f"{self.name}: queue {each.queue_id} is committed to {now}, {passed} was not done"
            )
        if self._mode == "orderly":
            self._check_order(done)
        return sum(self.committed.values())

    def _check_order(self, done: dict[tuple[int, int], tuple[int, str]]) -> None:
        by_queue: defaultdict[int, list[tuple[int, int]]] = defaultdict(list)
        for (queue_id, offset), (at, _) in done.items():
            by_queue[queue_id].append((offset, at))
        for queue_id, rows in by_queue.items():
            times = [at for _, at in sorted(rows)]
            assert times == sorted(times), f"queue {queue_id} was not consumed in order"
            assert sorted(rows)[-1][0] == len(rows) - 1, f"queue {queue_id} was not consumed without a gap"


class History:
    """A topic, the consumer groups that consume it, and the brokers."""

    def __init__(self, cluster: Cluster, topic: str, modes: Sequence[str], folder: Path, seed: int) -> None:
        self.random = Random(seed)
        self.sent: set[str] = set()
        self.groups = [
            Group(cluster, topic, mode, folder / f"{number}-{mode}", self.random)
            for number, mode in enumerate(modes)
        ]
        self._cluster = cluster
        self._topic = topic

    async def send(self) -> None:
        async with Producer(self._cluster.nameserver_addresses, timeout_ms=60_000) as producer:
            for number in range(len(self.sent), len(self.sent) + 40):
                await producer.send(Message(self._topic, str(number).encode()))
                self.sent.add(str(number))

    async def kill_node(self, name: str) -> None:
        self._cluster.kill(name)
        await self.send()
        await asyncio.to_thread(self._cluster.restart, name)

    async def stop_leader(self) -> None:
        leader = self._cluster.wait_leader()
        self._cluster.pause(leader)
        await asyncio.sleep(_ALONE_S)
        self._cluster.resume(leader)

    async def step(self) -> str:
        leader = self._cluster.wait_leader()
        group = self.random.choice(self.groups)
        can = ["send", "send", "start", "start", "kill leader", "kill follower", "stop leader"]
        if group.members:
            can += ["kill", "kill", "end", "stop"]
        action = self.random.choice(can)
        if action == "start" and len(group.members) < 5 - len(self.groups):
            group.start_member()
        elif action == "kill":
            await group.end_member(signal.SIGKILL)
        elif action == "end":
            await group.end_member(signal.SIGTERM)
        elif action == "stop":
            await group.stop_member()
        elif action == "kill leader":
            await self.kill_node(leader)
        elif action == "kill follower":
            await self.kill_node(self.random.choice([each for each in self._cluster.nodes if each != leader]))
        elif action == "stop leader":
            await self.stop_leader()
        else:
            await self.send()
        return f"{action} ({group.name})"

    async def check(self) -> list[int]:
        """Return how many messages count as consumed, by consumer group."""
        async with Admin(self._cluster.nameserver_addresses) as admin:
            return [await group.check(admin) for group in self.groups]


@pytest.mark.parametrize("seed", [1])
@pytest.mark.parametrize("modes", [["orderly"], ["concurrent", "orderly"]], ids=" ".join)
def test_whatever_happens_no_commit_passes_a_message_that_no_listener_was_done_with(
    cluster: Cluster, tmp_path: Path, seed: int, modes: list[str]
) -> None:
    """Of one consumer group, and of several on the same queues."""
    asyncio.run(asyncio.wait_for(scenario(cluster, tmp_path, seed, modes), 300))


async def scenario(cluster: Cluster, folder: Path, seed: int, modes: list[str]) -> None:
    topic = f"history-{'-'.join(modes)}-{seed}"
    history = History(cluster, topic, modes, folder, seed)
    async with Admin(cluster.nameserver_addresses) as admin:
        await admin.create_topic(topic, QUEUES)
    steps: list[str] = []
    try:
        for group in history.groups:
            group.start_member()
        for _ in range(STEPS):
            steps.append(await history.step())
            await history.check()
        await history.send()
        for group in history.groups:
            group.start_member()
        while min(await history.check()) < len(history.sent):  # noqa: ASYNC110  # commits trigger no event
            await asyncio.sleep(0.2)
        for group in history.groups:
            assert {body for _, body in group.done().values()} == history.sent
    except BaseException:
        committed = {group.name: group.committed for group in history.groups}
        print(f"seed {seed}: {', '.join(steps)}; committed {committed} of {len(history.sent)}")
        raise
    finally:
        for group in history.groups:
            group.close()
        await asyncio.to_thread(wait_until, lambda: bool(cluster.wait_leader()), "a leader")
