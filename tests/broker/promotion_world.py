"""A broker group with a master: its nodes crash, are cut off and promoted, in an order that a seed draws."""

from __future__ import annotations

import asyncio
import random
import re
from collections.abc import Collection
from contextlib import suppress
from dataclasses import replace
from typing import Final

from ledgermq.broker.refusals import RefusedError
from ledgermq.proto import admin_pb2 as pb
from ledgermq.raft.core.outputs import Role
from ledgermq.raft.core.reign import Claim, Reign, first_term_of
from ledgermq.raft.folder.group_recovery import PromotionPlan, claim_of
from ledgermq.raft.log.identity import Identity
from ledgermq.raft.transport.hello import Hello, refusal_of
from ledgermq.raft.types import HardState, LogIndex, NodeId, Term

from .promotion_nodes import FIRST, Cores, Folder, Run

_TURNS: Final = 12  # of the loop, in which all tasks go on that can


class World:
    """The whole group. `play` a history, then `settle` it as a person would."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.names = ["n1", "n2", "n3", "n4"][: self.rng.choice((3, 3, 4))]
        self.folders = {name: Folder(self._identity(name, FIRST)) for name in self.names}
        self.cores = Cores(self.folders)
        self.hops: list[asyncio.Future[None]] = []
        self.cuts: set[frozenset[str]] = set()
        self.met: set[frozenset[str]] = set()  # who has accepted the other's greeting
        self.messages: dict[int, dict[tuple[int, int], int]] = {FIRST: {}}  # group id, (index, term) -> which
        self.acked: set[int] = set()
        self.sent = 0
        self.begun: list[Claim] = []
        self.said: list[str] = []  # refusals of promotions
        self.happened: set[str] = set()
        self.failures: list[BaseException] = []
        self.runs: dict[str, Run] = {}

    def _identity(self, name: str, group_id: int) -> Identity:
        return Identity(
            cluster_id="c",
            group="g0",
            node_id=NodeId(name),
            incarnation=self.rng.getrandbits(62) | 1,
            segment_size=1 << 20,
            group_id=group_id,
            reign=Reign(master=NodeId("n1")),
        )

    # --- time -----------------------------------------------------------------------------------------------
    async def hop(self) -> None:
        """Wait until it is this one's turn."""
        turn = asyncio.get_running_loop().create_future()
        self.hops.append(turn)
        try:
            await turn
        finally:
            with suppress(ValueError):
                self.hops.remove(turn)

    async def _yield(self) -> None:
        for _ in range(_TURNS):
            await asyncio.sleep(0)

    def _one_hop(self) -> None:
        if self.hops:
            self.rng.choice(self.hops).set_result(None)

    # --- nodes ----------------------------------------------------------------------------------------------
    def start(self, name: str) -> None:
        """Open the folder and run; a folder that was left behind goes into the quarantine before."""
        folder, member = self.folders[name], self.cores.members[name]
        if (successor := folder.identity.successor) is not None:
            folder.quarantines.append(self.messages_of(name))
            identity = replace(self._identity(name, 0), reign=successor)
            self.folders[name] = self.cores.folders[name] = Folder(
                identity, is_learner=True, copied_from=0, quarantines=folder.quarantines
            )
            member.disk_terms = []
            self.happened.add("left behind")
        self.cores.restart(name)
        self.runs[name] = Run(self, name)
        self.cores[name].hold(True)  # a slave never campaigns; a master listens first
        self.connect()

    def crash(self, name: str) -> None:
        for task in list(self.runs[name].tasks):
            task.cancel()
        self.runs[name].is_up = False
        self.cores.crash(name)
        self.connect()

    def is_dead(self, name: str) -> bool:
        return not self.runs[name].is_up and not self.runs[name].tasks

    def reaches(self, one: str, other: str) -> bool:
        return self.runs[one].is_up and self.runs[other].is_up and frozenset((one, other)) not in self.cuts

    def connect(self) -> None:
        """Let messages pass between those who have met and still reach each other."""
        self.met = {pair for pair in self.met if self.reaches(*pair)}
        self.cores.cut = {
            (a, b) for a in self.names for b in self.names if a != b and frozenset((a, b)) not in self.met
        }

    def greet(self, one: str, other: str) -> None:
        if not self.reaches(one, other):
            return
        runs = [self.runs[one], self.runs[other]]
        hellos = runs[0].hello(), runs[1].hello()
        runs[0].hear(hellos[1])
        runs[1].hear(hellos[0])
        members = frozenset(map(NodeId, self.names))
        one_says, other_says = refusal_of(*hellos, members), refusal_of(hellos[1], hellos[0], members)
        pair = frozenset((one, other))
        if one_says or other_says or any(run.core.is_silent for run in runs):
            self.met.discard(pair)
        else:
            self.met.add(pair)
            for run, theirs in zip(runs, reversed(hellos), strict=True):
                self._follow(run, theirs)
        self.connect()

    def _follow(self, run: Run, theirs: Hello) -> None:
        folder, reign = run.folder, run.folder.identity.reign
        if reign is not None and theirs.node_id == reign.master and not folder.identity.group_id:
            folder.copied_from = theirs.group_id
            if self.rng.random() < 0.7:  # else it crashes, or takes its time, before it is stored
                folder.identity = replace(folder.identity, group_id=theirs.group_id)

    def lead(self, name: str, *, heard: float = 0.9) -> None:
        """A master has listened; it leads unless it heard of one beside it."""
        run = self.runs[name]
        if not run.is_up or run.config.reign.master != name or run.core.role is Role.LEADER:
            return
        for other in self.names:
            if other != name and self.rng.random() < heard:
                self.greet(name, other)
        if run.core.is_silent:
            return
        if run.is_held():
            self.happened.add("held")
            return
        if run.folder.is_learner:
            return
        run.core.hold(False)
        run.core.campaign()
        self.cores.settle()

    def begin(self, name: str, plan: PromotionPlan) -> None:
        """Do as promote_folder does."""
        folder, member = self.folders[name], self.cores.members[name]
        identity = folder.identity
        if not identity.group_id or identity.successor is not None:
            return
        terms = member.disk_terms
        claim = claim_of(identity, plan, LogIndex(len(terms)))
        folder.takes_part_in(claim)
        copied, places = self.messages[folder.copied_from], list(enumerate(terms, start=1))
        self.messages[claim.group_id] = {place: copied[place] for place in places if place in copied}
        term = first_term_of(claim.reign.generation, Term(max([member.disk_hard.term, *terms[-1:]])))
        member.disk_hard = HardState(term)
        folder.identity = replace(
            identity, incarnation=plan.incarnation, group_id=claim.group_id, reign=claim.reign, claims=()
        )
        folder.copied_from, folder.is_learner = claim.group_id, False
        self.begun.append(claim)

    # --- messages -------------------------------------------------------------------------------------------
    def send(self) -> None:
        leaders = [
            name for name in self.names if self.runs[name].is_up and self.cores[name].role is Role.LEADER
        ]
        if not leaders:
            return
        name = self.rng.choice(leaders)
        known, first = self.messages[self.folders[name].copied_from], self.cores[name].last_index + 1
        last = self.cores.propose(name, self.rng.randint(1, 3))
        for index in range(first, last + 1):
            self.sent += 1
            known[index, int(self.cores[name].term)] = self.sent

    def acknowledge(self) -> None:
        """A master confirms what it has on its disk (async_master)."""
        for run in self.runs.values():
            if run.is_up and run.core.role is Role.LEADER:
                known = self.messages[run.folder.copied_from]
                for index in range(run.acked_to + 1, run.core.commit_index + 1):
                    place = index, int(run.core.log.term(LogIndex(index)) or 0)
                    if place in known:
                        self.acked.add(known[place])
                run.acked_to = run.core.commit_index
        together = [p for p in self.met if all(self.cores[name].role is Role.LEADER for name in p)]
        assert not together, f"both lead, and have accepted each other: {together}"

    def messages_of(self, name: str) -> set[int]:
        folder, terms = self.folders[name], self.cores.members[name].disk_terms
        known = self.messages.get(folder.copied_from, {})
        return {known[place] for place in enumerate(terms, start=1) if place in known}

    def catch_up(self) -> None:
        """A learner is level when it holds what its master has committed."""
        for name in self.names:
            run = self.runs[name]
            leader = run.core.leader_id if run.is_up else None
            level = leader is not None and run.core.stable_index >= self.cores[leader].commit_index
            if level and run.folder.identity.group_id:
                run.folder.is_learner = False

    # --- what a person does ---------------------------------------------------------------------------------
    def promote(self, name: str, instead_of: Collection[str] = ()) -> asyncio.Task[str]:
        """Return the refusal, if any, when it is decided."""
        run = self.runs[name]

        async def ask() -> str:
            request = pb.PromoteRequest(
                node_id=name, generation=run.config.reign.generation, incomplete=True, instead_of=instead_of
            )
            try:
                await run.promotions.accept(request)
            except RefusedError as error:
                self.said.append(str(error))
                named = {*re.findall(r"--instead-of (n\d)", str(error))} - {*instead_of}
                if named and self.rng.random() < 0.7:
                    self.happened.add("named")
                    return await self.promote(name, {*instead_of, *named})
                return str(error)
            return ""

        run.asking = [run.spawn(ask())]
        return run.asking[0]

    async def play(self, steps: int) -> None:
        self.runs = {name: Run(self, name) for name in self.names}
        for one in self.names:
            for other in self.names:
                if one < other:
                    self.greet(one, other)
        self.lead("n1")
        for _ in range(steps):
            await self._event()
            await self._yield()
            self.acknowledge()
            self._check_tasks()

    def _check_tasks(self) -> None:
        for error in self.failures:
            raise error

    async def _event(self) -> None:
        rng, name, other = self.rng, self.rng.choice(self.names), self.rng.choice(self.names)
        draw = rng.random()
        if draw < 0.40:
            self._one_hop()
        elif draw < 0.52:
            self.send()
        elif draw < 0.62 and name != other:
            self.greet(name, other)
        elif draw < 0.70:
            self.lead(name)
        elif draw < 0.77:
            self.cores.tick(100)
            self.catch_up()
        elif draw < 0.83:
            self._ask_for_a_promotion()
        elif draw < 0.88:
            leaders = [each for each in self.names if self.cores[each].role is Role.LEADER]
            victim = rng.choice([name, *leaders, *leaders])
            if not self.is_dead(victim):
                self.crash(victim)
        elif draw < 0.92 and self.is_dead(name):
            self.start(name)
        elif draw < 0.96 and name != other:
            self.cuts ^= {frozenset((name, other))}
            self.connect()
        elif draw < 0.98 and self.runs[name].is_up:
            held = self.cores.members[name].held is not None
            (self.cores.release_disk if held else self.cores.hold_disk)(name)
        elif draw < 0.99 and self.runs[name].is_up:
            for task in self.runs[name].asking:  # who asked for a promotion hangs up
                task.cancel()

    def _ask_for_a_promotion(self) -> None:
        there = [name for name in self.names if self.runs[name].is_up and not self.cores[name].is_silent]
        without = [name for name in there if self.cores[name].leader_id is None]
        if there:
            self.promote(self.rng.choice([*there, *without, *without, *without]))

    async def calm(self) -> None:
        """Let everything that was begun end, with all nodes there."""
        self.cuts.clear()
        for _ in range(12):
            for name in self.names:
                if self.is_dead(name):
                    self.start(name)
                self.cores.release_disk(name)
            while self.hops:
                self._one_hop()
                await self._yield()
            for one in self.names:
                for other in self.names:
                    if one < other:
                        self.greet(one, other)
                self.lead(one, heard=1.0)
            self.cores.tick(100)
            self.catch_up()
            await self._yield()
            self.acknowledge()
            self._check_tasks()

    def is_one_group(self) -> bool:
        """Tell whether one leads, and all have its log."""
        leaders = [name for name in self.names if self.cores[name].role is Role.LEADER]
        logs = {tuple(self.cores.members[name].disk_terms) for name in self.names}
        ids = {self.folders[name].identity.group_id for name in self.names}
        return (
            len(leaders) == 1
            and len(logs) == 1
            and len(ids) == 1
            and all(run.is_up for run in self.runs.values())
        )

    async def settle(self) -> None:
        """Promote as a person would until there is one group, which must come about."""
        for _ in range(10):
            await self.calm()
            if self.is_one_group():
                return
            masters = [name for name in self.names if self.runs[name].config.reign.master == name]
            able = [name for name in self.names if self.folders[name].identity.group_id]
            self.happened.add("healed by a person")
            self.promote(self.rng.choice(masters or able))
        states = {
            name: (run.is_up, self.cores[name].role, run.folder, sorted(run.beside))
            for name, run in self.runs.items()
        }
        raise AssertionError(f"never one group: {states}; {self.said[-3:]}")

    def lost(self) -> set[int]:
        """Return the confirmed messages that are neither in the broker group nor in a quarantine."""
        kept = self.messages_of(self.names[0])
        for folder in self.folders.values():
            kept = kept.union(*folder.quarantines)
        return self.acked - kept

    def close(self) -> None:
        for name in self.names:
            self.crash(name)


def run_history(seed: int, steps: int = 250) -> World:
    """Play and settle a history; return what became of it. Raises: AssertionError."""
    world = World(seed)

    async def main() -> None:
        try:
            await world.play(steps)
            await world.settle()
        finally:
            world.close()

    asyncio.run(main())
    assert not world.lost(), f"seed {seed}: confirmed, and nowhere: {sorted(world.lost())}"
    return world
