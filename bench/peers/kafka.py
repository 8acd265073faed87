"""Kafka with KRaft: three nodes, replication factor 3, `min.insync.replicas` 2, producers with `acks=all`."""

from __future__ import annotations

import asyncio
import os
import shutil
import subprocess
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from . import java, kafka_client, kafka_node
from .measure import spawn, stop

_SETTLE_S = 60
_LOG = ("org.slf4j.simpleLogger.defaultLogLevel=warn",)


class Kafka:
    compiles = True

    def __init__(self, jars: Path, flush_each: bool = False) -> None:
        self.name = "Kafka with fsync per append" if flush_each else "Kafka"
        self.acknowledged = (
            "every in-sync replica, 2 of 3 at least, has flushed it (fsync per append)"
            if flush_each
            else "every in-sync replica, 2 of 3 at least, has it in its page cache"
        )
        self._jars, self._flush_each = jars, flush_each
        self._nodes: dict[int, subprocess.Popen[bytes]] = {}

    def version(self) -> str:
        return kafka_node.VERSION

    def prepare(self) -> str:
        if lacks := java.missing():
            return lacks
        self._library = java.resolve(self._jars, f"kafka-{kafka_node.VERSION}", kafka_node.ARTIFACTS)
        return ""

    async def start(self, folder: Path) -> None:
        shutil.rmtree(folder, ignore_errors=True)
        self._folder = folder
        await asyncio.gather(*(asyncio.to_thread(self._format, node) for node in kafka_node.NODES))
        for node in kafka_node.NODES:
            self._start_node(node)
        await asyncio.to_thread(kafka_client.wait_for_nodes, len(kafka_node.NODES), _SETTLE_S)

    def _format(self, node: int) -> None:
        """Write the configuration of a node and format its folder."""
        home = self._folder / f"n{node}"
        home.mkdir(parents=True)
        config = home / "server.properties"
        config.write_text(kafka_node.properties(node, home, self._flush_each))
        tool = ("kafka.tools.StorageTool", "format", "-t", kafka_node.CLUSTER_ID, "-c", str(config))
        command = java.command(self._library, *tool, heap="128m", properties=_LOG)
        ended = subprocess.run(command, capture_output=True, text=True, check=False)
        if ended.returncode:
            raise RuntimeError(f"Kafka did not format {home}: {(ended.stdout + ended.stderr)[-500:]}")

    def _start_node(self, node: int) -> None:
        home = self._folder / f"n{node}"
        config = str(home / "server.properties")
        command = java.command(self._library, "kafka.Kafka", config, properties=_LOG)
        self._nodes[node] = spawn(command, home / "log")

    async def stop(self) -> None:
        await asyncio.to_thread(stop, self._nodes.values())

    def pids(self) -> list[int]:
        return [self._nodes[node].pid for node in kafka_node.NODES]

    async def open(self, name: str, producers: int = 1) -> kafka_client.KafkaSession:
        await asyncio.to_thread(kafka_client.create_topic, name, 8)
        return kafka_client.KafkaSession(name, producers)

    async def open_for_failover(
        self, name: str
    ) -> tuple[Callable[[int], Awaitable[Any]], Callable[[int], None], Callable[[], Awaitable[Any]]]:
        (leader,) = await asyncio.to_thread(kafka_client.create_topic, name, 1)
        session = kafka_client.KafkaSession(name)

        async def send(number: int) -> None:
            await session.send(b"%08d" % number + bytes(1016))

        def end(signal_number: int) -> None:
            os.kill(self._nodes[leader].pid, signal_number)

        async def restore() -> None:
            await asyncio.to_thread(self._nodes[leader].wait)
            self._start_node(leader)
            await asyncio.to_thread(kafka_client.wait_for_nodes, len(kafka_node.NODES), _SETTLE_S)
            await asyncio.to_thread(kafka_client.wait_in_sync, name, len(kafka_node.NODES), _SETTLE_S)
            await session.close()  # it deletes the topic

        return send, end, restore
