"""`sync_master`: a producer is answered only after enough slaves hold the message on disk (D24).

If the slaves do not have it in time, the message is committed all the same and stays; the refusal says so. A
repeated send is recognised, and waits here like the first one.
Owns: the number of slaves, the time limit, and the texts of refusals. Must not: decide what is committed
(Raft does).
"""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass
from typing import Final, Protocol

from ledgermq.raft.drive.copies import Copies
from ledgermq.raft.errors import ProposalLostError
from ledgermq.raft.types import LogIndex

_SILENT_FOR_EVER: Final = 1 << 40
_KEPT = (
    "It is kept, unless a slave is promoted that lacks it. Send the same again: a repeat is stored once, and "
    "answered when the slaves have it. See: ledgermq cluster status"
)


class SlavesLackItError(Exception):
    """The master stored it, but fewer slaves than required did."""

    def __init__(self, needed: int, having: int, what: str) -> None:
        super().__init__(
            f"stored by the master, but only {having} of {needed} slaves that must have it {what}. {_KEPT}"
        )


class SlaveTimeoutError(SlavesLackItError):
    """Too few slaves confirmed it in time."""

    def __init__(self, needed: int, held_by: int, waited_ms: int) -> None:
        super().__init__(needed, held_by, f"confirmed it within {waited_ms} ms")


class SlavesAwayError(SlavesLackItError):
    """Too few slaves are in contact."""

    def __init__(self, needed: int, in_contact: int) -> None:
        super().__init__(needed, in_contact, "are in contact")


class Master(Protocol):
    """The part of RaftNode that this module uses."""

    @property
    def is_leader(self) -> bool: ...

    @property
    def copies(self) -> Copies: ...

    @property
    def commit_index(self) -> LogIndex: ...

    def in_contact(self, silence_ms: int) -> int: ...


@dataclass(eq=False, repr=False)
class SlaveGate:
    """Waits for `needed` slaves, at most `timeout_ms` after the commit; with 0 it does not wait.

    `contact_ms`: a slave refuses to be promoted for this long after it last heard the master.
    """

    _raft: Master
    needed: int
    _timeout_ms: int
    _contact_ms: int = 400

    @property
    def in_contact(self) -> int:
        """Number of slaves heard within `timeout_ms`; 0 unless this node leads."""
        return self._raft.in_contact(self._timeout_ms)

    async def wait(self, index: int, since: float, remaining: float | None = None) -> None:
        """Return when enough slaves hold entry `index` (0: everything that is committed now).

        `since`: time of the commit, monotonic seconds. `remaining`: seconds left to the caller. Raises:
        SlaveTimeoutError, SlavesAwayError (stored all the same), ProposalLostError (leadership lost).
        """
        needed, copies = self.needed, self._raft.copies
        self._must_lead()
        entry = LogIndex(index) if index else self._raft.commit_index
        if copies.held_by(entry) >= needed:
            return
        if (in_contact := self.in_contact) < needed:
            raise SlavesAwayError(needed, in_contact)
        seconds = since + self._timeout_ms / 1000 - time.monotonic()
        if remaining is not None:
            seconds = min(seconds, remaining)
        held = copies.wait(entry, needed)
        try:
            async with asyncio.timeout(max(seconds, 0)):
                leads = await held
        except TimeoutError:
            self._must_lead()
            in_contact = self._raft.in_contact(
                _SILENT_FOR_EVER
            )  # excludes slaves that disconnected meanwhile, but not slow ones
            if in_contact < needed:
                raise SlavesAwayError(needed, in_contact) from None
            raise SlaveTimeoutError(
                needed, copies.held_by(entry), round((time.monotonic() - since) * 1000)
            ) from None
        if not leads:
            raise _lost()

    def check_contact(self) -> None:
        """Check that `needed` slaves were heard within `contact_ms`: they follow no other master yet.

        Raises: ProposalLostError when it is not known whether this node is still the master.
        """
        self._must_lead()
        in_contact = self._raft.in_contact(self._contact_ms)
        if in_contact < self.needed:
            raise ProposalLostError(
                f"only {in_contact} of {self.needed} slaves are in contact, "
                "so whether this node is still the master is not known"
            )

    def _must_lead(self) -> None:
        """Check that this node leads. Raises: ProposalLostError: it cannot tell what the slaves hold."""
        if not self._raft.is_leader:
            raise _lost()


def _lost() -> ProposalLostError:
    return ProposalLostError("this node leads no longer; whether the slaves have it is not known")
