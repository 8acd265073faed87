"""Signs of life of clients, and the names of their sessions at the leader (D14).

A session is named by a hash of the client id, so a new leader finds it again. Every call and every open Telemetry
stream, on any node, is a sign of life; followers report those of their clients every second.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable


def session_of(client_id: str) -> int:
    """Return the session id of a client: 64 bits, never 0."""
    digest = hashlib.blake2b(client_id.encode(), digest_size=8, person=b"session").digest()
    return int.from_bytes(digest, "little") or 1


class ClientsHere:
    """The clients that gave a sign of life at this node since the last report. `connected`: those with open streams."""

    def __init__(self, connected: Callable[[], Iterable[str]]) -> None:
        self._connected = connected
        self._heard: set[str] = set()

    def heard(self, client_id: str) -> None:
        """Note a call of a client."""
        if client_id:
            self._heard.add(client_id)

    def take(self) -> list[str]:
        """Return everybody who lives, and begin anew."""
        alive = self._heard.union(self._connected())
        self._heard = set()
        return sorted(alive)
