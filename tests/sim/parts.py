"""What a simulated node is made of. A mutant replaces a part, or patches something for the length of a run."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from ledgermq.raft.core import RaftCore

from .file_system import SimFileSystem


@dataclass(frozen=True)
class Parts:
    """`patches` are (owner, name of an attribute, replacement): `(LogWriter, "sync", lies)`."""

    core_class: type[RaftCore] = RaftCore
    file_system_class: type[SimFileSystem] = SimFileSystem
    patches: tuple[tuple[Any, str, Any], ...] = ()

    @contextmanager
    def applied(self) -> Iterator[None]:
        """Patch, and put back what was there."""
        before = [(owner, name, owner.__dict__[name]) for owner, name, _ in self.patches]
        for owner, name, replacement in self.patches:
            setattr(owner, name, replacement)
        try:
            yield
        finally:
            for owner, name, original in reversed(before):
                setattr(owner, name, original)
