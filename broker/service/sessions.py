"""Signs of life of clients, and their session ids at the leader (D14).

A session id is a hash of the client id, so a new leader computes the same one. Every call and every open
Telemetry stream, on any node, is a sign of life. Followers report those of their clients, each every few
seconds.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import lru_cache
from typing import Final

from ledgermq.raft.node.raft_node import RaftNode

from ..leader.leader_view import SESSION_TIMEOUT_MS
from ..leader.releases import LeaseHolders
from ..replica import Replica

#: A client without a sign of life for this long is gone.
SILENCE_SECONDS: Final = 120.0
#: Number of reports, sent one a second, that cover all clients. A session outlives three of its turns.
ROUND: Final = 5
#: With fewer clients than this, every report contains all of them.
FEW: Final = 500
CALLER_SECONDS: Final = SILENCE_SECONDS - SESSION_TIMEOUT_MS / 1000 - ROUND


class TooManyClientsError(Exception):
    """A node already serves as many clients as `max_clients` allows."""

    def __init__(self, limit: int) -> None:
        super().__init__(
            f"this node serves {limit} clients already, the limit (max_clients of the brokers). One that is "
            f"silent for {SILENCE_SECONDS:g} s makes room: repeat it later or at another node, or raise "
            "max_clients"
        )


@lru_cache(1024)
def session_of(client_id: str) -> int:
    """Return the session id of a client: 64 bits, never 0."""
    digest = hashlib.blake2b(client_id.encode(), digest_size=8, person=b"session").digest()
    return int.from_bytes(digest, "little") or 1


class ClientsHere:
    """Clients of this node: those with an open Telemetry stream, and recent callers; at most `limit` of each.

    A caller counts for CALLER_SECONDS. With the leader's own session timeout on top, it is gone 120 s after
    its last sign of life. A client whose stream ended no longer counts unless it calls again: its process has
    probably exited. Time: monotonic seconds.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._streams: Counter[str] = Counter()  # open streams by client
        self._heard: dict[str, float] = {}  # time of each caller's last call, the oldest first
        self._in_turn: list[str] = []  # clients that this round has not reported yet
        self._at_once = FEW  # clients per report of this round

    def check_room_for_stream(self, client_id: str) -> None:
        """Check that a client may open a stream. Raises: TooManyClientsError."""
        if client_id not in self._streams and len(self._streams) >= self._limit:
            raise TooManyClientsError(self._limit)

    def stream_opened(self, client_id: str) -> None:
        """Count a stream that was opened."""
        self._streams[client_id] += 1

    def stream_closed(self, client_id: str) -> None:
        """Drop a stream that was closed; forget the client if it was its last."""
        self._streams[client_id] -= 1
        if not self._streams[client_id]:
            del self._streams[client_id]
            self._heard.pop(client_id, None)

    def heard(self, client_id: str, now: float) -> None:
        """Note a call of a client. Raises: TooManyClientsError when a new client exceeds the limit."""
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

    def alive(self, now: float) -> list[str]:
        """Return the ids of all live clients."""
        self._forget_silent(now)
        return sorted(self._heard.keys() | self._streams.keys())

    def report(self, now: float) -> list[str]:
        """Return the clients to report now. Call it every second: ROUND calls cover all clients.

        Reporting thousands of clients each time would keep both nodes from their other work.
        """
        if not self._in_turn:
            self._in_turn = self.alive(now)
            self._at_once = max(FEW, -(-len(self._in_turn) // ROUND))
        turn, self._in_turn = self._in_turn[: self._at_once], self._in_turn[self._at_once :]
        return [name for name in turn if name in self._heard or name in self._streams]


@dataclass(eq=False, repr=False)
class SignsOfLife:
    """Notes signs of life of this node's clients and, on the leader, of every node's clients."""

    _clients: ClientsHere
    _raft: RaftNode
    _replica: Replica
    _holders: LeaseHolders
    _clock: Callable[[], float]  # monotonic seconds

    def heard(self, client_id: str, *, here: bool = True) -> None:
        """Note a call of a client. With `here` False, another node forwarded the call and reports the client.
        Raises: TooManyClientsError.
        """
        if here:
            self._clients.heard(client_id, self._clock())
        self.alive([client_id])

    def alive(self, client_ids: Iterable[str]) -> None:
        """Refresh the sessions of clients of any node. Has an effect on the leader only."""
        if (view := self._replica.view) is not None:
            now = self._raft.next_timestamp()
            for client_id in client_ids:
                session = session_of(client_id)
                view.session_seen(session, now)
                self._holders.seen(client_id, session)

    def gone(self, client_id: str) -> None:
        """End a client's session and its auto-renewed leases. Has an effect on the leader only."""
        if (view := self._replica.view) is not None:
            view.session_closed(session_of(client_id))
            self._replica.keep_house()
