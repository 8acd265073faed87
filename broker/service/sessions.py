"""Signs of life of clients, and the names of their sessions at the leader (D14).

A session is named by a hash of the client id, so a new leader finds it again. Every call and every open Telemetry
stream, on any node, is a sign of life; followers report those of their clients, each every few seconds.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Callable, Iterable
from functools import lru_cache
from typing import Final

from ..leader.leader_view import SESSION_TIMEOUT_MS

#: A client without any sign of life for so long is gone.
SILENCE_SECONDS: Final = 120.0
#: Reports, one a second, in which each client has its turn. A session outlives three of its turns.
ROUND: Final = 5
#: Of fewer clients than that each is in every report.
FEW: Final = 500
CALLER_SECONDS: Final = SILENCE_SECONDS - SESSION_TIMEOUT_MS / 1000 - ROUND


class TooManyClientsError(Exception):
    """A node knows as many clients as `max_clients` allows."""

    def __init__(self, limit: int) -> None:
        super().__init__(
            f"this node serves {limit} clients already, the limit (max_clients of the brokers). One that is silent for "
            f"{SILENCE_SECONDS:g} s makes room: repeat it later or at another node, or raise max_clients"
        )


@lru_cache(1024)
def session_of(client_id: str) -> int:
    """Return the session id of a client: 64 bits, never 0."""
    digest = hashlib.blake2b(client_id.encode(), digest_size=8, person=b"session").digest()
    return int.from_bytes(digest, "little") or 1


class OpenStreams:
    """The clients with an open Telemetry stream at this node: at most `limit`."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._open: Counter[str] = Counter()

    def client_ids(self) -> Iterable[str]:
        """Return the clients with an open stream."""
        return list(self._open)

    def check_room(self, client_id: str) -> None:
        """Check that one more stream may be opened. Raises: TooManyClientsError."""
        if client_id not in self._open and len(self._open) >= self._limit:
            raise TooManyClientsError(self._limit)

    def opened(self, client_id: str) -> None:
        """Note a stream."""
        self._open[client_id] += 1

    def closed(self, client_id: str) -> bool:
        """Forget a stream; return whether it was the client's last."""
        self._open[client_id] -= 1
        if self._open[client_id]:
            return False
        del self._open[client_id]
        return True


class ClientsHere:
    """The clients that live at this node: those with an open stream (`connected`), and recent callers.

    A caller counts for so long that, with the leader's own patience on top, it is gone 120 s after its last sign of life.
    One whose stream ended counts no longer, unless it calls again: its process is probably gone. Time: monotonic seconds.
    """

    def __init__(self, connected: Callable[[], Iterable[str]], limit: int) -> None:
        self._connected = connected
        self._limit = limit
        self._heard: dict[str, float] = {}  # the one that was silent longest first
        self._in_turn: list[str] = []  # of this round, whose turn has not come
        self._at_once = FEW

    def heard(self, client_id: str, now: float) -> None:
        """Note a call of a client. Raises: TooManyClientsError (it is a new one)."""
        if not client_id:
            return
        known = self._heard.pop(client_id, None)
        if known is None and len(self._heard) >= self._limit:
            self._forget_silent(now)
            if len(self._heard) >= self._limit:
                raise TooManyClientsError(self._limit)
        self._heard[client_id] = now

    def _forget_silent(self, now: float) -> None:
        while self._heard and now - self._heard[first := next(iter(self._heard))] >= CALLER_SECONDS:
            del self._heard[first]

    def stream_ended(self, client_id: str) -> None:
        """Its last stream ended."""
        self._heard.pop(client_id, None)

    def alive(self, now: float) -> list[str]:
        """Return everybody who lives."""
        self._forget_silent(now)
        return sorted(self._heard.keys() | set(self._connected()))

    def report(self, now: float) -> list[str]:
        """Return who is to be reported now. Call it every second: everybody has a turn in ROUND calls.

        All of thousands of clients in each report would keep both nodes from their other work.
        """
        if not self._in_turn:
            self._in_turn = self.alive(now)
            self._at_once = max(FEW, -(-len(self._in_turn) // ROUND))
        turn, self._in_turn = self._in_turn[: self._at_once], self._in_turn[self._at_once :]
        connected = set(self._connected())
        return [name for name in turn if name in self._heard or name in connected]
