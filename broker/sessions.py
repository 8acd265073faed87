"""Client sessions at the leader: auto-renewed leases live as long as their client shows signs of life (D14).

A session is named by a hash of the client id, so a new leader finds it again. Every call and every open Telemetry
stream, on any node, is a sign of life. Pure: time comes in as monotonic seconds.
Invariant: a session that holds leases is in the table, or is put there with the grace of a new leader.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from typing import Final

#: Without any sign of life for so long, a client is gone.
SESSION_TIMEOUT: Final = 120.0
#: What a new leader gives sessions that it has not heard of yet.
NEW_LEADER_GRACE: Final = 15.0


def session_of(client_id: str) -> int:
    """Return the session id of a client: 64 bits, never 0."""
    digest = hashlib.blake2b(client_id.encode(), digest_size=8, person=b"session").digest()
    return int.from_bytes(digest, "little") or 1


class Sessions:
    """When each client was last heard."""

    def __init__(self) -> None:
        self._deadlines: dict[int, float] = {}

    def touch(self, client_id: str, now: float) -> None:
        """Note a sign of life."""
        self._deadlines[session_of(client_id)] = now + SESSION_TIMEOUT

    def touch_all(self, client_ids: Iterable[str], now: float) -> None:
        """Note signs of life of many clients."""
        for client_id in client_ids:
            self.touch(client_id, now)

    def end(self, client_id: str) -> int:
        """Forget a client that said goodbye; return its session."""
        session = session_of(client_id)
        self._deadlines.pop(session, None)
        return session

    def expired(self, holders: Iterable[int], now: float) -> list[int]:
        """Return the sessions that hold leases and were silent too long; forget all that were.

        `holders` are the sessions with leases; one that is not known yet gets the grace of a new leader.
        """
        gone = []
        for session in holders:
            deadline = self._deadlines.setdefault(session, now + NEW_LEADER_GRACE)
            if deadline <= now:
                gone.append(session)
        for session in [each for each, deadline in self._deadlines.items() if deadline <= now]:
            del self._deadlines[session]
        return gone
