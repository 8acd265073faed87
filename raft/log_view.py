"""What the core is told about a recovered log when it starts."""

from __future__ import annotations

from dataclasses import dataclass

from .messages import TermRun
from .types import LogIndex, Term


@dataclass(frozen=True, slots=True)
class LogView:
    """Shape of a log. Invariant: first_index - 1 <= applied_index <= stable_index <= last_index."""

    first_index: LogIndex = LogIndex(1)  # of the first retained entry (last_index + 1 when there is none)
    base_term: Term = Term(0)  # of the entry first_index - 1, which is always committed
    term_runs: tuple[TermRun, ...] = ()  # of first_index..last_index, oldest first
    last_index: LogIndex = LogIndex(0)
    stable_index: LogIndex = LogIndex(0)  # durable up to here
    applied_index: LogIndex = LogIndex(0)  # the state machine already has these
