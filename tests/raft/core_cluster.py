"""Cores on a synchronous network, for tests that script every step.

Vocabulary: elect, propose, tick, settle, partition, heal, hold_disk, release_disk, crash, restart. Messages
are delivered at once, in order, unless the link is cut. A disk completes at once, unless it is held.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Sequence
from typing import Any

from ledgermq.raft.core.config import CoreConfig, LogView
from ledgermq.raft.core.machine import RaftCore
from ledgermq.raft.core.messages import AppendEntries, Message, TermRun
from ledgermq.raft.core.outputs import Event, Persist, ReadReady, Role
from ledgermq.raft.types import HardState, LogIndex, NodeId, Term


def runs_of(terms: list[int]) -> tuple[TermRun, ...]:
    """Return the runs of a log given as the list of its entries' terms, from index 1."""
    runs: list[TermRun] = []
    for offset, term in enumerate(terms):
        if not runs or runs[-1][1] != term:
            runs.append((LogIndex(offset + 1), Term(term)))
    return tuple(runs)


def core_config(
    name: str, voters: Sequence[str], non_voters: Sequence[str], limits: dict[str, Any]
) -> CoreConfig:
    return CoreConfig(
        node_id=NodeId(name),
        voters=tuple(map(NodeId, voters)),
        non_voters=tuple(map(NodeId, non_voters)),
        **limits,
    )


def make_core(
    name: str = "n1",
    terms: list[int] | None = None,
    *,
    voters: tuple[str, ...] = ("n1", "n2", "n3"),
    non_voters: tuple[str, ...] = (),
    hard: HardState | None = None,
    core_class: type[RaftCore] = RaftCore,
    **limits: int,
) -> RaftCore:
    """Build a core whose durable log has entries of these terms."""
    terms = terms or []
    last = LogIndex(len(terms))
    stored = hard or HardState(Term(terms[-1] if terms else 0))
    view = LogView(term_runs=runs_of(terms), last_index=last, stable_index=last)
    config = core_config(name, voters, non_voters, limits)
    return core_class(config, stored, view, random.Random(name))


class Member:
    """One node: its core, its disk, and everything that it ever sent."""

    def __init__(self, core: RaftCore) -> None:
        self.core = core
        self.disk_terms: list[int] = [
            int(core.log.term(LogIndex(i)) or 0) for i in range(1, core.last_index + 1)
        ]
        self.terms = list(self.disk_terms)
        self.disk_hard = core.hard_state
        self.held: deque[tuple[Persist, list[int]]] | None = None
        self.events: list[Event] = []
        self.sent: list[Message] = []
        self.committed: list[int] = []
        self.reads: list[ReadReady] = []
        self.reads_aborted: list[object] = []
        self.up = True

    def write(self, persist: Persist, terms: list[int]) -> None:
        if persist.hard_state is not None:
            self.disk_hard = persist.hard_state
        if persist.truncate_from is not None:
            del self.disk_terms[persist.truncate_from - 1 :]
        self.disk_terms.extend(terms)


class Cluster:
    """Named members and the links between them."""

    def __init__(
        self,
        *names: str,
        non_voters: tuple[str, ...] = (),
        core_class: type[RaftCore] = RaftCore,
        **limits: int,
    ) -> None:
        self.names = names
        self.non_voters = non_voters
        self.core_class = core_class
        self.limits = limits
        self.members = {n: Member(self._core(n)) for n in names}
        self.cut: set[tuple[str, str]] = set()
        self.wire: deque[Message] = deque()

    def __getitem__(self, name: str) -> RaftCore:
        return self.members[name].core

    def load(self, name: str, terms: list[int], term: int, voted_for: str | None = None) -> None:
        """Restart a member on a disk with these entries."""
        member = self.members[name]
        member.disk_terms = list(terms)
        member.disk_hard = HardState(Term(term), NodeId(voted_for) if voted_for else None)
        self.crash(name)
        self.restart(name)

    def elect(self, name: str) -> None:
        """Make a member the leader of a new term. Every reachable member must forget the current leader."""
        for each in self.names:
            if each != name and self.members[each].up and self[each].role is not Role.LEADER:
                self[each].forget_leader()
        self[name].campaign()
        self.settle()
        assert self[name].role is Role.LEADER, f"{name} is {self[name].role}"

    def propose(self, name: str, count: int = 1) -> LogIndex:
        """Propose entries. Returns the last index."""
        answer = self[name].propose([10] * count)
        self.members[name].terms.extend([self[name].term] * count)
        assert getattr(answer, "term", None) == self[name].term, f"refused: {answer}"
        self.settle()
        return LogIndex(len(self.members[name].terms))

    def tick(self, count: int = 1, *names: str) -> None:
        for _ in range(count):
            for name in names or self.names:
                if self.members[name].up:
                    self[name].tick()
            self.settle()

    def settle(self) -> None:
        """Deliver everything until no member has output."""
        while True:
            for name in self.names:
                self._pump(name)
            if not self.wire:
                return
            message = self.wire.popleft()
            member = self.members[message.to]
            if member.up and (message.from_, message.to) not in self.cut:
                member.core.step(message)
                self._pump(message.to, message)

    def partition(self, *groups: list[str]) -> None:
        """Let only members of the same side hear each other."""
        self.cut = {
            (a, b)
            for a in self.names
            for b in self.names
            if not any(a in group and b in group for group in groups)
        }

    def cut_one_way(self, source: str, target: str) -> None:
        self.cut.add((source, target))

    def heal(self) -> None:
        self.cut = set()

    def hold_disk(self, name: str) -> None:
        self.members[name].held = deque()

    def release_disk(self, name: str) -> None:
        member = self.members[name]
        held, member.held = member.held or deque(), None
        for persist, terms in held:
            member.write(persist, terms)
            member.core.storage_done(persist.seq)
        self.settle()

    def crash(self, name: str) -> None:
        """Cut the power: pending operations of a held disk are lost."""
        self.members[name].up = False
        self.members[name].held = None

    def restart(self, name: str) -> None:
        old = self.members[name]
        last = LogIndex(len(old.disk_terms))
        view = LogView(term_runs=runs_of(old.disk_terms), last_index=last, stable_index=last)
        core = self.core_class(self._config(name), old.disk_hard, view, random.Random(name))
        fresh = self.members[name] = Member(core)
        fresh.sent = old.sent

    def _config(self, name: str) -> CoreConfig:
        voters = [each for each in self.names if each not in self.non_voters]
        return core_config(name, voters, self.non_voters, self.limits)

    def _core(self, name: str) -> RaftCore:
        return self.core_class(self._config(name), HardState(), LogView(), random.Random(name))

    def _pump(self, name: str, message: Message | None = None) -> None:
        member = self.members[name]
        while member.up and (output := member.core.poll()) is not None:
            if output.persist is not None:
                self._persist(member, output.persist, message)
            member.events.extend(output.events)
            member.reads.extend(output.reads)
            member.reads_aborted.extend(output.reads_aborted)
            if output.committed is not None:
                member.committed.extend(range(output.committed[0], output.committed[1] + 1))
            for each in output.send:
                member.sent.append(each)
                self.wire.append(each)
                if isinstance(each, AppendEntries) and not each.is_empty:
                    member.core.append_sent(each, each.hi, 10 * (each.hi - each.lo + 1))

    def _persist(self, member: Member, persist: Persist, message: Message | None) -> None:
        core = member.core
        if persist.truncate_from is not None:
            del member.terms[persist.truncate_from - 1 :]
        terms: list[int] = []
        if persist.append is not None:
            terms = [
                int(core.log.term(LogIndex(i)) or 0) for i in range(persist.append[0], persist.append[1] + 1)
            ]
            member.terms[persist.append[0] - 1 :] = terms
        if member.held is not None:
            member.held.append((persist, terms))
            return
        member.write(persist, terms)
        core.storage_done(persist.seq)
