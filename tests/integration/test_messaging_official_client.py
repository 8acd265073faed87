"""The official Python client, unmodified and in a process of its own, through the death of the leader."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import grpc
import pytest

from ledgermq.client import BrokerGroupAdmin
from ledgermq.proto import admin_pb2, admin_pb2_grpc

from .cluster import Cluster

CLIENT = "rocketmq-python-client==5.1.2"
HERE = Path(__file__).parent
BUILD = HERE.parent.parent / "build"
MESSAGES = 100
KILL_AT = "sent 31"


@pytest.fixture(scope="session")
def client_python() -> Path:
    """Return the Python of a virtual environment that holds the official client and nothing of ours."""
    folder = BUILD / "official-client"
    python, mark = folder / "bin" / "python", folder / CLIENT
    if not mark.exists():
        folder.parent.mkdir(parents=True, exist_ok=True)
        subprocess.run([sys.executable, "-m", "venv", "--clear", str(folder)], check=True)
        subprocess.run([str(python), "-m", "pip", "install", "-q", CLIENT], check=True)
        mark.touch()
    return python


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with Cluster(tmp_path_factory.mktemp("official"), nodes=3) as running:
        yield running


def create_topic(cluster: Cluster, name: str) -> None:
    with grpc.insecure_channel(cluster.address(cluster.wait_leader())) as channel:
        stub = admin_pb2_grpc.AdminServiceStub(channel)
        answer = stub.CreateTopic(admin_pb2.CreateTopicRequest(topic=name, if_not_exists=True), timeout=5)
    assert not answer.refusal.code, answer.refusal.message


def run_client(python: Path, mode: str, cluster: Cluster, topic: str, *, kill: str, access: str) -> str:
    """Run the client against node `access`; kill -9 node `kill` ("": none) meanwhile. Return its output."""

    def at_half_time() -> None:
        if kill:
            cluster.kill(kill)

    return run_client_and(at_half_time, python, mode, cluster, topic, access)


def run_client_and(
    at_half_time: Callable[[], None], python: Path, mode: str, cluster: Cluster, topic: str, access: str
) -> str:
    """Run the client against node `access`; do something while it sends. Return what it printed."""
    arguments = [
        str(python),
        str(HERE / "official_client.py"),
        mode,
        cluster.address(access, "messaging"),
        topic,
    ]
    process = subprocess.Popen(
        [*arguments, str(MESSAGES)], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    assert process.stdout is not None
    output = []
    with process:
        for line in process.stdout:
            output.append(line)
            if line.startswith(KILL_AT):
                at_half_time()
    text = "".join(output)
    assert process.returncode == 0, text + "".join(cluster.nodes[name].log() for name in cluster.nodes)
    return text


@pytest.mark.parametrize("mode", ["simple", "push"])
def test_every_message_that_was_acknowledged_arrives_through_a_failover(
    client_python: Path, cluster: Cluster, mode: str
) -> None:
    topic = f"official-{mode}"
    create_topic(cluster, topic)
    leader = cluster.wait_leader()
    follower = cluster.others(leader)[0]
    text = run_client(client_python, mode, cluster, topic, kill=leader, access=follower)
    cluster.restart(leader)
    assert f"RESULT sent={MESSAGES} received={MESSAGES}" in text


def test_the_leader_itself_serves_the_client(client_python: Path, cluster: Cluster) -> None:
    create_topic(cluster, "official-leader")
    leader = cluster.wait_leader()
    text = run_client(client_python, "simple", cluster, "official-leader", kill="", access=leader)
    assert f"RESULT sent={MESSAGES} received={MESSAGES}" in text


def test_when_a_broker_group_is_drained_the_client_goes_on_through_the_other_and_reads_both(
    client_python: Path, tmp_path: Path
) -> None:
    at_the_drain: dict[str, int] = {}

    async def stored(admin: BrokerGroupAdmin) -> dict[str, int]:
        found = {"g0": 0, "g1": 0}
        for queue, each in (await admin.describe_topic("drained"))[1]:
            found[queue.broker_group] += each.end_offset
        return found

    async def create() -> None:
        async with BrokerGroupAdmin(address) as admin:
            await admin.create_topic("drained", 2)

    async def drain() -> None:
        async with BrokerGroupAdmin(address) as admin:
            await admin.drain("g0")
            at_the_drain.update(await stored(admin))

    async def in_the_end() -> dict[str, int]:
        async with BrokerGroupAdmin(address) as admin:
            return await stored(admin)

    with Cluster(tmp_path, nodes=1, groups=2) as two_groups:
        address = two_groups.nameserver
        asyncio.run(create())
        text = run_client_and(
            lambda: asyncio.run(drain()), client_python, "simple", two_groups, "drained", access="n2"
        )
        found = asyncio.run(in_the_end())
    assert f"RESULT sent={MESSAGES} received={MESSAGES}" in text
    assert "send failed" not in text, "what the drained group refuses it sends to the other one by itself"
    assert found["g0"] == at_the_drain["g0"] > 0
    assert sum(found.values()) == MESSAGES
