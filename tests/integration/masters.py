"""Vocabulary of the tests of broker groups with a master (test_async_master.py, test_sync_master.py)."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import grpc

from ledgermq.client.produce.message_ids import process_ids
from ledgermq.proto import rocketmq_v2_pb2 as v2
from ledgermq.proto import rocketmq_v2_pb2_grpc

from .cluster import Cluster, wait_until

CLI = [sys.executable, "-m", "ledgermq.client.cli"]
METADATA = (("x-mq-client-id", "masters"), ("x-mq-language", "PYTHON"))


def cluster_of(folder: Path, replication: str, nodes: int = 3, **settings: str) -> Cluster:
    """Return a broker group whose first master is n1."""
    return Cluster(folder, nodes, settings={"replication": replication, "master": "n1", **settings})


def cli(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Run a command of ours."""
    return subprocess.run([*CLI, *arguments], capture_output=True, text=True, timeout=90, check=False)


def promote(cluster: Cluster, name: str, *more: str) -> subprocess.CompletedProcess[str]:
    """Run `ledgermq cluster promote` against the node itself."""
    return cli("cluster", "promote", name, "--node", cluster.address(name), "--yes-lose-data", "g0", *more)


def wait_level(cluster: Cluster, master: str) -> None:
    """Wait until the master says that every other node has everything, and each of these can do without it.

    It shows what it knows to be committed, and names the nodes whose addresses it was told.
    """

    def level() -> bool:
        status = cluster.status(master)
        others = [node for node in status.nodes if node.node_id != master] if status else []
        return bool(others) and all(
            node.role == "follower"
            and not node.behind_bytes
            and not node.state
            and committed(node.node_id) >= committed(master)
            and is_acquainted(node.node_id)
            for node in others
        )

    def committed(name: str) -> int:
        status = cluster.status(name)
        own = [node.commit_index for node in status.nodes if node.node_id == name] if status else []
        return own[0] if own else -1

    def is_acquainted(name: str) -> bool:
        status = cluster.status(name)
        return status is not None and all(node.addresses.log_address for node in status.nodes)

    wait_until(level, "every slave is level", 60)


def send_officially(
    address: str, topic: str, body: bytes, message_id: str = "", timeout: float = 10
) -> v2.Status:
    """Send one message as an official client does; return its status. `message_id`: of an earlier attempt."""
    request = v2.SendMessageRequest()
    message = request.messages.add(topic=v2.Resource(name=topic), body=body)
    message.system_properties.message_id = message_id or new_id()
    message.system_properties.message_type = v2.NORMAL
    message.system_properties.born_timestamp.FromMilliseconds(0)
    with grpc.insecure_channel(address) as channel:
        stub = rocketmq_v2_pb2_grpc.MessagingServiceStub(channel)
        answer: v2.SendMessageResponse = stub.SendMessage(request, timeout=timeout, metadata=METADATA)
    return answer.status


def new_id() -> str:
    """Return an unused message id."""
    return process_ids().next(0)[1]
