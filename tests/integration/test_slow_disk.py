"""Every flush of every node takes 200 ms longer, and a consumer reads from disk only: no election is held."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from ledgermq.client import Producer, PullConsumer

from .checks import check_every_node, wait_for_more
from .cluster import Cluster
from .history import History, Load, run_client

TOPIC = "cold"
BODY_SIZE = 32 << 10
MESSAGES = 1600  # 50 MiB: twice what a node keeps of its log in memory
PART = 400  # sent at a time: half of that memory


class SlowDiskCluster(Cluster):
    """Its nodes wait 200 ms in every flush."""

    module = "tests.integration.slow_disk_node"

    def drop_page_cache(self) -> None:
        """Let the operating system forget what it holds of the nodes' segments."""
        for name in self.nodes:
            for path in (self.folder / name).rglob("commitlog/*"):
                with path.open("rb") as segment:
                    os.posix_fadvise(segment.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[SlowDiskCluster]:
    with SlowDiskCluster(tmp_path, nodes=3) as running:
        yield running


async def send_backlog(nameserver: str, history: History, numbers: range = range(MESSAGES)) -> None:
    async with Producer(nameserver, timeout_ms=60_000, compress_above=None) as producer:

        async def send(number: int) -> None:
            body = f"backlog-{number}-".encode() + os.urandom(BODY_SIZE)
            receipt = await producer.send(TOPIC, body)
            history.acknowledged[body] = (receipt.queue_id, receipt.queue_offset)

        for first in range(0, len(numbers), PART):
            await asyncio.gather(*(send(number) for number in numbers[first : first + PART]))


async def read_backlog(nameserver: str, wanted: set[bytes]) -> None:
    """Read from the beginning until everything wanted was there."""
    missing = set(wanted)
    async with PullConsumer(nameserver, max_buffer_bytes=4 << 20) as consumer:
        await consumer.subscribe(TOPIC)
        while missing:
            missing.difference_update(message.body for message in await consumer.poll())


@pytest.mark.alone
def test_a_cold_read_and_sends_on_slow_disks_cause_no_election(cluster: SlowDiskCluster) -> None:
    nameserver = cluster.nameserver
    backlog = History()
    run_client(send_backlog(nameserver, backlog))
    terms = cluster.terms()
    assert len(set(terms.values())) == 1

    with Load(nameserver, TOPIC, in_flight=16, prefix="during").running() as load:
        wait_for_more(load, 16)
        for _ in range(2):
            cluster.drop_page_cache()
            run_client(read_backlog(nameserver, set(backlog.acknowledged)))
            wait_for_more(load, 16)
    assert cluster.terms() == terms, "an election was held"
    assert not load.history.unknown, "a send was not acknowledged"
    load.history.acknowledged.update(backlog.acknowledged)
    check_every_node(cluster, TOPIC, load.history)
