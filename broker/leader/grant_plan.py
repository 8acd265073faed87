"""Values exchanged between the leader's selection and its shell: requests, plans, deliveries (D14).

Owns: nothing; values only.   Must not: choose messages (selection.py does).
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from ..state.commands import Command
from ..state.consume_queue import ColdRead
from ..state.effects import GrantResult


@dataclass(frozen=True, slots=True)
class ReceiveRequest:
    """Request of a consumer for messages of one topic."""

    group_id: int
    topic_id: int
    max_count: int  # messages
    invisible_ms: int  # duration of leases by time
    tags: frozenset[int] | None = None  # hashes (proto.record.hash_text); None: all messages
    session: int = 0  # session that keeps the leases; 0: lease by time
    attempt_id: str = ""  # FIFO consumer groups: a repeated id gets the same batch again
    max_bytes: int = 8 << 20  # limit for the sum of record sizes; at least one message is selected


@dataclass(frozen=True, slots=True)
class Delivery:
    """One message to deliver once its grant is applied."""

    queue_id: int
    queue_offset: int
    physical_offset: int  # of the record in the log
    size: int  # bytes of the record in the log
    tag_hash: int
    attempt: int  # from 1
    lease_id: int


@dataclass(slots=True, eq=False)
class GrantPlan:
    """Outcome of a selection.

    `slot` is None if no grant was added to the turn. Then check
    * `repeats`: messages with a valid lease, to be delivered at once (FIFO, same attempt id);
    * `cold`: load each (`raw = await to_thread(files.load, read)`, `state.queues.admit(read, raw)`), then
    select
      again;
    * `unresolved`: queue ids whose start must be looked up by time: propose SetPositions, then select again;
    * `unfinished`: the filter used up its budget of this turn: select again in a later turn, after other
    requests;
    * `parks`: exhausted messages are parked; those behind them can be selected once that is applied.
    Otherwise nothing is deliverable. Commands may still have been added: start positions, skipped runs.
    """

    slot: int | None = None  # place of the grant's result in `effects.results`
    repeats: list[Delivery] = field(default_factory=list)
    cold: list[ColdRead] = field(default_factory=list)
    unresolved: list[int] = field(default_factory=list)
    unfinished: bool = False
    parks: bool = False
    commands: list[Command] = field(default_factory=list)  # added to the turn
    units: dict[int, tuple[np.ndarray, np.ndarray]] = field(default_factory=dict)  # queue -> offsets, units

    @property
    def is_decided_by_apply(self) -> bool:
        """Tell whether its commands must be applied before the request can continue."""
        return self.slot is not None or self.parks

    def deliveries(self, result: GrantResult) -> list[Delivery]:
        """Return the deliveries of a grant whose result is `effects.results[plan.slot]`."""
        found: list[Delivery] = []
        for queue in result.queues:
            offsets, units = self.units[queue.queue_id]
            places = np.searchsorted(offsets, queue.offsets)
            found += deliveries_of(
                queue.queue_id,
                queue.offsets,
                units[places],
                queue.attempts,
                np.full(len(places), result.lease_id),
            )
        return found


def deliveries_of(
    queue_id: int, offsets: np.ndarray, units: np.ndarray, attempts: np.ndarray, lease_ids: np.ndarray
) -> list[Delivery]:
    """Return deliveries from columns of equal length; `units`: UNIT_DTYPE."""
    columns = zip(offsets.tolist(), units.tolist(), attempts.tolist(), lease_ids.tolist(), strict=True)
    return [
        Delivery(queue_id, offset, physical_offset, size, tag_hash, attempt, lease_id)
        for offset, (physical_offset, size, tag_hash), attempt, lease_id in columns
    ]
