"""Runs a scenario against real cores and returns the printed facts.

Owns: the effect of each command; its docstring begins with its form. Must not: know the text around the
commands (`scenario_file.py`), or how cores, disks and the wire work (`scenario_cluster.py`).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import fields
from fnmatch import fnmatch
from pathlib import Path
from typing import Final

from ledgermq.raft.core.config import CoreConfig
from ledgermq.raft.core.machine import RaftCore
from ledgermq.raft.core.messages import Message
from ledgermq.raft.core.outputs import Accepted, Busy, NotLeader, Role, Transferring
from ledgermq.raft.types import HardState, LogIndex, NodeId, Term

from .scenario_cluster import ENTRY_BYTES, Disk, Node, ScenarioCluster, text_of
from .scenario_file import Command, Scenario, ScenarioError

FOLDER: Final = Path(__file__).parent / "scenarios"
_LIMITS: Final = {f.name for f in fields(CoreConfig)} - {"node_id", "voters", "non_voters"}
_RUN = re.compile(r"(\d+)(?:\.\.(\d+))?@(\d+)")
_BASE = re.compile(r"\((\d+)@(\d+)\)")

Words = Sequence[str]


class _UsageError(ValueError):
    """A command that cannot be carried out as written."""


class ScenarioRunner:
    """One run of one scenario. Raises: ScenarioError."""

    def __init__(self, scenario: Scenario, core_class: type[RaftCore] = RaftCore) -> None:
        self._scenario = scenario
        self._core_class = core_class
        self._cluster: ScenarioCluster | None = None
        self._delayed: list[Message] = []

    def run(self) -> list[list[str]]:
        """Run every command. Returns the output of each block."""
        outputs: list[list[str]] = []
        for block in self._scenario.blocks:
            facts: list[str] = []
            for command in block.commands:
                facts += self._run_command(command)
            outputs.append(facts or ["nothing"])
        return outputs

    def _run_command(self, command: Command) -> list[str]:
        name, *words = command.words
        known = _COMMANDS.get(name)
        try:
            if known is None:
                raise _UsageError(f"no such command; there are {', '.join(sorted(_COMMANDS))}")
            known(self, words)
        except _UsageError as error:
            where = (self._scenario.name, command.line)
            raise ScenarioError(*where, f"{' '.join(command.words)}: {error}") from error
        except Exception as error:
            error.add_note(f"{self._scenario.name}:{command.line}: {' '.join(command.words)}")
            raise
        facts, self.cluster.facts = self.cluster.facts, []
        return facts

    @property
    def cluster(self) -> ScenarioCluster:
        if self._cluster is None:
            raise _UsageError("the first command must be `nodes`")
        return self._cluster

    # --- set-up ---------------------------------------------------------------------------------------------
    def nodes(self, words: Words) -> None:
        """nodes NAME... [non_voters=NAME,...] [LIMIT=NUMBER]..."""
        options = _options([word for word in words if "=" in word], {"non_voters", *_LIMITS})
        non_voters = options.pop("non_voters", "")
        limits = {name: _number(value) for name, value in options.items()}
        voters = [word for word in words if "=" not in word]
        if self._cluster is not None:
            raise _UsageError("the nodes are there already")
        try:
            self._cluster = ScenarioCluster(
                voters, non_voters.split(",") if non_voters else (), limits, self._core_class
            )
        except ValueError as error:
            raise _UsageError(str(error)) from error
        if not self._cluster.nodes:
            raise _UsageError("needs at least one node")

    def load(self, words: Words) -> None:
        """load NODE [term=T] [vote=NODE] [log=LOG]: start a node with this disk."""
        node = self._node(_one(words[:1], "a node"))
        options = _options(words[1:], {"term", "vote", "log"})
        base, base_term, terms = _log(options.get("log", ""))
        vote = self._node(options["vote"]).name if "vote" in options else None
        hard_state = HardState(Term(_number(options.get("term", "0"))), vote)
        if hard_state.term < max([base_term, *terms]):
            raise _UsageError("the log has an entry of a later term than the node")
        node.disk = Disk(hard_state, base, base_term, terms)
        self.cluster.start(node)

    def timeout(self, words: Words) -> None:
        """timeout NODE PLACE: its next timeouts are the shortest possible plus PLACE ticks."""
        name, place = _several(words, 2, "a node and a number")
        self._node(name).draws.place = _number(place)

    # --- inputs of a core -----------------------------------------------------------------------------------
    def campaign(self, words: Words) -> None:
        """campaign NODE"""
        self._give(words, lambda core: core.campaign())

    def elect(self, words: Words) -> None:
        """elect NODE: make it the leader of a new term, and let all nodes know that its no-op is
        committed.
        """
        name = self._node(_one(words, "a node")).name
        cluster = self.cluster
        for node in cluster.nodes.values():
            if node.name != name:
                cluster.give(node, lambda core: core.forget_leader())
        self._give([name], lambda core: core.campaign())
        cluster.settle()
        core = self._core(self._node(name))
        if core.role is not Role.LEADER:
            raise _UsageError(f"{name} is {core.role.value}")
        cluster.tick(core.config.heartbeat_ticks, [name], settles=True)
        cluster.facts = [f"{name} leads term {core.term}"]

    def propose(self, words: Words) -> None:
        """propose NODE [COUNT]: entries of 10 bytes each."""
        count = _number(words[1]) if len(words) > 1 else 1
        self._give(words[:1], lambda core: self._say_answer(core, count))

    def read(self, words: Words) -> None:
        """read NODE NAME: ask for a read index."""
        name, context = _several(words, 2, "a node and a name for the read")

        def ask(core: RaftCore) -> None:
            if core.read_index(context) is not None:
                self.cluster.say(f"{name} refuses read {context}: it knows no leader")

        self._give([name], ask)

    def transfer(self, words: Words) -> None:
        """transfer NODE [TO]: transfer leadership."""
        to = self._node(words[1]).name if len(words) > 1 else None

        def hand_over(core: RaftCore) -> None:
            answer = core.transfer_leadership(to)
            if isinstance(answer, NotLeader):
                self.cluster.say(f"{words[0]} does not lead")
            else:
                self.cluster.say(f"{words[0]} hands over to {answer or 'no one'}")

        self._give(words[:1], hand_over)

    def resign(self, words: Words) -> None:
        """resign NODE"""
        self._give(words, lambda core: core.resign())

    def promote(self, words: Words) -> None:
        """promote NODE: a learner becomes a voter."""
        self._give(words, lambda core: core.promote_to_voter())

    def link_down(self, words: Words) -> None:
        """link-down NODE PEER [refused]: a node is told that its connection broke."""
        is_refused = len(words) == 3 and words[2] == "refused"
        name, peer = _several(words[:2] if is_refused else words, 2, "a node, a peer, and maybe `refused`")
        self._give([name], lambda core: core.link_down(self._node(peer).name, is_refused))

    def replaced(self, words: Words) -> None:
        """replaced NODE PEER: a node is told that a peer came back without its disk."""
        name, peer = _several(words, 2, "a node and a peer")
        self._give([name], lambda core: core.peer_replaced(self._node(peer).name))

    def compact(self, words: Words) -> None:
        """compact NODE INDEX: its log now begins at this entry."""
        name, first = _several(words, 2, "a node and an index")
        node, index = self._node(name), _number(first)
        core = self._core(node)
        if not core.first_index < index <= core.applied_index + 1:
            raise _UsageError(f"the log can begin at {core.first_index + 1}..{core.applied_index + 1}")
        core.compacted(LogIndex(index))
        node.disk.compact(index)

    def install_state(self, words: Words) -> None:
        """install-state NODE: take the state that a leader offered, and restart after it."""
        node = self._node(_one(words, "a node"))
        offer = node.offer
        if offer is None:
            raise _UsageError("no leader offered its state")
        base = offer.base_index
        base_term = self._core(self._node(offer.leader_id)).log.term(base)
        if base_term is None:
            raise _UsageError(f"{offer.leader_id} no longer has entry {base}")
        if not self._core(node).begin_reset(offer.leader_id, offer.term, base, base_term):
            self.cluster.say(f"{node.name} refuses the state behind {base}")
            return
        self.cluster.give(node, lambda core: None)  # its last messages
        self.cluster.say(f"{node.name} starts again with the state behind {base}")
        node.disk = Disk(node.disk.hard_state, base, base_term, [], state_index=base)
        self.cluster.start(node)

    # --- time and network -----------------------------------------------------------------------------------
    def tick(self, words: Words) -> None:
        """tick COUNT [NODE...]: ticks without any delivery."""
        self._tick(words, settles=False)

    def run_ticks(self, words: Words) -> None:
        """run COUNT [NODE...]: deliver everything after each tick; prints roles, events, commits
        and reads.
        """
        self._tick(words, settles=True)

    def settle(self, words: Words) -> None:
        """settle: like deliver, but prints only roles, events, commits and reads."""
        _several(words, 0, "nothing else")
        self.cluster.settle()

    def deliver(self, words: Words) -> None:
        """deliver [LINK [KIND]]: deliver the messages in flight there; without a link, until none is in
        flight.
        """
        if words:
            self.cluster.deliver(self._take(words))
            return
        while self.cluster.wire:
            self.cluster.deliver([self.cluster.wire.popleft()])

    def lose(self, words: Words) -> None:
        """lose LINK [KIND]: drop the messages in flight there."""
        for message in self._take(words):
            self.cluster.say(f"{text_of(message)}  -- lost")

    def delay(self, words: Words) -> None:
        """delay LINK [KIND]: hold the messages in flight there until `resume`."""
        self._delayed += self._take(words)

    def resume(self, words: Words) -> None:
        """resume: put delayed messages back in flight, after all others."""
        _several(words, 0, "nothing else")
        if not self._delayed:
            raise _UsageError("nothing was delayed")
        self.cluster.wire.extend(self._delayed)
        self._delayed.clear()

    def duplicate(self, words: Words) -> None:
        """duplicate LINK [KIND]: add a second copy after everything in flight."""
        found = self._take(words)
        self.cluster.wire.extendleft(reversed(found))
        self.cluster.wire.extend(found)

    def reverse(self, words: Words) -> None:
        """reverse LINK [KIND]: deliver the messages in flight there in the opposite order."""
        self.cluster.wire.extend(reversed(self._take(words)))

    def wire(self, words: Words) -> None:
        """wire: print the messages in flight."""
        _several(words, 0, "nothing else")
        for message in self.cluster.wire:
            self.cluster.say(text_of(message))

    def partition(self, words: Words) -> None:
        """partition NODE... | NODE...: only nodes of one side hear each other; sides may overlap."""
        sides = [{self._node(name).name for name in side.split()} for side in " ".join(words).split("|")]
        names = self.cluster.nodes
        self.cluster.cut = {
            (a, b) for a in names for b in names if a != b and not any({a, b} <= side for side in sides)
        }

    def cut(self, words: Words) -> None:
        """cut LINK: nothing arrives in this direction."""
        self.cluster.cut |= self._links(_one(words, "a link"))

    def stuck(self, words: Words) -> None:
        """stuck LINK: the sender cannot read the entries from its log, so appends with entries do not go."""
        self.cluster.stuck |= self._links(_one(words, "a link"))

    def heal(self, words: Words) -> None:
        """heal: every link works."""
        _several(words, 0, "nothing else")
        self.cluster.cut.clear()
        self.cluster.stuck.clear()

    # --- disks and processes --------------------------------------------------------------------------------
    def slow_disk(self, words: Words) -> None:
        """slow-disk NODE: its operations wait for `flush`."""
        self._node(_one(words, "a node")).is_slow = True

    def flush(self, words: Words) -> None:
        """flush NODE [COUNT] [unreported]: the oldest operations reach the disk; the core is told, or not."""
        is_told = words[-1:] != ["unreported"]
        rest = words if is_told else words[:-1]
        node = self._node(_one(rest[:1], "a node"))
        self._core(node)
        count = _number(_one(rest[1:], "a count")) if len(rest) > 1 else len(node.writes)
        if not self.cluster.flush(node, count, is_told=is_told):
            raise _UsageError("the disk has nothing to do")

    def fail_disk(self, words: Words) -> None:
        """fail-disk NODE: a write or flush failed; what is not on the disk is lost."""
        self._node(_one(words, "a node")).writes.clear()
        self._give(words, lambda core: core.storage_failed("the disk failed"))

    def crash(self, words: Words) -> None:
        """crash NODE...: power fails; what is not on the disk is lost."""
        for word in words:
            self._core(self._node(word))
            self.cluster.crash(self._node(word))

    def restart(self, words: Words) -> None:
        """restart NODE...: restart from the disk, which is fast."""
        for word in words:
            node = self._node(word)
            if node.core is not None:
                raise _UsageError(f"{word} is running")
            node.is_slow = False
            self.cluster.start(node)

    def wipe(self, words: Words) -> None:
        """wipe NODE: it comes back with an empty disk, as a learner."""
        node = self._node(_one(words, "a node"))
        self.cluster.crash(node)
        node.disk = Disk(HardState(is_voter=False))
        self.cluster.start(node)

    # --- questions ------------------------------------------------------------------------------------------
    def state(self, words: Words) -> None:
        """state [NODE...]: print their views."""
        for name in words or self.cluster.nodes:
            self.cluster.say(self.cluster.state_of(self._node(name)))

    def progress(self, words: Words) -> None:
        """progress NODE: print what a leader knows of its followers."""
        node = self._node(_one(words, "a node"))
        for peer in self._core(node).progress():
            learner = " learner" if peer.is_learner else ""
            self.cluster.say(
                f"{node.name} sees {peer.node_id}: {peer.state.value}"
                f" match={peer.match_index} next={peer.next_index} inflight={len(peer.inflight)}{learner}"
            )

    # --- inside ---------------------------------------------------------------------------------------------
    def _say_answer(self, core: RaftCore, count: int) -> None:
        name, answer = core.node_id, core.propose([ENTRY_BYTES] * count)
        if isinstance(answer, Accepted):
            last = answer.first_index + count - 1
            at = answer.first_index if count == 1 else f"{answer.first_index}..{last}"
            self.cluster.say(f"{name} takes the proposal as {at}@{answer.term}")
        elif isinstance(answer, NotLeader):
            self.cluster.say(f"{name} refuses the proposal: the leader is {answer.leader_hint or 'unknown'}")
        elif isinstance(answer, Busy):
            self.cluster.say(f"{name} refuses the proposal: {answer.uncommitted_bytes} bytes wait for commit")
        elif isinstance(answer, Transferring):
            self.cluster.say(f"{name} refuses the proposal: it hands over to {answer.to}")

    def _give(self, words: Words, action: Callable[[RaftCore], None]) -> None:
        node = self._node(_one(words, "a node"))
        self._core(node)
        self.cluster.give(node, action)

    def _tick(self, words: Words, *, settles: bool) -> None:
        names = [self._node(word).name for word in words[1:]] or list(self.cluster.nodes)
        self.cluster.tick(_number(_one(words[:1], "a number of ticks")), names, settles=settles)

    def _node(self, name: str) -> Node:
        node = self.cluster.nodes.get(NodeId(name))
        if node is None:
            raise _UsageError(f"no node is called {name}; there are {', '.join(self.cluster.nodes)}")
        return node

    def _core(self, node: Node) -> RaftCore:
        if node.core is None:
            raise _UsageError(f"{node.name} is down")
        return node.core

    def _link(self, text: str) -> tuple[str, str]:
        source, arrow, target = text.partition("->")
        if not arrow:
            raise _UsageError(f"{text} is not a link; write n1->n2, n1->* or *->n2")
        for name in (source, target):
            if name != "*":
                self._node(name)
        return source, target

    def _links(self, text: str) -> set[tuple[str, str]]:
        source, target = self._link(text)
        names = self.cluster.nodes
        return {(a, b) for a in names for b in names if a != b and fnmatch(a, source) and fnmatch(b, target)}

    def _take(self, words: Words) -> list[Message]:
        """Take the messages of a link off the wire, oldest first."""
        source, target = self._link(_one(words[:1], "a link"))
        kind = _one(words[1:], "one kind of message") if len(words) > 1 else "*"
        found = [
            message
            for message in self.cluster.wire
            if fnmatch(message.from_, source)
            and fnmatch(message.to, target)
            and kind in ("*", type(message).__name__)
        ]
        if not found:
            raise _UsageError("nothing of that is under way")
        taken = set(map(id, found))
        rest = [message for message in self.cluster.wire if id(message) not in taken]
        self.cluster.wire.clear()
        self.cluster.wire.extend(rest)
        return found


_COMMANDS: Final[dict[str, Callable[[ScenarioRunner, Words], None]]] = {
    "campaign": ScenarioRunner.campaign,
    "compact": ScenarioRunner.compact,
    "crash": ScenarioRunner.crash,
    "cut": ScenarioRunner.cut,
    "delay": ScenarioRunner.delay,
    "deliver": ScenarioRunner.deliver,
    "duplicate": ScenarioRunner.duplicate,
    "elect": ScenarioRunner.elect,
    "fail-disk": ScenarioRunner.fail_disk,
    "flush": ScenarioRunner.flush,
    "heal": ScenarioRunner.heal,
    "install-state": ScenarioRunner.install_state,
    "link-down": ScenarioRunner.link_down,
    "load": ScenarioRunner.load,
    "lose": ScenarioRunner.lose,
    "nodes": ScenarioRunner.nodes,
    "partition": ScenarioRunner.partition,
    "progress": ScenarioRunner.progress,
    "promote": ScenarioRunner.promote,
    "propose": ScenarioRunner.propose,
    "read": ScenarioRunner.read,
    "replaced": ScenarioRunner.replaced,
    "resign": ScenarioRunner.resign,
    "restart": ScenarioRunner.restart,
    "resume": ScenarioRunner.resume,
    "reverse": ScenarioRunner.reverse,
    "run": ScenarioRunner.run_ticks,
    "settle": ScenarioRunner.settle,
    "slow-disk": ScenarioRunner.slow_disk,
    "state": ScenarioRunner.state,
    "stuck": ScenarioRunner.stuck,
    "tick": ScenarioRunner.tick,
    "timeout": ScenarioRunner.timeout,
    "transfer": ScenarioRunner.transfer,
    "wipe": ScenarioRunner.wipe,
    "wire": ScenarioRunner.wire,
}


def _several(words: Words, count: int, what: str) -> Words:
    if len(words) != count:
        raise _UsageError(f"wanted {what}")
    return words


def _one(words: Words, what: str) -> str:
    return _several(words, 1, what)[0]


def _number(text: str) -> int:
    if not text.isdecimal():
        raise _UsageError(f"{text} is not a number")
    return int(text)


def _options(words: Words, known: set[str]) -> dict[str, str]:
    options: dict[str, str] = {}
    for word in words:
        name, equals, value = word.partition("=")
        if not equals or name not in known:
            raise _UsageError(f"unknown option {word}; there are {', '.join(sorted(known))}")
        options[name] = value
    return options


def _log(text: str) -> tuple[int, int, list[int]]:
    """Return (base index, base term, terms) of a log as `state` prints it, e.g. `(4@1)5..6@1,7@2`."""
    base = _BASE.match(text)
    index, base_term = (int(base[1]), int(base[2])) if base else (0, 0)
    last_term, terms = base_term, list[int]()
    for run in filter(None, text[base.end() if base else 0 :].split(",")):
        found = _RUN.fullmatch(run)
        if found is None or int(found[1]) != index + len(terms) + 1 or int(found[3]) < last_term:
            raise _UsageError(f"{text} is not a log; write 1..2@1,3@2, without gaps, terms in order")
        last_term = int(found[3])
        terms += [last_term] * (int(found[2] or found[1]) - int(found[1]) + 1)
    return index, base_term, terms
