"""Parts of a simulated node. A mutant replaces a part, or patches something for the length of a run."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from ledgermq.raft.core.machine import RaftCore

from .file_system import SimFileSystem
from .state import DigestState, SimState

Patch = tuple[Any, str, Any]
"""(owner, attribute name, replacement)"""


class NoMetrics:
    """Accepts every metric and stores none."""

    def __getattr__(self, name: str) -> Any:
        return lambda *_: self


@dataclass(frozen=True)
class Parts:
    """`patches`: such as `(LogWriter, "sync", lies)`."""

    core_class: type[RaftCore] = RaftCore
    file_system_class: type[SimFileSystem] = SimFileSystem
    patches: tuple[Patch, ...] = ()
    state_class: Callable[[], SimState] = DigestState


@contextmanager
def patched(*patches: Sequence[Patch]) -> Iterator[None]:
    """Patch for the length of a run, then restore the originals."""
    before: list[Patch] = []
    try:
        for owner, name, replacement in (patch for several in patches for patch in several):
            before.append((owner, name, owner.__dict__[name]))
            setattr(owner, name, replacement)
        yield
    finally:
        for owner, name, original in reversed(before):
            setattr(owner, name, original)
