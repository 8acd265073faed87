"""NATS JetStream with a replicated file stream: three nodes. It acknowledges before it flushes to disk."""

from __future__ import annotations

import asyncio
import itertools
import os
import shutil
import subprocess
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import nats
from nats.js.api import AckPolicy, ConsumerConfig, StreamConfig

from .measure import closed_loop, spawn, stop

_PORT, _ROUTE = 42210, 42310
_NODES = (1, 2, 3)


async def _ignore(*_: Any) -> None:
    """Ignore reconnects, which a failover is expected to cause."""


class NatsSession:
    def __init__(self, system: NatsJetStream, connections: list[Any], stream: str) -> None:
        self._system, self._connections, self._stream = system, connections, stream
        self._publishers = [each.jetstream(publish_async_max_pending=4000) for each in connections]
        self._turns = itertools.cycle(self._publishers)
        self._jetstream = self._publishers[0]
        self._consumers: list[Any] = []

    async def send(self, body: bytes) -> Any:
        return await (await next(self._turns).publish_async(self._stream, body))

    async def preload(self, body: bytes, count: int) -> int:
        await closed_loop(lambda: self.send(body), 2000, 120, count)
        return int((await self._jetstream.stream_info(self._stream)).state.messages)

    async def drain(self, count: int) -> int:
        config = ConsumerConfig(ack_policy=AckPolicy.EXPLICIT, max_ack_pending=20000)
        pull = await self._jetstream.pull_subscribe(
            self._stream, durable="drain", stream=self._stream, config=config
        )
        got = 0
        while got < count:
            for message in await pull.fetch(min(1000, count - got), timeout=5):
                await message.ack()
                got += 1
        return got

    async def listen(self, on_body: Callable[[bytes], None]) -> None:
        connection = await self._system.connect()

        async def on_message(message: Any) -> None:
            on_body(message.data)
            await message.ack()

        await connection.jetstream().subscribe(self._stream, durable="listen", cb=on_message, manual_ack=True)
        self._consumers.append(connection)

    async def close(self) -> None:
        for connection in self._consumers:
            await connection.close()
        await self._jetstream.delete_stream(self._stream)
        for connection in self._connections:
            await connection.close()


class NatsJetStream:
    name = "NATS JetStream R3"
    acknowledged = "a majority has it in its page cache, flushed every 2 minutes"

    def __init__(self) -> None:
        self._nodes: dict[int, subprocess.Popen[bytes]] = {}

    def version(self) -> str:
        answer = subprocess.run(["nats-server", "--version"], capture_output=True, text=True, check=True)
        return answer.stdout.strip().rsplit(" ", 1)[-1].removeprefix("v")

    async def start(self, folder: Path) -> None:
        shutil.rmtree(folder, ignore_errors=True)
        self._folder = folder
        for node in _NODES:
            self._start_node(node)
        await asyncio.sleep(2)

    def _start_node(self, node: int) -> None:
        home = self._folder / f"n{node}"
        home.mkdir(parents=True, exist_ok=True)
        routes = ",".join(f'"nats://127.0.0.1:{_ROUTE + other}"' for other in _NODES)
        (home / "conf").write_text(
            f'server_name: n{node}\nlisten: "127.0.0.1:{_PORT + node}"\n'
            f'jetstream {{ store_dir: "{home}/js", max_mem: 1GB, max_file: 20GB }}\n'
            f'cluster {{ name: peers, listen: "127.0.0.1:{_ROUTE + node}", routes: [{routes}] }}\n'
        )
        self._nodes[node] = spawn(["nats-server", "-c", str(home / "conf")], home / "log")

    async def stop(self) -> None:
        stop(self._nodes.values())

    def pids(self) -> list[int]:
        return [self._nodes[node].pid for node in _NODES]

    async def connect(self, first: int = 1) -> Any:
        order = [first, *(node for node in _NODES if node != first)]
        return await nats.connect(
            [f"nats://127.0.0.1:{_PORT + node}" for node in order],
            dont_randomize=True, reconnect_time_wait=0.05, max_reconnect_attempts=-1, connect_timeout=1,
            pending_size=64 << 20, error_cb=_ignore, disconnected_cb=_ignore, reconnected_cb=_ignore,
        )  # fmt: skip

    async def _new_stream(self, name: str) -> int:
        """Create a stream with three replicas. Returns the node that leads it."""
        connection = await self.connect()
        jetstream = connection.jetstream()
        config = StreamConfig(name=name, subjects=[name], num_replicas=3, storage="file")
        try:
            for attempt in range(100):
                try:
                    await jetstream.add_stream(config)
                    break
                # The servers hold an election: any error until it is over, raised at the end.
                except Exception:
                    if attempt == 99:
                        raise
                    await asyncio.sleep(0.3)
            for _ in range(300):
                cluster = (await jetstream.stream_info(name)).cluster
                if cluster.leader and all(r.current and not r.offline for r in cluster.replicas):
                    return int(cluster.leader[1:])
                await asyncio.sleep(0.1)
            raise TimeoutError("the stream's replicas do not become current")
        finally:
            await connection.close()

    async def open(self, name: str, producers: int = 1) -> NatsSession:
        leader = await self._new_stream(name)
        return NatsSession(self, [await self.connect(leader) for _ in range(producers)], name)

    async def open_for_failover(
        self, name: str
    ) -> tuple[Callable[[int], Awaitable[Any]], Callable[[int], None], Callable[[], Awaitable[Any]]]:
        leader = await self._new_stream(name)
        connection = await self.connect(leader)
        jetstream = connection.jetstream()

        async def send(number: int) -> None:
            await jetstream.publish(name, b"%08d" % number + bytes(1016), timeout=0.25)

        def end(signal_number: int) -> None:
            os.kill(self._nodes[leader].pid, signal_number)

        async def restore() -> None:
            await connection.close()
            self._nodes[leader].wait()
            self._start_node(leader)
            await asyncio.sleep(2)

        return send, end, restore
