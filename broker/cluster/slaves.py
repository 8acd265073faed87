"""`sync_master`: an answer to a producer also waits until enough slaves hold the message on disk (D24).

The message is committed and stays when they do not have it in time; the refusal says so. A repeat is recognised, and
waits here like the first copy.
Owns: how many, how long, and the words of the refusal. Must not: decide what is committed (Raft does).
"""

from __future__ import annotations

import asyncio
import time
from typing import Final, Protocol

from ledgermq.raft.drive.copies import Copies
from ledgermq.raft.errors import ProposalLostError
from ledgermq.raft.types import LogIndex

_SILENT_FOR_EVER: Final = 1 << 40
_KEPT = (
    "It is kept, unless a slave is promoted that lacks it. Send the same again: a repeat is stored once, and answered when"
    " the slaves have it. See: ledgermq cluster status"
)


class SlavesLackItError(Exception):
    """Stored by the master; not by as many slaves as must have it."""

    def __init__(self, needed: int, having: int, what: str) -> None:
        super().__init__(
            f"stored by the master, but only {having} of {needed} slaves that must have it {what}. {_KEPT}"
        )


class SlaveTimeoutError(SlavesLackItError):
    """They did not confirm it in time."""

    def __init__(self, needed: int, held_by: int, waited_ms: int) -> None:
        super().__init__(needed, held_by, f"confirmed it within {waited_ms} ms")


class SlavesAwayError(SlavesLackItError):
    """Too few of them are in contact."""

    def __init__(self, needed: int, in_contact: int) -> None:
        super().__init__(needed, in_contact, "are in contact")


class Master(Protocol):
    """The part of RaftNode that is used."""

    @property
    def is_leader(self) -> bool: ...

    @property
    def copies(self) -> Copies: ...

    @property
    def commit_index(self) -> LogIndex: ...

    def in_contact(self, silence_ms: int) -> int: ...


class SlaveGate:
    """`needed` slaves within `timeout_ms` of the commit; with 0 nothing is waited for.

    `contact_ms`: for so long after it has heard the master a slave refuses to be promoted.
    """

    def __init__(self, raft: Master, needed: int, timeout_ms: int, contact_ms: int = 400) -> None:
        self.needed = needed
        self._raft = raft
        self._timeout_ms = timeout_ms
        self._contact_ms = contact_ms

    @property
    def in_contact(self) -> int:
        """How many slaves were heard within the time that a message waits for them; 0 unless this node leads."""
        return self._raft.in_contact(self._timeout_ms)

    async def wait(self, index: int, since: float, remaining: float | None = None) -> None:
        """Return when enough slaves hold entry `index` (0: everything that is committed now).

        `since`: when it was committed, monotonic seconds. `remaining`: seconds that the caller has. Raises:
        SlaveTimeoutError, SlavesAwayError (stored all the same), ProposalLostError (this node leads no more).
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
            )  # those that went meanwhile, not those that are slow
            if in_contact < needed:
                raise SlavesAwayError(needed, in_contact) from None
            raise SlaveTimeoutError(
                needed, copies.held_by(entry), round((time.monotonic() - since) * 1000)
            ) from None
        if not leads:
            raise _lost()

    def check_contact(self) -> None:
        """Check that as many slaves as confirm messages were heard a moment ago: they follow no other master yet.

        Raises: ProposalLostError: whether this node is still the master is not known.
        """
        self._must_lead()
        in_contact = self._raft.in_contact(self._contact_ms)
        if in_contact < self.needed:
            raise ProposalLostError(
                f"only {in_contact} of {self.needed} slaves are in contact, so whether this node is still the master is not"
                " known"
            )

    def _must_lead(self) -> None:
        """Raises: ProposalLostError: what others hold, and whether it is kept, is not known here."""
        if not self._raft.is_leader:
            raise _lost()


def _lost() -> ProposalLostError:
    return ProposalLostError("this node leads no longer; whether the slaves have it is not known")
