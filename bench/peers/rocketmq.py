"""RocketMQ with DLedger: three brokers that replicate one commit log, and a nameserver.

Clients speak the remoting protocol to the leader's own port (`remoting`). The proxy with its gRPC protocol
would add a hop, and the official Python client one call with several threads per message; this way is the
fastest one from Python. DLedger flushes in the background, every 10 ms: `flushDiskType` has no effect on it.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import subprocess
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from . import java, remoting
from .measure import clock, spawn, stop
from .rocketmq_session import RocketSession

VERSION = "5.5.0"
ARTIFACTS = tuple(f"org.apache.rocketmq:rocketmq-{name}:{VERSION}" for name in ("broker", "namesrv"))
NODES = (0, 1, 2)
_NAMESERVER, _PORT, _DLEDGER = 42510, 42520, 42560
_PORTS_APART = 10  # a broker listens on the ports beside its own too
_QUEUES = 8
_SETTLE_S = 90
_NAMESERVER_HEAP = "128m"
#: Packages that RocketMQ reaches into, as its own start scripts open them.
_OPEN = [
    f"--add-opens=java.base/{package}=ALL-UNNAMED"
    for package in ("java.nio", "sun.nio.ch", "jdk.internal.ref", "java.lang", "java.util")
]


def port(node: int) -> int:
    return _PORT + _PORTS_APART * node


def broker_conf(node: int, home: Path, batch_push: bool) -> str:
    """Return broker.conf of a node. What is not named here stays as RocketMQ ships it."""
    settings = {
        "brokerClusterName": "peers",
        "brokerName": "peers-a",
        "brokerIP1": "127.0.0.1",
        "listenPort": port(node),
        "namesrvAddr": f"127.0.0.1:{_NAMESERVER}",
        "storePathRootDir": home / "store",
        "enableDLegerCommitLog": "true",
        "dLegerGroup": "peers-a",
        "dLegerPeers": ";".join(f"n{each}-127.0.0.1:{_DLEDGER + each}" for each in NODES),
        "dLegerSelfId": f"n{node}",
        "enableBatchPush": str(batch_push).lower(),
        # Requests in the queue for more than 200 ms would be refused, and 4,000 in flight take longer.
        "brokerFastFailureEnable": "false",
    }
    return "".join(f"{name}={value}\n" for name, value in settings.items())


class RocketMQ:
    compiles = True
    acknowledged = "a majority has it in its page cache, flushed every 10 ms"

    def __init__(self, jars: Path, batch_push: bool = False) -> None:
        self.name = "RocketMQ DLedger" + (" with batch push" if batch_push else "")
        self._jars, self._batch_push = jars, batch_push
        self._nodes: dict[int, subprocess.Popen[bytes]] = {}
        self._nameserver: subprocess.Popen[bytes] | None = None

    def version(self) -> str:
        return VERSION

    def prepare(self) -> str:
        if lacks := java.missing():
            return lacks
        self._library = java.resolve(self._jars, f"rocketmq-{VERSION}", ARTIFACTS)
        return ""

    async def start(self, folder: Path) -> None:
        shutil.rmtree(folder, ignore_errors=True)
        self._folder = folder
        home = folder / "nameserver"
        home.mkdir(parents=True)
        (home / "conf").write_text(f"listenPort={_NAMESERVER}\nbindAddress=127.0.0.1\n")
        main = "org.apache.rocketmq.namesrv.NamesrvStartup"
        self._nameserver = self._spawn(main, home, _NAMESERVER_HEAP)
        for node in NODES:
            self._start_node(node)
        await self._leader()

    def _start_node(self, node: int) -> None:
        home = self._folder / f"n{node}"
        home.mkdir(exist_ok=True)
        (home / "conf").write_text(broker_conf(node, home, self._batch_push))
        self._nodes[node] = self._spawn("org.apache.rocketmq.broker.BrokerStartup", home, java.HEAP)

    def _spawn(self, main: str, home: Path, heap: str) -> subprocess.Popen[bytes]:
        properties = (f"user.home={home}", f"rocketmq.home.dir={home}")
        command = java.command(
            self._library, main, "-c", str(home / "conf"), heap=heap, properties=properties
        )
        return spawn([command[0], *_OPEN, *command[1:]], home / "log")

    async def stop(self) -> None:
        await asyncio.to_thread(stop, [*self._nodes.values(), *filter(None, [self._nameserver])])

    def pids(self) -> list[int]:
        return [self._nodes[node].pid for node in NODES]

    async def _leader(self) -> int:
        """Return the node that the nameserver names as master. Raises: TimeoutError."""
        end = clock() + _SETTLE_S
        while clock() < end:
            try:
                master = await remoting.master(_NAMESERVER)
            except (OSError, remoting.RefusedError):
                master = None
            for node in NODES:
                if port(node) == master:
                    return node
            await asyncio.sleep(0.2)
        raise TimeoutError(f"RocketMQ has no master after {_SETTLE_S} s; see {self._folder}/n0/logs")

    async def open(self, name: str, producers: int = 1) -> RocketSession:
        session = RocketSession(name, _QUEUES, port(await self._leader()))
        await session.start(producers)
        return session

    async def open_for_failover(
        self, name: str
    ) -> tuple[Callable[[int], Awaitable[Any]], Callable[[int], None], Callable[[], Awaitable[Any]]]:
        leader = await self._leader()
        state: dict[str, RocketSession] = {"session": await self.open(name)}

        async def send(number: int) -> None:
            if "session" not in state:
                master = await remoting.master(_NAMESERVER)
                session = RocketSession(name, _QUEUES, master or port(leader))
                await session.connect()
                state["session"] = session
            try:
                await asyncio.wait_for(state["session"].send(b"%08d" % number + bytes(1016)), 0.25)
            except Exception:  # whatever failed, the next write asks for the master again
                await state.pop("session").close()
                raise

        def end(signal_number: int) -> None:
            os.kill(self._nodes[leader].pid, signal_number)

        async def restore() -> None:
            if session := state.pop("session", None):
                await session.close()
            await asyncio.to_thread(self._nodes[leader].wait)
            self._start_node(leader)
            await self._wait_registered(leader)

        return send, end, restore

    async def _wait_registered(self, node: int) -> None:
        """Wait until a node that came back is known at the nameserver. Raises: TimeoutError."""
        end = clock() + _SETTLE_S
        while clock() < end:
            if port(node) in (await remoting.brokers(_NAMESERVER)).values():
                return
            await asyncio.sleep(0.2)
        raise TimeoutError(f"broker n{node} does not come back within {_SETTLE_S} s")
