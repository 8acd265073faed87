"""Signs of life of clients, and the names of their sessions at the leader (D14).

A session is named by a hash of the client id, so a new leader finds it again. Every call and every open Telemetry
stream, on any node, is a sign of life; followers report those of their clients every second.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable
from functools import lru_cache
from typing import Final

from .leader_view import SESSION_TIMEOUT_MS

#: A client without any sign of life for so long is gone.
SILENCE_SECONDS: Final = 120.0
CALLER_SECONDS: Final = SILENCE_SECONDS - SESSION_TIMEOUT_MS / 1000


@lru_cache(1024)
def session_of(client_id: str) -> int:
    """Return the session id of a client: 64 bits, never 0."""
    digest = hashlib.blake2b(client_id.encode(), digest_size=8, person=b"session").digest()
    return int.from_bytes(digest, "little") or 1


class ClientsHere:
    """The clients that live at this node: those with an open stream (`connected`), and recent callers.

    A caller counts for so long that, with the leader's own patience on top, it is gone 120 s after its last sign of life.
    One whose stream ended counts no longer, unless it calls again: its process is probably gone. Time: monotonic seconds.
    """

    def __init__(self, connected: Callable[[], Iterable[str]]) -> None:
        self._connected = connected
        self._heard: dict[str, float] = {}

    def heard(self, client_id: str, now: float) -> None:
        """Note a call of a client."""
        if client_id:
            self._heard[client_id] = now

    def stream_ended(self, client_id: str) -> None:
        """Its last stream ended."""
        self._heard.pop(client_id, None)

    def alive(self, now: float) -> list[str]:
        """Return everybody who lives."""
        self._heard = {name: at for name, at in self._heard.items() if now - at < CALLER_SECONDS}
        return sorted(self._heard.keys() | set(self._connected()))
