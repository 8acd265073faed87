"""A bug as a change of a line or two of source, and the tests that must find it.

The simulator finds the mutants of `tests/sim`. These break promises of one module, which its unit tests hold.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parents[2]


@dataclass(frozen=True, slots=True)
class SourceMutant:
    """`old` occurs exactly once in the file `path` and becomes `new`. One of `tests` must then fail.

    `tests` are paths below `tests/`.
    """

    name: str
    what: str  # the bug, in one sentence
    path: str
    old: str
    new: str
    tests: tuple[str, ...]

    def applied(self, text: str) -> str:
        """Return the source with the bug. Raises: ValueError (the line does not occur exactly once)."""
        if text.count(self.old) != 1:
            raise ValueError(
                f"{self.name}: {text.count(self.old)} places in {self.path} for {self.old!r}, wanted 1"
            )
        return text.replace(self.old, self.new)


def bugs_in(path: str, tests: tuple[str, ...], *bugs: tuple[str, str, str, str]) -> tuple[SourceMutant, ...]:
    """Return mutants of one file that the same tests must find, from (name, what, old, new)."""
    return tuple(SourceMutant(name, what, path, old, new, tests) for name, what, old, new in bugs)
