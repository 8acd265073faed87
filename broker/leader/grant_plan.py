"""What a consumer asks for, and what is chosen for it: the words between the leader's selection and its shell (D14).

Owns: nothing; values only. Must not: choose (selection.py does).
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from ..state.commands import Command
from ..state.consume_queue import ColdRead
from ..state.effects import GrantResult


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
    max_bytes: int = 8 << 20  # bound on the sum of record sizes; at least one is selected


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

    `slot` is None when no grant was added to the turn. Then look at
    * `repeats`: messages whose lease stands, to be delivered at once (FIFO, same attempt id);
    * `cold`: load each (`raw = await to_thread(files.load, read)`, `state.queues.admit(read, raw)`), then select again;
    * `unresolved`: queues whose start must be looked up by time: propose SetPositions, then select again;
    * `unfinished`: the filter looked at as much as a turn may; select again, when others have had theirs;
    * `parks`: messages that failed for the last time are parked; what is behind them can be selected when that is applied;
    else nothing is deliverable (commands may have been added all the same: start positions, skipped runs).
    """

    slot: int | None = None
    repeats: list[Delivery] = field(default_factory=list)
    cold: list[ColdRead] = field(default_factory=list)
    unresolved: list[int] = field(default_factory=list)
    unfinished: bool = False
    parks: bool = False
    commands: list[Command] = field(default_factory=list)  # what was added to the turn
    units: dict[int, tuple[np.ndarray, np.ndarray]] = field(default_factory=dict)  # queue → offsets, units

    @property
    def is_decided_by_apply(self) -> bool:
        """Tell whether what it added to the turn must be applied before anybody goes on."""
        return self.slot is not None or self.parks

    def deliveries(self, result: GrantResult) -> list[Delivery]:
        """Return what to send, from `effects.results[plan.slot]`."""
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
