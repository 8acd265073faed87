"""Configuration of Kafka's three nodes, each broker and controller (KRaft), on loopback. Pure."""

from __future__ import annotations

from pathlib import Path

VERSION = "4.4.0"
#: Without a binding of SLF4J the nodes would not log at all.
ARTIFACTS = (f"org.apache.kafka:kafka_2.13:{VERSION}", "org.slf4j:slf4j-simple:1.7.36")
NODES = (1, 2, 3)
_PORT, _CONTROLLER = 42410, 42420
SERVERS = ",".join(f"127.0.0.1:{_PORT + node}" for node in NODES)
CLUSTER_ID = "bGVkZ2VybXEtcGVlcnMtMQ"  # 16 bytes in URL-safe Base64, as Kafka wants it
LARGEST_MESSAGE = 2 << 20  # the largest body of a workload is 1 MiB, and Kafka's limit just as large

_VOTERS = ",".join(f"{node}@127.0.0.1:{_CONTROLLER + node}" for node in NODES)
#: Bounds of a partition on disk, so that a run of hundreds of MB/s does not fill it.
_SEGMENT_BYTES, _RETENTION_BYTES = 128 << 20, 256 << 20


def properties(node: int, folder: Path, flush_each: bool) -> str:
    """Return server.properties of a node. What is not named here stays as Kafka ships it."""
    settings = {
        "process.roles": "broker,controller",
        "node.id": node,
        "controller.quorum.voters": _VOTERS,
        "listeners": f"PLAINTEXT://127.0.0.1:{_PORT + node},CONTROLLER://127.0.0.1:{_CONTROLLER + node}",
        "advertised.listeners": f"PLAINTEXT://127.0.0.1:{_PORT + node}",
        "inter.broker.listener.name": "PLAINTEXT",
        "controller.listener.names": "CONTROLLER",
        "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT",
        "log.dirs": folder / "data",
        "default.replication.factor": 3,
        "min.insync.replicas": 2,
        "offsets.topic.replication.factor": 3,
        "transaction.state.log.replication.factor": 3,
        "auto.create.topics.enable": "false",
        "group.initial.rebalance.delay.ms": 0,  # 3 s would be part of W4
        "message.max.bytes": LARGEST_MESSAGE,
        "log.segment.bytes": _SEGMENT_BYTES,
        "log.retention.bytes": _RETENTION_BYTES,
        "log.retention.check.interval.ms": 5000,
        "log.segment.delete.delay.ms": 1000,
    }
    if flush_each:
        settings["log.flush.interval.messages"] = 1
    return "".join(f"{name}={value}\n" for name, value in settings.items())
