"""List of mutants: each is the real code with one bug that some system had. `mutants` runs them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

from ledgermq.raft.core.machine import RaftCore
from ledgermq.raft.core.messages import Message

from .parts import Parts
from .world import World

Core = TypeVar("Core", bound=type[RaftCore])


@dataclass(frozen=True, slots=True)
class Mutant:
    """One bug. `rows`: its place in the bug list, or the rule that it breaks."""

    name: str
    rows: str
    what: str
    parts: Parts
    broker: bool = False  # a bug of the broker: every node has one

    def world(self, seed: int) -> World:
        """Return a run in which every node has the bug."""
        return World(seed, parts=self.parts, broker=self.broker)

    def sound_world(self, seed: int) -> World:
        """Return the same run without the bug."""
        return World(seed, broker=self.broker)


MUTANTS: list[Mutant] = []


def core_mutant(rows: str) -> Callable[[Core], Core]:
    """Register a core with a bug."""

    def register(core_class: Core) -> Core:
        assert core_class.__doc__ is not None, f"{core_class.__name__} must say what its bug is"
        MUTANTS.append(
            Mutant(core_class.__name__, rows, core_class.__doc__.strip(), Parts(core_class=core_class))
        )
        return core_class

    return register


def patch_mutant(
    name: str, rows: str, what: str, *patches: tuple[Any, str, Any], broker: bool = False
) -> None:
    """Register a bug outside of the core."""
    MUTANTS.append(Mutant(name, rows, what, Parts(patches=patches), broker))


class SendsEarly(RaftCore):
    """Base of mutants that send one kind of message before what it promises is durable."""

    _early: type

    def send_when_durable(self, message: Message) -> None:
        if isinstance(message, self._early):
            self._out.send.append(message)
        else:
            super().send_when_durable(message)
