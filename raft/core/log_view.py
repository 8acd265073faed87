"""What the core is told about a recovered log when it starts."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from ..types import NO_INDEX, NO_TERM, LogIndex, Term
from .messages import TermRun

FIRST_INDEX: Final = LogIndex(1)


@dataclass(frozen=True, slots=True)
class LogView:
    """Shape of a log. Invariant: first_index - 1 <= applied_index <= stable_index <= last_index."""

    first_index: LogIndex = FIRST_INDEX  # of the first retained entry (last_index + 1 when there is none)
    base_term: Term = NO_TERM  # of the entry first_index - 1, which is always committed
    term_runs: tuple[TermRun, ...] = ()  # of first_index..last_index, oldest first
    last_index: LogIndex = NO_INDEX
    stable_index: LogIndex = NO_INDEX  # durable up to here
    applied_index: LogIndex = NO_INDEX  # the state machine already has these
    # After a reset: it must take entries up to here before this node may lead
    state_index: LogIndex = NO_INDEX
