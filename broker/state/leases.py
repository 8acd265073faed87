"""What a consumer group has of one queue: its position, the leases that are out, and what is parked (D14).

`position` is one past the last offset that was granted or skipped. Below it, an offset is done exactly when it has no row
in `leases`; so acknowledgements out of order need no intervals of their own, and `committed` is the first row. A parked
message has no row there, but one in `parked`: it is not delivered until it is released, and holds no offset back.

Owns: the transitions.   Must not: choose what to lease or to park (`broker/leader/selection.py`), read clocks: `now` is an entry's log time.
Invariants: leases and parked messages are sorted by offset, all below `position`, none in both; a Consumption never changes,
so a snapshot keeps it.
In a FIFO group an acknowledged offset behind an open one keeps its row (flag ACKED), because the whole batch comes again.
A message that was parked and released (flag RELEASED) belongs to no batch until it is granted.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

import numpy as np

LEASE_DTYPE: Final = np.dtype(
    [
        ("offset", "<i8"),
        ("lease_id", "<u8"),  # log index of the grant or of the last change
        ("deadline", "<i8"),  # log time (ms) at which it ends; NEVER while it belongs to a session
        ("session", "<u8"),  # 0: ends by time
        ("attempt", "<u4"),
        ("flags", "<u4"),
    ]
)
NEVER: Final = (1 << 63) - 1
ACKED: Final = 1
RELEASED: Final = 2
PARKED_DTYPE: Final = np.dtype(
    [
        ("offset", "<i8"),
        ("parked_at", "<i8"),  # log time, ms
        ("attempts", "<u4"),
        ("reason", "<u4"),  # ParkReason
    ]
)
#: Parked messages of a consumer group in one queue. Beyond them nothing is parked: what fails is delivered again.
PARKED_MAX: Final = 1024
NO_LEASES: Final = np.empty(0, LEASE_DTYPE)
NO_PARKED: Final = np.empty(0, PARKED_DTYPE)
_NO_OFFSETS: Final = np.empty(0, np.int64)


def locate(leases: np.ndarray, offsets: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return for each offset the place of its row, and whether it has one (places of others are 0)."""
    if not len(leases):
        return np.zeros(len(offsets), np.int64), np.zeros(len(offsets), bool)
    places = np.searchsorted(leases["offset"], offsets)
    places[places == len(leases)] = 0
    return places, leases["offset"][places] == offsets


@dataclass(frozen=True, slots=True, eq=False)
class Consumption:
    """The state of one group in one queue."""

    position: int
    leases: np.ndarray = field(default_factory=lambda: NO_LEASES)
    #: Messages that retention took from the group before it was given any or committed anything again.
    lost: int = 0
    parked: np.ndarray = field(default_factory=lambda: NO_PARKED)
    _next_deadline: int | None = field(default=None, init=False, repr=False)

    @property
    def committed(self) -> int:
        """Everything below is done."""
        return int(self.leases["offset"][0]) if len(self.leases) else self.position

    @property
    def leased_count(self) -> int:
        return int(np.count_nonzero(self.leases["flags"] & ACKED == 0)) if len(self.leases) else 0

    @property
    def next_deadline(self) -> int:
        """Log time (ms) at which the first lease ends; NEVER when none ends by itself."""
        if not len(self.leases):
            return NEVER
        if self._next_deadline is None:  # polls ask far more often than leases change
            open_rows = self.leases["flags"] & ACKED == 0
            soonest = int(self.leases["deadline"][open_rows].min(initial=NEVER))
            object.__setattr__(self, "_next_deadline", soonest)
            return soonest
        return self._next_deadline

    @property
    def last_deadline(self) -> int:
        """Log time (ms) at which the last lease ends; 0 without leases."""
        open_rows = self.leases["flags"] & ACKED == 0
        return int(self.leases["deadline"][open_rows].max(initial=0))

    def expired(self, now: int) -> np.ndarray:
        """Return the rows whose lease has ended."""
        rows: np.ndarray = self.leases[(self.leases["deadline"] <= now) & (self.leases["flags"] & ACKED == 0)]
        return rows

    def grant(
        self, start: int, end: int, offsets: np.ndarray, lease_id: int, deadline: int, session: int, now: int
    ) -> tuple[Consumption, np.ndarray, np.ndarray]:
        """Lease `offsets`: those below `start` again, when they have expired; the others newly, when the position is `start`.

        Returns the new state, the offsets really granted, and their attempts.
        """
        renewed = offsets[offsets < start]
        places, found = locate(self.leases, renewed)
        ended = (
            (self.leases["deadline"][places] <= now) | (self.leases["flags"][places] & ACKED != 0)
            if len(self.leases)
            else found
        )
        places = places[found & ended]
        fresh = offsets[offsets >= start] if start == self.position else _NO_OFFSETS
        leases = np.empty(len(self.leases) + len(fresh), LEASE_DTYPE)
        leases[: len(self.leases)] = self.leases
        leases[len(self.leases) :] = 0
        leases["offset"][len(self.leases) :] = fresh
        touched = np.concatenate((places, np.arange(len(self.leases), len(leases))))
        leases["attempt"][touched] += 1
        leases["lease_id"][touched] = lease_id
        leases["deadline"][touched] = deadline
        leases["session"][touched] = session
        leases["flags"][touched] = 0
        position = max(self.position, end) if start == self.position else self.position
        lost = 0 if len(touched) else self.lost  # who gets messages is told what is missing before them
        after = Consumption(position, leases, lost, self.parked)
        return after, leases["offset"][touched], leases["attempt"][touched]

    def acknowledge(
        self, offsets: np.ndarray, lease_ids: np.ndarray, now: int, *, force: bool, fifo: bool
    ) -> tuple[Consumption, np.ndarray]:
        """Finish leases. Returns the new state and, per row, whether it was accepted.

        Accepted: the current lease, not expired (or `force`), and what is done already, but not what is parked. Twice is fine.
        """
        places, found, current = self._current(offsets, lease_ids)
        accepted = np.where(found, current, (offsets >= 0) & (offsets < self.position))
        if len(self.parked):
            accepted &= ~np.isin(offsets, self.parked["offset"])
        if not found.any():
            return self, accepted
        rows = self.leases[places]
        if not force:
            accepted &= ~found | (rows["deadline"] > now) | (rows["flags"] & ACKED != 0)
        done = places[found & accepted]
        if not len(done):
            return self, accepted
        leases = self.leases.copy()
        leases["flags"][done] |= ACKED
        return self._with(_without_acked(leases, fifo=fifo)), accepted

    def change(
        self, offsets: np.ndarray, lease_ids: np.ndarray, deadlines: np.ndarray, new_id: int, now: int
    ) -> tuple[Consumption, np.ndarray]:
        """Move the end of current leases and give them a new id. Returns the new state and what was accepted."""
        places, found, current = self._current(offsets, lease_ids)
        accepted = found & current
        if accepted.any():
            rows = self.leases[places]
            accepted &= (rows["deadline"] > now) & (rows["flags"] & ACKED == 0)
        if not accepted.any():
            return self, accepted
        leases = self.leases.copy()
        touched = places[accepted]
        leases["deadline"][touched] = deadlines[accepted]
        leases["lease_id"][touched] = new_id
        leases["session"][touched] = 0
        return self._with(leases), accepted

    def release(self, offsets: np.ndarray, lease_ids: np.ndarray, now: int) -> tuple[Consumption, np.ndarray]:
        """End current leases now and take the attempt back. Returns the new state and what was accepted."""
        places, found, current = self._current(offsets, lease_ids)
        accepted = found & current
        if accepted.any():
            accepted &= self.leases["flags"][places] & ACKED == 0
        touched = np.unique(places[accepted])
        if not len(touched):
            return self, accepted
        leases = self.leases.copy()
        leases["deadline"][touched] = np.minimum(leases["deadline"][touched], now)
        leases["session"][touched] = 0
        leases["lease_id"][touched] = 0  # no handle fits any more
        leases["attempt"][touched] -= np.minimum(leases["attempt"][touched], 1)
        return self._with(leases), accepted

    def holds(self, offsets: np.ndarray, lease_id: int) -> np.ndarray:
        """Tell which offsets are out under this very lease."""
        places, _, current = self._current(offsets, np.full(len(offsets), lease_id, np.uint64))
        return current & (self.leases["flags"][places] & ACKED == 0) if len(self.leases) else current

    def end_session(self, session: int, deadline: int) -> Consumption:
        """The leases of a session end at `deadline`."""
        mine = self.leases["session"] == session
        if not mine.any():
            return self
        leases = self.leases.copy()
        leases["deadline"][mine] = deadline
        leases["session"][mine] = 0
        return self._with(leases)

    def advance(self, offset: int) -> Consumption:
        """Everything below `offset` is done; never goes back."""
        if offset <= self.committed:
            return self
        return Consumption(max(self.position, offset), self._from(offset), 0, self.parked)

    def reset(self, offset: int) -> Consumption:
        """Go on at `offset`. What is parked below it stays so; from there on everything comes again."""
        return Consumption(offset, parked=self.parked[self.parked["offset"] < offset])

    def lose(self, begin: int) -> tuple[Consumption, int]:
        """Messages below `begin` are deleted. Returns the new state and how many of them were not done, or parked."""
        open_rows = (self.leases["flags"] & ACKED == 0) & (self.leases["offset"] < begin)
        kept = self.parked[self.parked["offset"] >= begin]
        count = int(np.count_nonzero(open_rows)) + max(begin - self.position, 0)
        count += len(self.parked) - len(kept)
        return Consumption(max(self.position, begin), self._from(begin), self.lost + count, kept), count

    # --- parking --------------------------------------------------------------------------------------------
    @property
    def first_needed(self) -> int:
        """The lowest offset that is not done, or parked."""
        return min(self.committed, int(self.parked["offset"][0])) if len(self.parked) else self.committed

    def park(self, rows: np.ndarray, reason: int, now: int, *, fifo: bool) -> tuple[Consumption, np.ndarray]:
        """Take leases out of delivery. `rows`: PARK_DTYPE. Returns the new state and what was accepted: current leases,

        ended or not, as long as there is room. In a FIFO group what was behind them begins to count its attempts anew: it
        came again and again because of them.
        """
        places, found, current = self._current(rows["offset"], rows["lease_id"])
        accepted = found & current
        if accepted.any():
            accepted &= self.leases["flags"][places] & ACKED == 0
            accepted &= np.cumsum(accepted) <= PARKED_MAX - len(self.parked)
        touched, first = np.unique(places[accepted], return_index=True)
        if not len(touched):
            return self, accepted
        parked = np.zeros(len(touched), PARKED_DTYPE)
        parked["offset"] = self.leases["offset"][touched]
        parked["parked_at"] = now
        parked["attempts"] = np.maximum(self.leases["attempt"][touched], rows["attempts"][accepted][first])
        parked["reason"] = reason
        leases = np.delete(self.leases, touched)
        if fifo:
            leases["attempt"] = 0
        left = _without_acked(leases, fifo=fifo)
        return Consumption(self.position, left, self.lost, _sorted(self.parked, parked)), accepted

    def unpark(self, offsets: np.ndarray, now: int) -> tuple[Consumption, np.ndarray]:
        """Deliver parked messages again, with all attempts. Returns the new state and which offsets were parked."""
        accepted = np.isin(offsets, self.parked["offset"])
        if not accepted.any():
            return self, accepted
        going = np.isin(self.parked["offset"], offsets)
        back = np.zeros(int(np.count_nonzero(going)), LEASE_DTYPE)
        back["offset"] = self.parked["offset"][going]
        back["deadline"] = now
        back["flags"] = RELEASED
        return Consumption(
            self.position, _sorted(self.leases, back), self.lost, self.parked[~going]
        ), accepted

    def _with(self, leases: np.ndarray) -> Consumption:
        return Consumption(self.position, leases, self.lost, self.parked)

    def _from(self, offset: int) -> np.ndarray:
        """Return the leases from an offset on. Finished ones that no open one precedes any more are done."""
        return _without_acked(self.leases[self.leases["offset"] >= offset], fifo=True)

    def _current(
        self, offsets: np.ndarray, lease_ids: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return places, which offsets have a row, and which name its current lease."""
        places, found = locate(self.leases, offsets)
        current = found & (self.leases["lease_id"][places] == lease_ids) if len(self.leases) else found
        return places, found, current


def _without_acked(leases: np.ndarray, *, fifo: bool) -> np.ndarray:
    """Drop finished rows; in a FIFO group only those that no open row of their batch precedes."""
    open_rows = leases["flags"] & ACKED == 0
    if not open_rows.any():
        return NO_LEASES
    if fifo:
        in_batch = leases["flags"] & (ACKED | RELEASED) == 0
        if in_batch.any():
            open_rows[int(in_batch.argmax()) :] = True
    kept: np.ndarray = leases[open_rows]
    return kept


def _sorted(rows: np.ndarray, more: np.ndarray) -> np.ndarray:
    """Return both, by offset."""
    joined = np.concatenate((rows, more))
    return joined[np.argsort(joined["offset"], kind="stable")]
