"""A disk without room: producing is refused with its numbers and the command to run, everything else goes on.

Three nodes on one small tmpfs of their own; needs the right to mount.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import grpc
import pytest

from ledgermq.client import Producer
from ledgermq.client.errors import LedgerMQError
from ledgermq.client.sync import Consumer
from ledgermq.client.sync import Producer as SyncProducer
from ledgermq.proto import admin_pb2, admin_pb2_grpc, log_pb2, log_pb2_grpc, route_pb2

from .cluster import Cluster, Process, wait_until
from .history import read_topic

TOPIC = "full"
DISK_SIZE = 96 << 20
SETTINGS = {
    "max-store-bytes": "0",  # what counts is the disk
    "segment-size": "1MiB",
    "max-message-bytes": "128KiB",
    "delete-unexpired": "false",  # else a log would never fill its disk
}


class SmallDisk(Cluster):
    """All data folders on one file system of DISK_SIZE; the processes' output is elsewhere."""

    def _broker(self, name: str, ports: dict[str, int], peers: str, options: dict[str, str]) -> Process:
        process = super()._broker(name, ports, peers, options)
        process.arguments[process.arguments.index("--data") + 1] = str(self.folder / "disk" / name)
        return process


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[SmallDisk]:
    disk = tmp_path / "disk"
    disk.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", f"size={DISK_SIZE}", "tmpfs", str(disk)]
    mounted = subprocess.run(mount, capture_output=True, text=True)
    if mounted.returncode:
        pytest.skip(f"a tmpfs cannot be mounted here: {mounted.stderr.strip()}")
    try:
        with SmallDisk(tmp_path, nodes=3, settings=SETTINGS) as running:
            yield running
    finally:
        subprocess.run(["umount", "--lazy", str(disk)], check=True)


def disk_share(folder: Path) -> float:
    use = os.statvfs(folder)
    return 1 - use.f_bavail / use.f_blocks


async def _send(nameserver: str, rounds: int, pause_above: Path | None = None) -> str:
    """Send 100 messages of 1 KB per round until the broker group refuses; return the refusal's text.

    `pause_above`: a folder whose disk is filled slowly above 80 %, so that the first refusal comes well below
    the next limit.
    """
    async with Producer(nameserver, timeout_ms=3000) as producer:
        for round_number in range(rounds):
            bodies = [f"{round_number}-{i}-".encode().ljust(1000, b".") for i in range(100)]
            answers = await asyncio.gather(
                *(producer.send(TOPIC, body) for body in bodies), return_exceptions=True
            )
            errors = [answer for answer in answers if isinstance(answer, BaseException)]
            if errors:
                return str(errors[0])
            if pause_above is not None and disk_share(pause_above) > 0.8:
                await asyncio.sleep(0.1)
    return ""


def clean(cluster: Cluster) -> admin_pb2.CleanResponse:
    with grpc.insecure_channel(cluster.address(cluster.wait_leader())) as channel:
        request = admin_pb2.CleanRequest(older_than_ms=1)
        answer: admin_pb2.CleanResponse = admin_pb2_grpc.AdminServiceStub(channel).Clean(request, timeout=20)
    assert not answer.refusal.code, answer.refusal.message
    return answer


def consume(nameserver: str, count: int) -> int:
    with Consumer(nameserver, group="g", topic=TOPIC) as consumer:
        taken = 0
        while taken < count and (batch := consumer.receive(32, timeout_ms=2000)):
            for message in batch:
                message.ack()
            taken += len(batch)
    return taken


def send_works(nameserver: str) -> bool:
    try:
        with SyncProducer(nameserver, timeout_ms=2000) as producer:
            producer.send(TOPIC, b"after")
    except LedgerMQError:
        return False
    return True


def fill_disk(path: Path) -> None:
    """Let another process take all the space that is left."""
    file = os.open(path, os.O_CREAT | os.O_WRONLY, 0o600)
    try:
        while os.write(file, bytes(1 << 16)):
            pass
    except OSError:
        pass
    finally:
        os.close(file)


def test_a_log_that_fills_its_disk_refuses_messages_and_takes_them_again_after_a_clean(
    cluster: SmallDisk,
) -> None:
    nameserver = cluster.nameserver
    told = asyncio.run(_send(nameserver, 1000, cluster.folder / "disk"))
    assert re.search(rf"refuses messages: its disk is .*of {DISK_SIZE:,} bytes.*the limit is 90%", told), told
    assert "ledgermq admin clean" in told
    stored = read_topic(cluster.address(cluster.wait_leader()), TOPIC)
    assert consume(nameserver, 64) >= 64, "reads and acknowledgements go on"
    leader = cluster.kill_leader()
    assert cluster.wait_leader(other_than=leader) != leader, "votes are stored"
    cluster.restart(leader)
    assert read_topic(cluster.address(cluster.wait_leader()), TOPIC) == stored
    assert clean(cluster).segments
    wait_until(lambda: send_works(nameserver), "messages are taken again")


def test_a_disk_that_others_filled_to_the_last_byte_can_lose_its_leader_and_be_cleaned(
    cluster: SmallDisk,
) -> None:
    """Elections and retention live on the reserve of the log and of the checkpoints."""
    nameserver = cluster.nameserver
    assert not asyncio.run(_send(nameserver, 25)), "there is room for a few segments"
    fill_disk(cluster.folder / "disk" / "others")
    told = asyncio.run(_send(nameserver, 1000))
    assert "ledgermq admin clean" in told, told
    with contextlib.suppress(LedgerMQError):  # there may be no room for a grant either
        consume(nameserver, 128)
    for _ in range(3):
        leader = cluster.kill_leader()
        cluster.wait_leader(other_than=leader)
        cluster.restart(leader)
    assert clean(cluster).segments, "the command that every refusal names makes room"
    (cluster.folder / "disk" / "others").unlink()
    wait_until(lambda: send_works(nameserver), "messages are taken again")


def fill_to(path: Path, share: float) -> None:
    """Let another process take so much that the disk is used up to `share`."""
    with path.open("ab") as file:
        while disk_share(path.parent) < share:
            file.write(bytes(1 << 16))
            file.flush()


def commit(cluster: SmallDisk, offset: int) -> route_pb2.Refusal:
    """Commit an offset at the leader; return the refusal."""
    with grpc.insecure_channel(cluster.address(cluster.wait_leader())) as channel:
        request = log_pb2.CommitOffsetsRequest(group="late")
        request.offsets.add(topic=TOPIC, queue_id=0, offset=offset)
        answer: log_pb2.CommitOffsetsResponse = log_pb2_grpc.LogServiceStub(channel).CommitOffsets(
            request, timeout=10
        )
    return answer.refusal


def step(cluster: SmallDisk) -> int:
    status = cluster.status(cluster.wait_leader())
    return -1 if status is None else status.disk_step


def test_at_90_percent_offsets_go_on_and_at_95_only_reads_and_what_frees_space(cluster: SmallDisk) -> None:
    nameserver, others = cluster.nameserver, cluster.folder / "disk" / "others"
    assert not asyncio.run(_send(nameserver, 25)), "there is room for a few segments"
    stored = read_topic(cluster.address(cluster.wait_leader()), TOPIC)

    fill_to(others, 0.92)
    wait_until(lambda: step(cluster) == 3, "messages are refused")
    assert "refuses messages" in asyncio.run(_send(nameserver, 1))
    assert not commit(cluster, 1).code, "offsets are taken"

    fill_to(others, 0.965)
    wait_until(lambda: step(cluster) == 4, "all writes are refused")
    refusal = commit(cluster, 2)
    assert refusal.code == route_pb2.DISK_FULL and refusal.retryable
    assert "refuses all writes" in refusal.message and "ledgermq admin clean" in refusal.message
    assert read_topic(cluster.address(cluster.wait_leader()), TOPIC) == stored, "reading goes on"
    with contextlib.suppress(LedgerMQError):  # a lease is a write: there is none, and nothing is lost
        assert consume(nameserver, 16) == 0
    segments = clean(cluster).segments
    assert segments, "what frees space is taken"

    others.unlink()
    wait_until(lambda: step(cluster) == 0, "there is room again")
    assert not commit(cluster, 2).code
    assert consume(nameserver, 16) >= 16, "leases are given again"
    wait_until(lambda: send_works(nameserver), "messages are taken again")
