"""Interface of a system that can be measured."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any, Protocol


class Session(Protocol):
    """Connected clients of one process, with their own fresh queue, topic or stream.

    Abilities of only some systems are found by name: `pipeline` (the leanest client, RabbitMQ and Kafka),
    `batch` (LedgerMQ and RocketMQ), `callers` (LedgerMQ).
    """

    async def send(self, body: bytes) -> Any:
        """Store one message. Returns once it is acknowledged. Producers take turns."""

    async def preload(self, body: bytes, count: int) -> int:
        """Fill the queue as fast as the client can. Returns how many are stored."""

    async def drain(self, count: int) -> int:
        """Receive and acknowledge `count` messages. Returns how many arrived."""

    async def listen(self, on_body: Callable[[bytes], None]) -> None:
        """Start a consumer in this process that acknowledges each message."""

    async def close(self) -> None: ...


class System(Protocol):
    """Three nodes of a peer on loopback.

    Peers on Java have two members more, found by name: `prepare()` returns what this machine lacks to run
    them, "" if nothing, after it has their jars; `compiles` is set, so that they are warmed until their rate
    stands still.
    """

    name: str
    acknowledged: str  # what an acknowledgement means: who has the message, and where

    def version(self) -> str: ...

    async def start(self, folder: Path) -> None: ...

    async def stop(self) -> None: ...

    def pids(self) -> Sequence[int]: ...

    async def open(self, name: str, producers: int = 1) -> Session: ...

    async def open_for_failover(
        self, name: str
    ) -> tuple[Callable[[int], Awaitable[Any]], Callable[[int], None], Callable[[], Awaitable[Any]]]:
        """Return (send number, send the leader a signal, close and restart the ended node)."""
