"""RabbitMQ with a quorum queue: three nodes. It flushes its log before the confirm."""

from __future__ import annotations

import asyncio
import itertools
import json
import logging
import os
import shutil
import subprocess
from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import aio_pika
import pika

from .measure import clock, spawn, stop

_PORT, _DIST, _EPMD = 56810, 25680, 43690
_NODES = (1, 2, 3)
_GONE = (aio_pika.exceptions.AMQPError, aio_pika.exceptions.ChannelInvalidStateError)
# A killed node breaks connections. The workload expects that, so do not log it.
for _name in ("aiormq", "aio_pika", "pika"):
    logging.getLogger(_name).setLevel(logging.CRITICAL)


class RabbitSession:
    def __init__(self, connections: list[Any], channels: list[Any], queue: Any, port: int) -> None:
        self._connections, self._queue, self._port = connections, queue, port
        self._turns = itertools.cycle(channels)
        self._consumers: list[Any] = []

    async def send(self, body: bytes) -> Any:
        message = aio_pika.Message(body, delivery_mode=aio_pika.DeliveryMode.PERSISTENT)
        return await next(self._turns).default_exchange.publish(message, self._queue.name)

    async def pipeline(self, body: bytes, window: int, seconds: float) -> int:
        """Publish with `window` unconfirmed messages in the leanest client.

        Returns the number of confirms.
        """
        return await asyncio.to_thread(_Pipeline(self._port, self._queue.name, body, window, seconds).run)

    async def preload(self, body: bytes, count: int) -> int:
        return await asyncio.to_thread(self._preload, body, count)

    def _preload(self, body: bytes, count: int) -> int:
        connection = pika.BlockingConnection(pika.ConnectionParameters("127.0.0.1", self._port))
        channel = connection.channel()
        for _ in range(count):
            channel.basic_publish("", self._queue.name, body, pika.BasicProperties(delivery_mode=2))
        begin, stored = clock(), -1
        while stored < count and clock() - begin < 30:
            stored = channel.queue_declare(self._queue.name, passive=True).method.message_count
            connection.sleep(0.1)
        connection.close()
        return stored

    async def drain(self, count: int) -> int:
        return await asyncio.to_thread(self._drain, count)

    def _drain(self, count: int, every: int = 200) -> int:
        """Use the leanest client: one acknowledgement covers `every` messages."""
        connection = pika.BlockingConnection(pika.ConnectionParameters("127.0.0.1", self._port))
        channel, got = connection.channel(), 0
        channel.basic_qos(prefetch_count=2000)
        for method, _, _ in channel.consume(self._queue.name, inactivity_timeout=3):
            if method is None:
                break
            got += 1
            if got % every == 0 or got >= count:
                channel.basic_ack(method.delivery_tag, multiple=True)
            if got >= count:
                break
        connection.process_data_events(0)
        connection.close()
        return got

    async def listen(self, on_body: Callable[[bytes], None]) -> None:
        connection = await aio_pika.connect(f"amqp://guest:guest@127.0.0.1:{self._port}/")
        channel = await connection.channel()
        await channel.set_qos(prefetch_count=200)
        queue = await channel.get_queue(self._queue.name)

        async def on_message(message: Any) -> None:
            on_body(message.body)
            await message.ack()

        await queue.consume(on_message)
        self._consumers.append(connection)

    async def close(self) -> None:
        for connection in self._consumers:
            await connection.close()
        # The broker may have closed the channel. The next session has its own queue.
        with suppress(*_GONE):
            await self._queue.delete(if_unused=False, if_empty=False)
        await self.disconnect()

    async def disconnect(self) -> None:
        """Close the connections and leave the queue."""
        for connection in self._connections:
            with suppress(*_GONE):
                await connection.close()


class _Pipeline:
    """pika's callback client with asynchronous confirms, which does the least work per message."""

    def __init__(self, port: int, queue: str, body: bytes, window: int, seconds: float) -> None:
        self._queue, self._body, self._window = queue, body, window
        self._seconds = seconds
        self._sent = 0
        self._unconfirmed: dict[int, bool] = {}  # delivery tags, in order
        self._connection = pika.SelectConnection(
            pika.ConnectionParameters("127.0.0.1", port),
            on_open_callback=lambda connection: connection.channel(on_open_callback=self._ready),
            on_close_callback=lambda connection, _: connection.ioloop.stop(),
        )

    def run(self) -> int:
        self._end = clock() + self._seconds
        self._connection.ioloop.start()
        return self._sent - len(self._unconfirmed)

    def _ready(self, channel: Any) -> None:
        self._channel = channel
        channel.confirm_delivery(self._on_confirm, callback=lambda _: self._fill())

    def _fill(self) -> None:
        while clock() < self._end and len(self._unconfirmed) < self._window:
            self._sent += 1
            self._unconfirmed[self._sent] = True
            self._channel.basic_publish("", self._queue, self._body, pika.BasicProperties(delivery_mode=2))

    def _on_confirm(self, frame: Any) -> None:
        tag = frame.method.delivery_tag
        if frame.method.multiple:
            while self._unconfirmed and (first := next(iter(self._unconfirmed))) <= tag:
                del self._unconfirmed[first]
        else:
            self._unconfirmed.pop(tag, None)
        self._fill()
        if clock() >= self._end and not self._unconfirmed and self._connection.is_open:
            self._connection.close()


class RabbitMQ:
    name = "RabbitMQ quorum queue"
    acknowledged = "a majority has flushed it (fsync, batched)"

    def __init__(self) -> None:
        self._nodes: dict[int, subprocess.Popen[bytes]] = {}
        self._epmd: subprocess.Popen[bytes] | None = None
        self._home = sorted(Path("/usr/lib/rabbitmq/lib").glob("rabbitmq_server-*"))[-1]

    def version(self) -> str:
        return self._home.name.removeprefix("rabbitmq_server-")

    def _env(self, node: int) -> dict[str, str]:
        base = self._folder
        return dict(
            os.environ,
            HOME=str(base),
            LANG="C.UTF-8",
            ERL_EPMD_ADDRESS="127.0.0.1",
            ERL_EPMD_PORT=str(_EPMD),
            RABBITMQ_NODENAME=f"rabbit{node}@localhost",
            RABBITMQ_NODE_IP_ADDRESS="127.0.0.1",
            RABBITMQ_NODE_PORT=str(_PORT + node),
            RABBITMQ_DIST_PORT=str(_DIST + node),
            RABBITMQ_MNESIA_BASE=str(base / f"n{node}/db"),
            RABBITMQ_LOG_BASE=str(base / f"n{node}/log"),
            RABBITMQ_ENABLED_PLUGINS_FILE=str(base / "plugins"),
            RABBITMQ_CONFIG_FILE=str(base / "rabbitmq.conf"),
            RABBITMQ_CONF_ENV_FILE=str(base / "none"),
            RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS="-kernel inet_dist_use_interface {127,0,0,1}",
        )

    async def start(self, folder: Path) -> None:
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        self._folder = folder
        cookie = folder / ".erlang.cookie"
        cookie.write_text("PEERS")
        cookie.chmod(0o400)
        (folder / "plugins").write_text("[].\n")
        names = "".join(f"cluster_formation.classic_config.nodes.{n} = rabbit{n}@localhost\n" for n in _NODES)
        (folder / "rabbitmq.conf").write_text(
            f"cluster_formation.peer_discovery_backend = classic_config\n{names}log.file.level = warning\n"
        )
        command = ["epmd", "-address", "127.0.0.1", "-port", str(_EPMD)]
        self._epmd = spawn(command, folder / "epmd.log", self._env(1))
        await asyncio.sleep(0.5)
        self._start_node(1)
        await self._wait_port(1)
        for node in (2, 3):
            self._start_node(node)
        for node in (2, 3):
            await self._wait_port(node)

    def _start_node(self, node: int) -> None:
        (self._folder / f"n{node}/log").mkdir(parents=True, exist_ok=True)
        command = [str(self._home / "sbin/rabbitmq-server")]
        self._nodes[node] = spawn(command, self._folder / f"n{node}.out", self._env(node))

    async def _wait_port(self, node: int) -> None:
        for _ in range(600):
            try:
                _, writer = await asyncio.open_connection("127.0.0.1", _PORT + node)
            except OSError:
                await asyncio.sleep(0.2)
            else:
                writer.close()
                return
        raise TimeoutError(f"RabbitMQ node {node} does not listen")

    async def stop(self) -> None:
        stop(self._nodes.values())
        if self._epmd:
            stop([self._epmd])

    def pids(self) -> list[int]:
        return [_erlang_vm(self._nodes[node].pid) for node in _NODES]

    async def open(self, name: str, producers: int = 1, node: int = 1) -> RabbitSession:
        url = f"amqp://guest:guest@127.0.0.1:{_PORT + node}/"
        connections = [await aio_pika.connect(url, timeout=3) for _ in range(producers)]
        channels = [await connection.channel(publisher_confirms=True) for connection in connections]
        queue = await channels[0].declare_queue(name, durable=True, arguments={"x-queue-type": "quorum"})
        return RabbitSession(connections, channels, queue, _PORT + node)

    def _list_queues(self, node: int) -> str:
        command = [str(self._home / "sbin/rabbitmqctl"), "-q", "list_queues", "name", "leader", "online"]
        return subprocess.run(
            [*command, "--formatter", "json"],
            env=self._env(node),
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        ).stdout

    async def _leader(self, queue: str) -> int:
        for _ in range(30):
            for node in _NODES:
                answer = await asyncio.to_thread(self._list_queues, node)
                rows = json.loads(answer) if answer.startswith("[") else []
                for row in rows:
                    if row["name"] == queue and row["leader"] and len(row["online"]) == len(_NODES):
                        return int(row["leader"].split("@")[0][-1])
            await asyncio.sleep(1)
        raise TimeoutError("the quorum queue has no leader with all members online")

    async def open_for_failover(
        self, name: str
    ) -> tuple[Callable[[int], Awaitable[Any]], Callable[[int], None], Callable[[], Awaitable[Any]]]:
        await (await self.open(name)).disconnect()
        leader = await self._leader(name)
        order = [leader, *(node for node in _NODES if node != leader)]
        state: dict[str, Any] = {}

        async def send(number: int) -> None:
            if "session" not in state:
                for node in order:
                    try:
                        state["session"] = await self.open(name, node=node)
                        break
                    except Exception:  # noqa: BLE001 - the next node is tried
                        continue
            try:
                await asyncio.wait_for(state["session"].send(b"%08d" % number + bytes(1016)), 0.25)
            except Exception:  # whatever failed, discard the session and raise the error
                state.pop("session", None)
                raise

        def end(signal_number: int) -> None:
            os.kill(_erlang_vm(self._nodes[leader].pid), signal_number)

        async def restore() -> None:
            if session := state.pop("session", None):
                await session.disconnect()
            self._nodes[leader].wait()
            self._start_node(leader)
            await self._wait_port(leader)

        return send, end, restore


def _erlang_vm(pid: int) -> int:
    """Return the Erlang VM: the started process itself or a descendant."""
    family = [pid]
    for each in family:
        if Path(f"/proc/{each}/comm").read_text().startswith("beam"):
            return each
        family += [int(child) for child in Path(f"/proc/{each}/task/{each}/children").read_text().split()]
    raise RuntimeError("RabbitMQ's Erlang machine does not run")
