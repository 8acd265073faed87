"""The chain of one message: from `send` through leader, flushes and followers back to its receipt.

Pure. Times are in ns of one clock.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import pairwise

from .probe import Event

#: Names of the hops, in order; those of the follower are of the one whose answer decided.
HOPS = (
    "client: send to socket",
    "client to leader: wire and wake-up",
    "leader: read to append sent",
    "leader to follower: wire and wake-up",
    "follower: read to flush",
    "follower: flush",
    "follower: flushed to answer",
    "follower to leader: wire and wake-up",
    "leader: commit to answer",
    "leader to client: wire and wake-up",
    "client: read to receipt",
)
#: Beside the chain, and part of it when the follower was quicker.
ASIDE = (
    "leader: read to flush",
    "leader: flush",
    "leader waits for its own flush after the follower's answer",
)


class Stamps:
    """Stamps of one process, by what they are of."""

    def __init__(self, events: Sequence[Event]) -> None:
        self._times: dict[tuple[str, int, int], list[int]] = defaultdict(list)
        for at, what, own, peer in events:
            self._times[what, own, peer].append(at)

    def after(self, at: int, what: str, own: int = 0, peer: int = 0) -> int:
        """Return the first such stamp at `at` or later. Raises: LookupError."""
        times = self._times.get((what, own, peer), [])
        place = bisect_left(times, at)
        if place == len(times):
            raise LookupError(f"no {what} after {at}")
        return times[place]

    def out_after(self, at: int, peer: int) -> tuple[int, int]:
        """Return the first write at `at` or later to this port of a peer, and its own port.

        Raises: LookupError.
        """
        found = []
        for what, own, to in self._times:
            if what == "out" and to == peer:
                with suppress(LookupError):
                    found.append((self.after(at, what, own, peer), own))
        if not found:
            raise LookupError(f"nothing was sent to {peer} after {at}")
        return min(found)


@dataclass(frozen=True, slots=True)
class Chain:
    """One message: durations in ns in the order of `HOPS` and of `ASIDE`."""

    hops: tuple[int, ...]
    aside: tuple[int, ...]


def chain_of(
    sent: int,
    done: int,
    client: Stamps,
    leader: Stamps,
    followers: Mapping[int, Stamps],
    ports: tuple[int, int],
) -> Chain:
    """Return the chain of the message that was sent at `sent`, with its receipt at `done`.

    `followers`: by Raft port. `ports`: the leader's for clients and for nodes. Raises: LookupError (a stamp
    is missing, or something else was sent meanwhile).
    """
    log_port, raft_port = ports
    out, own = client.out_after(sent, log_port)
    read = leader.after(out, "in", log_port, own)
    flush = leader.after(read, "flush")
    flushed = leader.after(flush, "flushed")
    answered, *way = min(_way(read, leader, raft_port, port, stamps) for port, stamps in followers.items())
    committed = max(answered, flushed)
    answer = leader.after(committed, "out", log_port, own)
    came = client.after(answer, "in", own, log_port)
    hops = [after - before for before, after in pairwise((sent, out, read, *way, answered))]
    hops += [answer - committed, came - answer, done - came]
    if min(hops) < 0:
        raise LookupError("stamps of two messages")
    return Chain(tuple(hops), (flush - read, flushed - flush, committed - answered))


def _way(read: int, leader: Stamps, raft_port: int, port: int, follower: Stamps) -> tuple[int, ...]:
    """Return when the answer of the follower at `port` came, and the stamps that led to it.

    Each node sends on connections that it opened: the answer does not come back on the append's.
    """
    appended, own = leader.out_after(read, port)
    at_follower = follower.after(appended, "in", port, own)
    begun = follower.after(at_follower, "flush")
    ended = follower.after(begun, "flushed")
    replied, own = follower.out_after(ended, raft_port)
    answered = leader.after(replied, "in", raft_port, own)
    return (answered, appended, at_follower, begun, ended, replied)
