"""Batches against a real cluster: attempts that fight, leaders that die, broker groups that are drained."""

from __future__ import annotations

import asyncio
import random
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from ledgermq.client.batches.part_writer import BatchClient, WrittenPart
from ledgermq.client.batches.row_packer import Row
from ledgermq.client.cluster.calls import call_log_service
from ledgermq.client.errors import (
    AttemptEndedError,
    FencedError,
    JobForgottenError,
    LedgerMQError,
    RefusedError,
    RowsDifferError,
)
from ledgermq.proto.log_pb2 import BeginBatchRequest

from .cluster import Cluster
from .history import read_topic

ROWS = 4000


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """Two broker groups of three nodes; topics are made in both."""
    with Cluster(tmp_path_factory.mktemp("batches"), nodes=3, groups=2) as running:
        for group in running.groups:
            running.wait_leader(group=group)
        yield running


def stored(cluster: Cluster, topic: str) -> Counter[bytes]:
    """Return the bodies in all broker groups."""
    found: Counter[bytes] = Counter()
    for group in cluster.groups:
        found.update(read_topic(cluster.address(cluster.wait_leader(group=group)), topic).values())
    return found


def rows_of(partition: int, count: int = ROWS) -> list[Row]:
    """Return rows of which some are equal, some have labels, and some a message group."""
    return [
        Row(
            b"%d/%d" % (partition, number - number % 2 if number % 10 == 1 else number),
            "tag" if number % 3 else "",
            ["key"] if number % 4 else (),
            {"n": str(number % 2)} if number % 5 else None,
            f"group {number % 7}" if number % 2 else "",
        )
        for number in range(count)
    ]


async def attempt(
    cluster: Cluster, choose: random.Random, partition: int, *, share: float = 1.0, batch: int = 0
) -> WrittenPart | None:
    """Carry out an attempt, with the rows in another order; give up behind a share of them."""
    rows = rows_of(partition)
    choose.shuffle(rows)
    async with BatchClient(cluster.nameserver, timeout_s=60) as client:
        part = await client.begin("fights", job="fight", batch=batch, partition=partition)
        stop = int(share * len(rows))
        for start in range(0, stop, 100):
            await part.write(rows[start : start + 100])
            await asyncio.sleep(0)
        return await part.flush() if share == 1 else None


async def persistent(cluster: Cluster, choose: random.Random, partition: int) -> WrittenPart:
    """Do what Spark does: a task that fails is tried again, and a slow one has a rival."""
    while True:
        shares = [choose.choice((0.0, 0.3, 0.7)), 1.0, *([1.0] * (choose.random() < 0.5))]
        outcomes = await asyncio.gather(
            *(attempt(cluster, choose, partition, share=share) for share in shares), return_exceptions=True
        )
        for each in outcomes:
            if isinstance(each, WrittenPart):
                return each
            assert each is None or isinstance(each, LedgerMQError), each


def test_rival_attempts_in_two_broker_groups_store_each_row_once_while_leaders_die(cluster: Cluster) -> None:
    choose = random.Random(5)

    async def kills() -> None:
        for group in ("g0", "g1", "g0"):
            leader = await asyncio.to_thread(cluster.wait_leader, group=group)
            await asyncio.to_thread(cluster.kill, leader)
            await asyncio.to_thread(cluster.restart, leader)

    async def run() -> list[WrittenPart]:
        killing = asyncio.create_task(kills())
        written = await asyncio.gather(*(persistent(cluster, choose, number) for number in range(4)))
        await killing
        async with BatchClient(cluster.nameserver) as client:
            await client.finish(written)
        return list(written)

    written = asyncio.run(run())
    assert not any(part.differ for part in written)
    wanted = Counter(row.body for number in range(4) for row in rows_of(number))
    assert stored(cluster, "fights") == wanted
    assert {part.rows for part in written} == {ROWS}

    async def again() -> list[WrittenPart | None]:
        return [await attempt(cluster, choose, number) for number in range(4)]

    assert [part.sent for part in asyncio.run(again()) if part] == [0] * 4
    assert stored(cluster, "fights") == wanted


def test_what_cannot_be_written_exactly_once_is_refused(cluster: Cluster) -> None:
    async def run() -> None:
        async with BatchClient(cluster.nameserver) as client:

            async def write(batch: int, rows: list[Row], **options: bool) -> WrittenPart:
                part = await client.begin("refused", job="r", batch=batch, partition=0, **options)
                await part.write(rows)
                return await part.flush()

            with pytest.raises(JobForgottenError, match=r'knows job "r".*failOnForgottenJob'):
                await write(3, [Row(b"a")])
            await write(3, [Row(b"a"), Row(b"b")], forgotten_too=True)
            other = await write(3, [Row(b"a"), Row(b"c")])
            assert other.differ and other.sent == 1
            with pytest.raises(RowsDifferError, match="Make it deterministic"):
                await client.finish([other])
            done = await write(4, [Row(b"d"), Row(b"d")])
            await client.finish([done])
            assert (await write(4, [Row(b"d"), Row(b"d")])).sent == 0
            assert (await write(4, [Row(b"d")])).differ, "complete, with another number of rows"
            with pytest.raises(FencedError, match=r"batch 4 of job"):
                await write(3, [Row(b"a")])
            old = await client.begin("refused", job="r", batch=5, partition=0)
            await client.begin("refused", job="r", batch=5, partition=0)
            with pytest.raises(AttemptEndedError):
                await old.write_bodies([b"late"])
                await old.flush()

    asyncio.run(run())
    assert stored(cluster, "refused") == Counter([b"a", b"b", b"c", b"d", b"d"])


def test_a_job_that_ended_is_ended_in_every_broker_group_that_knows_it(cluster: Cluster) -> None:
    async def run(*, end: bool) -> WrittenPart:
        async with BatchClient(cluster.nameserver) as client:
            part = await client.begin("ends", job="e", batch=0, partition=0)
            await part.write_bodies([b"a", b"b"])
            written = await part.flush()
            if end:
                await client.finish([written], ended_job="e")
            return written

    first = asyncio.run(run(end=True))
    assert (first.sent, sorted(first.begun_at)) == (2, ["g0", "g1"])
    late = asyncio.run(run(end=False))
    assert (late.sent, late.broker_group) == (0, "")
    assert stored(cluster, "ends") == Counter([b"a", b"b"])

    async def known() -> list[bool]:
        async with BatchClient(cluster.nameserver) as client:
            route = await client.routes.get("ends", refresh=True)
            request = BeginBatchRequest(job="e", topic="ends", look=True)
            return [
                (
                    await call_log_service(
                        partial(client.routes.broker_group, "ends", each.group.name), client.channels,
                        lambda stub: stub.BeginBatch, request,
                    )
                ).finished
                for each in route.parts
            ]  # fmt: skip

    assert asyncio.run(known()) == [True, True]


def test_a_batch_goes_on_in_another_broker_group_when_the_first_is_drained(cluster: Cluster) -> None:
    bodies = [b"%d" % number for number in range(6000)]

    def admin(*words: str) -> None:
        arguments = [sys.executable, "-m", "ledgermq.client.cli", *words, "--nameserver", cluster.nameserver]
        subprocess.run(arguments, check=True, capture_output=True)

    async def write(count: int) -> WrittenPart:
        async with BatchClient(cluster.nameserver) as client:
            part = await client.begin("moves", job="m", batch=0, partition=0)
            await part.write_bodies(bodies[:count])
            return await part.flush()

    first = asyncio.run(write(2000))
    admin("cluster", "drain", first.broker_group)
    try:
        rest = asyncio.run(write(6000))
    finally:
        admin("cluster", "undrain", first.broker_group)
    assert rest.broker_group not in ("", first.broker_group)
    assert (rest.sent, rest.differ) == (4000, False)
    assert stored(cluster, "moves") == Counter(bodies)
    assert asyncio.run(write(6000)).sent == 0


def test_a_broker_group_with_an_older_node_refuses_batches_until_that_is_updated(tmp_path: Path) -> None:
    cluster, older = Cluster(tmp_path, nodes=3), "n3"

    async def write() -> WrittenPart:
        async with BatchClient(cluster.nameserver, timeout_s=60) as client:
            part = await client.begin("levels", job="l", batch=0, partition=0)
            await part.write_bodies([b"a"])
            written = await part.flush()
            await client.finish([written])
            return written

    cluster.nodes[older].arguments[1] = "tests.integration.level_4_node"
    with cluster:
        if cluster.wait_leader() == older:
            cluster.terminate(older)
            cluster.wait_leader(other_than=older)
            cluster.restart(older)
        words = "has nodes of an older version, which does not know how to write batches exactly once"
        with pytest.raises(RefusedError, match=f"{words}.*: {older}. Nothing was changed") as refused:
            asyncio.run(write())
        assert not refused.value.retryable
        assert not stored(cluster, "levels")
        cluster.terminate(older)
        cluster.nodes[older].arguments[1] = Cluster.module
        cluster.restart(older)
        assert asyncio.run(write()).sent == 1
        assert stored(cluster, "levels") == Counter([b"a"])
        assert asyncio.run(write()).sent == 0


def test_memory_of_requests_is_bounded_while_brokers_are_away(tmp_path: Path) -> None:
    with Cluster(tmp_path, nodes=1) as cluster:
        cluster.wait_leader()

        async def run() -> int:
            async with BatchClient(cluster.nameserver, timeout_s=60) as client:
                part = await client.begin("away", job="a", batch=0, partition=0)
                cluster.kill("n1")
                bodies = [b"x" * 4000] * 300
                filling = asyncio.create_task(_fill(part, bodies))
                for _ in range(2000):
                    await asyncio.sleep(0)
                assert not filling.done()
                accepted = part.rows
                cluster.start("n1")
                await filling
                await part.flush()
                return accepted

        async def _fill(part: object, bodies: list[bytes]) -> None:
            for _ in range(40):
                await part.write_bodies(bodies)  # type: ignore[attr-defined]

        assert asyncio.run(run()) * 4000 < 12 << 20
        assert sum(stored(cluster, "away").values()) == 40 * 300
