"""What only the leader knows: queue offsets and leases that are proposed but not applied yet (D13, D14, D15).

Volatile: built when the node has applied the no-op of its term, thrown away when it no longer leads. One `Turn`
collects what becomes one entry:

    turn = view.open_turn(token)              # token: what a waiting duplicate shall wait for (a future)
    admission = turn.add_records(section)     # retries recognised, offset assigned, section sealed
    slot = turn.add_command(command)          # effects.results[slot] after apply
    plan = turn.grant(request, now)           # selects messages, reserves them, adds the commands
    parts, section_count = turn.close()
    proposal = node.propose(parts, section_count)   # raises: turn.abandon()
    turn.bind(proposal.index)
    ...  effects = state.apply(header, payload); view.on_applied(header.index)

Everything from `open_turn` to `bind` happens in one step of the event loop. When leadership is lost, drop the view and
fail what waits with *unknown*.

(interface first; the bodies follow)
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum

import numpy as np

from ledgermq.proto.entry import Buffer

from .commands import Command
from .effects import GrantResult
from .state import BrokerState


class Verdict(Enum):
    ACCEPTED = "accepted"  # in this turn
    DUPLICATE = (
        "duplicate"  # stored before; `base_offset` is that of the first copy (-1: too long ago to know)
    )
    PENDING = "pending"  # the first copy is in `turn`, undecided: wait for it, then answer with `base_offset`
    SEQUENCE_GAP = "sequence_gap"  # also: an unknown stream must begin at 0
    STALE_EPOCH = "stale_epoch"
    TOPIC_GONE = "topic_gone"  # no topic of that id
    QUEUE_NOT_FOUND = "queue_not_found"


@dataclass(frozen=True, slots=True)
class Admission:
    """What became of a section. `expected_sequence` is set with SEQUENCE_GAP."""

    verdict: Verdict
    base_offset: int = -1
    turn: Turn | None = None
    expected_sequence: int = 0


@dataclass(frozen=True, slots=True)
class KnownMessage:
    """A message id that was seen: where it is, and the turn that decides when it is not applied yet."""

    queue_id: int
    offset: int
    turn: Turn | None


@dataclass(frozen=True, slots=True)
class ReceiveRequest:
    """What a consumer asks for. `tags`: hashes (proto.record.hash_text), None = all. `session` 0: lease by time."""

    group_id: int
    topic_id: int
    max_count: int
    invisible_ms: int
    tags: frozenset[int] | None = None
    session: int = 0
    attempt_id: str = ""  # FIFO groups: the same id gets the same batch again
    dead_letters: bool = False  # True: messages over max_attempts come as `exhausted`, not as deliveries


@dataclass(frozen=True, slots=True)
class Delivery:
    """One message to send out, after its grant is applied. Offsets and size are those of the record in the log."""

    queue_id: int
    queue_offset: int
    physical_offset: int
    size: int
    tag_hash: int
    attempt: int
    lease_id: int


@dataclass(slots=True, eq=False)
class GrantPlan:
    """Outcome of a selection.

    `slot` is None when nothing was added to the turn: then `cold` may name reads that must be done first
    (`await to_thread(state.queues.load, read)`, `state.queues.admit(...)`, then select again), or `unresolved` queues whose start
    must be looked up by time (propose SetPositions, then select again), or there is just nothing to deliver.
    """

    slot: int | None = None
    cold: Sequence[object] = ()
    unresolved: Sequence[int] = ()
    exhausted: Sequence[
        Delivery
    ] = ()  # reserved until the turn ends: move them with a copy and Ack(force=True)

    def deliveries(self, result: GrantResult) -> list[Delivery]:
        """Return what to send, from `effects.results[plan.slot]`."""
        raise NotImplementedError


class Turn:
    """What one append turn collects for one entry. `token` is whatever the shell wants waiters to wait for."""

    token: object
    index: int  # of the entry, after `bind`
    size: int  # bytes of payload so far

    def add_records(self, section: bytearray) -> Admission:
        """Admit one RECORDS section (its structure and checksum are checked already) and seal it in place."""
        raise NotImplementedError

    def add_command(self, command: Command) -> int:
        """Add a command; return its place in `effects.results`."""
        raise NotImplementedError

    def grant(self, request: ReceiveRequest, now: int) -> GrantPlan:
        """Select messages for a consumer at log time `now` (ms), reserve them and add the commands."""
        raise NotImplementedError

    def close(self) -> tuple[list[Buffer], int]:
        """Return (parts, section count) for `propose`; (  [], 0) when there is nothing to propose."""
        raise NotImplementedError

    def bind(self, index: int) -> None:
        """The entry was proposed with this index."""
        raise NotImplementedError

    def abandon(self) -> None:
        """Nothing was proposed: give back offsets and reservations. Only the newest turn can be abandoned."""
        raise NotImplementedError


class LeaderView:
    """Pending offsets, retries and reservations of the leader of one term."""

    def __init__(self, state: BrokerState, term: int, timestamp: int) -> None:
        """`timestamp`: log time (ms) at which the no-op was applied; sessions get 15 s of grace from there."""

    def open_turn(self, token: object = None) -> Turn:
        raise NotImplementedError

    def on_applied(self, index: int) -> None:
        """Forget what the applied entry decided. Call after `state.apply` of every entry, own or not."""
        raise NotImplementedError

    def next_offset(self, topic_id: int, queue_id: int) -> int:
        """Queue offset that the next accepted record gets."""
        raise NotImplementedError

    def find_message(self, topic_id: int, message_id: bytes) -> KnownMessage | None:
        """Find a MessagingService message by its 16-byte id, applied or pending: a retry gets the first one's result."""
        raise NotImplementedError

    def has_deliverable(self, request: ReceiveRequest, now: int) -> bool:
        """Tell cheaply whether `grant` could find something (it may still find nothing: filters)."""
        raise NotImplementedError

    def next_expiry(self, group_id: int, topic_id: int) -> int | None:
        """Log time (ms) when the next lease of the group in the topic ends by itself; None: none does."""
        raise NotImplementedError

    def session_seen(self, session: int, now: int) -> None:
        """A client session is alive at log time `now`."""
        raise NotImplementedError

    def session_closed(self, session: int) -> None:
        """A client said goodbye: its leases are reported lost by the next `housekeeping`."""
        raise NotImplementedError

    def housekeeping(self, now: int) -> list[Command]:
        """Return the commands that are due at log time `now`: lost sessions, deduplication windows. Often none."""
        raise NotImplementedError


def tag_hashes(values: np.ndarray, tags: frozenset[int]) -> np.ndarray:
    """Return a bool array: which of the tag hashes are wanted."""
    raise NotImplementedError
