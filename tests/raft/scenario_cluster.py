"""Real cores on a network and on disks that a scenario scripts, and the sentences that describe their
actions.

Owns: the wire, the disks, and the wording of facts. Must not: decide anything that the core decides, or take
facts from anywhere but the core's outputs and its readable fields. Every entry has `ENTRY_BYTES` bytes.
Invariants, checked with every output: one leader per term; no two nodes apply different entries at one index.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from ledgermq.raft.core.config import CoreConfig, LogView
from ledgermq.raft.core.machine import RaftCore
from ledgermq.raft.core.messages import (
    AppendEntries,
    AppendEntriesReply,
    Heartbeat,
    HeartbeatReply,
    Message,
    ReadIndexReply,
    ReadIndexRequest,
    RequestVote,
    RequestVoteReply,
    TermRun,
)
from ledgermq.raft.core.outputs import (
    BecameLeader,
    CaughtUp,
    Event,
    Faulted,
    FollowerBehind,
    FollowerLostEntries,
    LeaderChanged,
    Output,
    Persist,
    ResetOffered,
    Role,
    SteppedDown,
    TransferAborted,
)
from ledgermq.raft.types import NO_TERM, HardState, LogIndex, NodeId, Term

ENTRY_BYTES: Final = 10
#: A scenario that delivers more messages than this goes round in circles.
MAX_DELIVERIES: Final = 10_000


class FixedDraws(random.Random):
    """Draws of one node: always `place` above the lowest value, so that a reader knows when a timer ends."""

    place = 0

    def randrange(self, start: int, stop: int | None = None, step: int = 1) -> int:
        assert stop is not None and step == 1, "the core draws from [start, stop)"
        return min(start + self.place, stop - 1)

    def getrandbits(self, k: int, /) -> int:
        return 0


@dataclass(slots=True)
class Disk:
    """State that survives a crash."""

    hard_state: HardState = field(default_factory=HardState)
    base_index: int = 0  # entry before the first retained one
    base_term: int = 0
    terms: list[int] = field(default_factory=list)  # of the entries after the base
    state_index: int = 0  # last entry in the state installed by the last reset

    def write(self, persist: Persist, terms: list[int]) -> None:
        if persist.hard_state is not None:
            self.hard_state = persist.hard_state
        if persist.truncate_from is not None:
            del self.terms[persist.truncate_from - 1 - self.base_index :]
        self.terms += terms

    def compact(self, first_index: int) -> None:
        gone = first_index - 1 - self.base_index
        self.base_term = self.terms[gone - 1]
        del self.terms[:gone]
        self.base_index = first_index - 1

    def view(self) -> LogView:
        last = LogIndex(self.base_index + len(self.terms))
        return LogView(
            first_index=LogIndex(self.base_index + 1),
            base_term=Term(self.base_term),
            term_runs=runs_of(self.terms, self.base_index + 1),
            last_index=last,
            stable_index=last,
            applied_index=LogIndex(self.base_index),
            state_index=LogIndex(self.state_index),
        )


@dataclass(slots=True)
class Write:
    """A storage operation that a slow disk has not reported yet."""

    persist: Persist
    terms: list[int]  # of the entries that it appends
    is_done: bool = False  # on the disk, but not yet reported to the core


class Node:
    """One core with its disk."""

    def __init__(self, name: NodeId) -> None:
        self.name = name
        self.draws = FixedDraws()
        self.disk = Disk()
        self.is_slow = False  # the disk reports only when the scenario says so
        self.writes: deque[Write] = deque()
        self.core: RaftCore | None = None  # None: the node is down
        self.shown = (Role.FOLLOWER, NO_TERM)  # role and term last printed
        self.offer: ResetOffered | None = None  # the latest one


class ScenarioCluster:
    """Named nodes, the wire between them, and a list of facts."""

    def __init__(
        self,
        voters: Sequence[str],
        non_voters: Sequence[str],
        limits: dict[str, Any],
        core_class: type[RaftCore] = RaftCore,
    ) -> None:
        self.nodes = {NodeId(name): Node(NodeId(name)) for name in (*voters, *non_voters)}
        self.wire: deque[Message] = deque()
        self.cut: set[tuple[str, str]] = set()
        #: Links whose appends with entries are neither sent nor dropped.
        self.stuck: set[tuple[str, str]] = set()
        self.facts: list[str] = []
        self.is_brief = False  # print only roles, events, commits and reads
        self._prefix = ""
        self._core_class = core_class
        self._voters, self._non_voters = tuple(map(NodeId, voters)), tuple(map(NodeId, non_voters))
        self._limits = limits
        self._deliveries = 0
        self._leaders: dict[int, str] = {}  # term -> leader
        self._applied: dict[int, int] = {}  # index -> term of each entry ever applied
        for place, node in enumerate(self.nodes.values()):
            node.draws.place = place
            self.start(node)

    # --- nodes ----------------------------------------------------------------------------------------------
    def start(self, node: Node) -> None:
        """Start with the contents of the disk."""
        config = CoreConfig(
            node_id=node.name, voters=self._voters, non_voters=self._non_voters, **self._limits
        )
        node.writes.clear()
        node.core = self._core_class(config, node.disk.hard_state, node.disk.view(), node.draws)
        node.shown = (node.core.role, node.core.term)

    def crash(self, node: Node) -> None:
        """Lose everything that is not on the disk. Sent messages stay in flight."""
        node.core = None
        node.writes.clear()

    def give(self, node: Node, action: Callable[[RaftCore], None]) -> None:
        """Pass one input to a core, then carry out its decisions."""
        if node.core is None:
            return
        action(node.core)
        self._note_role(node, node.core)
        while node.core is not None and (output := node.core.poll()) is not None:
            done = self._carry_out(node, node.core, output)
            if done is not None:
                node.core.storage_done(done)
                self._note_role(node, node.core)

    def tick(self, count: int, names: Sequence[NodeId], *, settles: bool) -> None:
        """Run ticks on these nodes. With `settles`, messages are delivered at once."""
        for number in range(1, count + 1):
            self._prefix = f"tick {number}: "
            for name in names:
                self.give(self.nodes[name], lambda core: core.tick())
            if settles:
                self.settle()
        self._prefix = ""

    def settle(self) -> None:
        """Deliver until nothing is in flight, and print only changes."""
        was_brief, self.is_brief = self.is_brief, True
        while self.wire:
            message = self.wire.popleft()
            if not self._lost_because(message):
                self._hand_over(message)
        self.is_brief = was_brief

    def deliver(self, messages: Sequence[Message]) -> None:
        """Deliver these messages, and print the effects of each."""
        for message in messages:
            lost = self._lost_because(message)
            self.say(text_of(message) + (f"  -- lost: {lost}" if lost else ""))
            if not lost:
                self._prefix = "  "
                self._hand_over(message)
                self._prefix = ""

    def _hand_over(self, message: Message) -> None:
        self._deliveries += 1
        assert self._deliveries <= MAX_DELIVERIES, "the nodes never stop talking"
        self.give(self.nodes[message.to], lambda core: core.step(message))

    def _lost_because(self, message: Message) -> str:
        if (message.from_, message.to) in self.cut:
            return "the link is cut"
        return f"{message.to} is down" if self.nodes[message.to].core is None else ""

    # --- disks ----------------------------------------------------------------------------------------------
    def flush(self, node: Node, count: int, *, is_told: bool) -> int:
        """Complete the `count` oldest pending operations of a slow disk. Returns how many there were."""
        fresh = [write for write in node.writes if not write.is_done][:count]
        for write in fresh:
            node.disk.write(write.persist, write.terms)
            write.is_done = True
            told = "" if is_told else ", and the report is lost"
            self.say(f"{node.name} has #{write.persist.seq} on disk{told}")
        if fresh and is_told:
            last = fresh[-1].persist.seq
            while node.writes and node.writes[0].persist.seq <= last:
                node.writes.popleft()
            self.give(node, lambda core: core.storage_done(last))
        return len(fresh)

    # --- facts ----------------------------------------------------------------------------------------------
    def say(self, fact: str) -> None:
        self.facts.append(self._prefix + fact)

    def _note_role(self, node: Node, core: RaftCore) -> None:
        now = (core.role, core.term)
        if now == node.shown:
            return
        node.shown = now
        self.say(f"{node.name} is {core.role.value} in term {core.term}")
        if core.role is Role.LEADER:
            other = self._leaders.setdefault(core.term, node.name)
            assert other == node.name, f"{other} and {node.name} both lead term {core.term}"

    def _carry_out(self, node: Node, core: RaftCore, output: Output) -> int | None:
        """Carry out the core's output. Returns the number of the storage operation that is already done."""
        for event in output.events:
            self._say_event(node, event)
        done = self._persist(node, core, output.persist) if output.persist is not None else None
        if output.commit_index is not None:
            self.say(f"{node.name} commits up to {output.commit_index}")
        if output.committed is not None:
            lo, hi = output.committed
            if not self.is_brief:
                self.say(f"{node.name} applies {span(lo, hi)}")
            for index in range(lo, hi + 1):
                term = core.log.term(LogIndex(index)) or 0
                first = self._applied.setdefault(index, term)
                assert first == term, (
                    f"{node.name} applies {index}@{term}, another one applied {index}@{first}"
                )
        for read in output.reads:
            self.say(f"{node.name} may serve read {read.context} at {read.index}")
        for context in output.reads_aborted:
            self.say(f"{node.name} aborts read {context}")
        for lo, hi in output.aborted:
            self.say(f"{node.name} does not know the fate of {span(lo, hi)}")
        for message in output.send:
            self._send(core, message)
        return done

    def _persist(self, node: Node, core: RaftCore, persist: Persist) -> int | None:
        terms: list[int] = []
        if persist.append is not None:
            lo, hi = persist.append
            terms = [int(core.log.term(LogIndex(index)) or 0) for index in range(lo, hi + 1)]
        if not self.is_brief:
            verb = "asks the disk for" if node.is_slow else "writes"
            self.say(f"{node.name} {verb} #{persist.seq}: {write_text(persist, terms)}")
        if node.is_slow:
            node.writes.append(Write(persist, terms))
            return None
        node.disk.write(persist, terms)
        return persist.seq

    def _send(self, core: RaftCore, message: Message) -> None:
        if isinstance(message, AppendEntries) and not message.is_empty:
            if (message.from_, message.to) in self.stuck:
                self.say(f"{text_of(message)}  -- waits for the log")
                return
            room = max(1, message.max_bytes // ENTRY_BYTES)
            hi = LogIndex(min(message.hi, message.lo + room - 1))
            size = ENTRY_BYTES * (hi - message.lo + 1)
            self.wire.append(message.shortened(hi, size))
            core.append_sent(message, hi, size)
        else:
            self.wire.append(message)

    def _say_event(self, node: Node, event: Event) -> None:
        name = node.name
        if isinstance(event, BecameLeader):
            self.say(f"{name} begins term {event.term} with the no-op {event.noop_index}")
        elif isinstance(event, SteppedDown):
            self.say(f"{name} leads term {event.term} no longer")
        elif isinstance(event, LeaderChanged):
            if event.leader_id != name:
                self.say(f"{name} knows {event.leader_id or 'no one'} as the leader of term {event.term}")
        elif isinstance(event, TransferAborted):
            self.say(f"{name} gives up the hand-over to {event.to}")
        elif isinstance(event, CaughtUp):
            self.say(f"{name} has caught up to {event.index}")
        elif isinstance(event, FollowerBehind):
            self.say(f"{name} no longer has {event.next_index}, which {event.node_id} needs")
        elif isinstance(event, ResetOffered):
            node.offer = event
            self.say(f"{name} is offered the state of {event.leader_id} behind {event.base_index}")
        elif isinstance(event, FollowerLostEntries):
            lost = f"acknowledged {event.acknowledged_index}, has at most {event.last_index}"
            self.say(f"{name} finds that {event.node_id} lost entries: {lost}")
        elif isinstance(event, Faulted):
            self.say(f"{name} has failed: {event.reason}")

    def state_of(self, node: Node) -> str:
        """Return a node's view; if it is down, the contents of its disk."""
        core, disk = node.core, node.disk
        if core is None:
            hard = disk.hard_state
            stored = log_text(disk.base_index, disk.base_term, disk.terms)
            return f"{node.name} down, on disk: term={hard.term} vote={hard.voted_for or '-'} log={stored}"
        log = core.log
        terms = [int(log.term(LogIndex(i)) or 0) for i in range(log.first_index, log.last_index + 1)]
        kind = core.role.value if core.is_voter else f"{core.role.value} (learner)"
        return (
            f"{node.name} {kind} term={core.term} vote={core.voted_for or '-'} leader={core.leader_id or '-'}"
            f" log={log_text(log.base_index, log.base_term, terms)}"
            f" stable={core.stable_index} commit={core.commit_index} applied={core.applied_index}"
        )


# --- wording ------------------------------------------------------------------------------------------------
def span(lo: int, hi: int) -> str:
    return str(lo) if lo == hi else f"{lo}..{hi}"


def runs_of(terms: Sequence[int], first: int) -> tuple[TermRun, ...]:
    """Return the runs of entries with these terms, which begin at index `first`."""
    runs: list[TermRun] = []
    for index, term in enumerate(terms, start=first):
        if not runs or runs[-1][1] != term:
            runs.append((LogIndex(index), Term(term)))
    return tuple(runs)


def entries_text(runs: Sequence[TermRun], hi: int) -> str:
    """Return entries as `2@1,3..5@2`: index, or first and last index, and term."""
    ends = [*(first - 1 for first, _ in runs[1:]), hi]
    return ",".join(f"{span(first, end)}@{term}" for (first, term), end in zip(runs, ends, strict=False))


def log_text(base_index: int, base_term: int, terms: Sequence[int]) -> str:
    """Return a log. If its beginning was deleted, it starts with its base in parentheses."""
    base = f"({base_index}@{base_term})" if base_index else ""
    return base + entries_text(runs_of(terms, base_index + 1), base_index + len(terms)) or "empty"


def write_text(persist: Persist, terms: Sequence[int]) -> str:
    parts: list[str] = []
    if persist.hard_state is not None:
        hard = persist.hard_state
        parts.append(f"term={hard.term} vote={hard.voted_for or '-'}{'' if hard.is_voter else ' learner'}")
    if persist.truncate_from is not None:
        parts.append(f"cut from {persist.truncate_from}")
    if persist.append is not None:
        lo, hi = persist.append
        parts.append(f"append {entries_text(runs_of(terms, lo), hi)}")
    return ", ".join(parts)


def text_of(message: Message) -> str:
    """Return a message in one line: link, kind, term, then its relevant fields."""
    return " ".join([f"{message.from_} -> {message.to} {type(message).__name__}", *_details(message)])


def _details(message: Message) -> Iterator[str]:
    yield f"term={message.term}"
    if isinstance(message, RequestVote):
        yield f"last={message.last_index}@{message.last_term}"
        yield from (flag for flag in ("pre_vote", "transfer") if getattr(message, flag))
    elif isinstance(message, RequestVoteReply):
        yield "granted" if message.granted else "refused"
        if message.pre_vote:
            yield "pre_vote"
    elif isinstance(message, AppendEntries):
        yield f"prev={message.prev_index}@{message.prev_term}"
        yield f"entries={entries_text(message.term_runs, message.hi) if not message.is_empty else '-'}"
        yield f"commit={message.commit_index}"
        if message.offers_reset:
            yield "offers_reset"
    elif isinstance(message, AppendEntriesReply):
        if message.success:
            yield f"match={message.match_index}"
        elif message.reject_index or message.hint_index:
            yield f"refused={message.reject_index} hint={message.hint_index}@{message.hint_term}"
        else:
            yield "refused"
    elif isinstance(message, Heartbeat):
        yield f"commit={message.commit_index} round={message.context}"
    elif isinstance(message, HeartbeatReply):
        yield f"stable={message.stable_index} commit={message.commit_index} round={message.context}"
    elif isinstance(message, ReadIndexRequest):
        yield f"number={message.context}"
    elif isinstance(message, ReadIndexReply):
        yield f"number={message.context} index={message.index}"
    if isinstance(message, AppendEntriesReply | HeartbeatReply) and message.is_learner:
        yield "learner"
    if isinstance(message, AppendEntriesReply | HeartbeatReply) and message.wants_commit:
        yield "wants_commit"
