"""Faults of a run. Every rate is drawn per seed from a wide range, and whole classes are switched off.

Owns: the adversary, the user and the operator of the cluster. Each has its own random numbers, so leaving out
a class (`without`) or a stretch of time (`quiet`) disturbs the rest as little as possible. That is how a
failure is shrunk.
"""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Final

from ledgermq.raft.core.outputs import Role
from ledgermq.raft.types import NodeId
from tests.power_cut import Keep

from .atlas import POWER_LOST
from .disk_faults import DiskFaults
from .network import SHAPES
from .strangers import forged_answer

if TYPE_CHECKING:
    from .node import SimNode
    from .world import World

MS = 1000
MEAN_MS: Final = {
    "crash": (700, 6000), "restart_all": (4000, 20000), "pause": (1000, 8000), "burst": (1000, 8000),
    "clock_step": (500, 5000), "cut": (400, 4000), "flap": (3000, 12000), "clog": (500, 5000), "hint": (300,
    3000),
    "stranger": (20, 500), "operate": (500, 4000), "compact": (200, 2500), "disk_error": (2000, 15000),
    "disk_full": (2000, 10000),
    "slow_disk": (1000, 6000), "read_error": (2000, 15000), "bit_flip": (2000, 15000), "misdirect": (2000,
    15000),
    "wipe": (5000, 15000), "old_disk": (4000, 15000),
}  # fmt: skip
#: Classes without timed events. They can be left out like the others.
OTHER_CLASSES: Final = (
    "network", "skew", "cold_reads", "crash_in_vote", "crash_in_turn", "harass", "figure_8", "power",
    "late_words", "horizon", "crash_in_reset", "flips", "stalls",
)  # fmt: skip
#: Attributes of Faults that are 0 without a class.
_SHARES: Final = {
    "cold_reads": "cold_share", "crash_in_vote": "crash_in_vote", "crash_in_turn": "crash_in_turn",
    "crash_in_reset": "crash_in_reset", "harass": "harass_leaders", "power": "power_share",
}  # fmt: skip
CLASSES: Final = (*MEAN_MS, *OTHER_CLASSES)
_DISK: Final = (
    "disk_error", "disk_full", "slow_disk", "read_error", "bit_flip", "misdirect", "wipe", "old_disk",
)  # fmt: skip
TOLD_AT_MOST: Final = 2000
#: One in this many seeds has a network that flips bits.
FLIPS_ONE_IN: Final = 8
#: In one of this many seeds nodes are short of CPU: they run for a moment and then stall for longer,
#: repeatedly.
STALLS_ONE_IN: Final = 8


class Faults:
    """The adversary, and the user of the cluster."""

    def __init__(self, world: World, without: frozenset[str], quiet: tuple[tuple[int, int], ...]) -> None:
        self.world = world
        self.rng = rng = random.Random(world.rng.getrandbits(64))
        self.user_rng = random.Random(world.rng.getrandbits(64))
        self.without = without
        self.quiet = quiet
        self.crashes = 0
        self.active = True
        self.told: list[str] = []  # events, to explain a failure
        self.happened: dict[str, int] = {}  # class -> number of events
        self.disks = DiskFaults(self, random.Random(rng.getrandbits(64)))
        self.mean_ms: dict[str, int] = {}
        for name, bounds in MEAN_MS.items():
            mean = rng.randint(*bounds)
            if rng.random() < 0.5:
                self.mean_ms[name] = mean
        self.keep_ms = rng.choice((0, 0, 300, 2000))
        self.need_bytes = rng.choice((1, 10_000, 1 << 40))
        self.crash_in_vote = rng.choice((0.0, 0.0, 0.2))
        self.crash_in_turn = rng.choice((0.0, 0.0, 0.002, 0.02))
        self.crash_in_reset = rng.choice((0.0, 0.0, 0.3, 0.7))
        self.harass_leaders = rng.choice((0.0, 0.0, 0.8))
        self.harass_ms = rng.choice((30, 200, 1000))
        self.mean_ms["propose"] = rng.choice((15, 40, 150))
        self.mean_ms["read"] = rng.choice((20, 100, 500))
        self.power_share = rng.choice((0.0, 0.5, 1.0))
        self.cold_share = rng.choice((0.0, 0.0, 0.1, 0.5))
        self.entry_bytes = rng.choice((100, 400, 400, 1 << 20))
        self._draw_network()
        self.plays_figure_8 = rng.random() < 0.2 and "figure_8" not in without
        if self.plays_figure_8:
            self._prefer_figure_8()
        elif rng.random() < 0.2 and "late_words" not in without:
            self._prefer_late_words()
        elif rng.random() < 0.35 and "horizon" not in without:
            self._prefer_a_near_horizon()
        self.skews_clocks = rng.random() < 0.3 and "skew" not in without
        self.stall_rng = random.Random(world.seed)
        self.stalls_ms = (0, 0)  # how long a node short of CPU stalls
        self.starved: list[str] = []
        self._leave_out()

    def _draw_flips(self) -> None:
        """Draw bit flips with separate random numbers, so that other seeds keep their histories."""
        world, rng = self.world, random.Random(self.world.seed)
        world.network.flip_rng = rng
        if world.seed % FLIPS_ONE_IN == 3:
            world.network.flips = rng.choice((0.02, 0.3))

    def _draw_stalls(self) -> None:
        """Draw stalls with separate random numbers too."""
        if self.world.seed % STALLS_ONE_IN == 0:
            rng = self.stall_rng
            self.stalls_ms = rng.choice(((20, 190), (100, 500), (300, 600)))
            self.starved = rng.sample(self.world.names, rng.randint(1, len(self.world.names)))

    def _leave_out(self) -> None:
        without = self.without
        if "flips" not in without:
            self._draw_flips()
        if "stalls" not in without:
            self._draw_stalls()
        for name in without:
            self.mean_ms.pop(name, None)
        if "network" in without:
            self.world.network.calm()
        for name, share in _SHARES.items():
            if name in without:
                setattr(self, share, 0.0)

    def _prefer_figure_8(self) -> None:
        """One entry per message, and every leader is soon alone: tails of several terms meet (figure 8)."""
        self.world.limits["max_append_bytes"] = self.world.limits["max_inflight_messages"] = 1
        self.mean_ms = {"propose": 30, "read": 500}
        self.world.network.loss = self.world.network.straggle = 0.0
        self.world.network.delay_us = self.rng.choice(((1000, 10_000), (5000, 30_000)))

    def _prefer_late_words(self) -> None:
        """Leaders change often, and their messages and the replies arrive terms later (rows C6, C11)."""
        network = self.world.network
        self.mean_ms = {"propose": 15, "read": 500, "operate": 1500}
        self.harass_leaders, self.harass_ms = 1.0, self.rng.choice((200, 600))
        network.delay_us = (200, 20_000)
        network.straggle, network.straggle_us = self.rng.choice((0.1, 0.3)), 4000 * MS
        network.loss, network.held = 0.0, 0.8

    def _prefer_a_near_horizon(self) -> None:
        """Keep the log short: a node that was away briefly finds that retention deleted what it needs."""
        world, rng = self.world, self.rng
        world.segment_size, world.checkpoint_ms, world.delete_per_second = 4096, 200, 1000.0
        self.keep_ms, self.need_bytes = 0, 1 << 40
        self.entry_bytes = 400
        self.mean_ms |= {
            "propose": 15,
            "compact": rng.choice((100, 300)),
            "cut": 1500,
            "crash": rng.choice((1000, 4000)),
        }

    def _draw_network(self) -> None:
        rng, network = self.rng, self.world.network
        network.loss = rng.choice((0.0, 0.0, rng.uniform(0, 0.3)))
        network.repeat = rng.choice((0.0, rng.uniform(0, 0.3)))
        network.straggle = rng.choice((0.0, rng.uniform(0, 0.1)))
        network.straggle_us = rng.choice((20, 500, 5000)) * MS
        network.delay_us = rng.choice(((100, 1000), (200, 20_000), (1000, 100_000)))

    def start(self) -> None:
        """Schedule the first events."""
        for name in self.mean_ms:
            self._again(name)
        for name in self.starved:
            self.world.later(self.stall_rng.randint(1, 1000) * MS, "", "stall", name)

    # --- events ---------------------------------------------------------------------------------------------
    def happen(self, kind: str, payload: object) -> None:
        """Let one event of a class happen, and draw the next."""
        if kind in ("restart", "exit", "room", "scrub", "heal", "old_disk_of", "stall"):
            getattr(self, f"_{kind}")(payload)
            return
        if not self.active and kind not in ("propose", "read"):
            return
        if kind in ("propose", "read"):
            getattr(self, f"_{kind}")()
        elif not self._is_quiet():
            self.happened[kind] = self.happened.get(kind, 0) + 1
            getattr(self.disks if kind in _DISK else self, kind)()
        if self.active:
            self._again(kind)

    def _is_quiet(self) -> bool:
        return any(begin <= self.world.now < end for begin, end in self.quiet)

    def _strikes(self, share: float) -> bool:
        return self.active and share > 0 and self.rng.random() < share and not self._is_quiet()

    def tell(self, what: str) -> None:
        """Record an event, for people."""
        if len(self.told) < TOLD_AT_MOST:
            self.told.append(f"{self.world.now / 1e6:10.6f} s  {what}")

    def _again(self, kind: str) -> None:
        rng = self.user_rng if kind in ("propose", "read") else self.rng
        self.world.later(int(rng.expovariate(1 / self.mean_ms[kind]) * MS) + 1, "", kind)

    def _restart(self, payload: object) -> None:
        node = self.world.nodes[str(payload)]
        if not node.up and not node.starting and (self.active or self.world.is_healed(node)):
            self.world.start_node(node)

    def _exit(self, payload: object) -> None:
        """End a faulted process."""
        node = self.world.nodes[str(payload)]
        if node.up and node.core.fault is not None:
            self.kill(node, power=False)

    def _room(self, payload: object) -> None:
        self.disks.room(str(payload))

    def _scrub(self, payload: object) -> None:
        if self.active:
            self.disks.scrub(str(payload))

    def _old_disk_of(self, payload: object) -> None:
        if self.active and not self._is_quiet():
            self.disks.restore(self.world.nodes[str(payload)])

    def _heal(self, _payload: object) -> None:
        if self.active:
            self.world.network.heal()

    # --- hooks ----------------------------------------------------------------------------------------------
    def draw_pace(self) -> float:
        """Draw the rate of a node's clock."""
        return self.rng.uniform(0.5, 2.0) if self.skews_clocks else 1.0

    def on_vote_write(self, node: SimNode) -> None:
        """Handle a write of term and vote: power may fail before it is done, or just after."""
        if self._strikes(self.crash_in_vote):
            self.world.later(self.rng.randint(1, node.files.sync_delay_us[1]), node.name, "crash")

    def on_turn(self, node: SimNode, end: int) -> None:
        """Handle the start of a flusher turn: power may fail at any of its calls."""
        if self._strikes(self.crash_in_turn):
            self.world.later(self.rng.randint(0, max(0, end - self.world.now)), node.name, "crash")

    def on_recovery(self, node: SimNode, end: int) -> None:
        """Handle a recovery, which reads the disk and repairs the log's end: it may be interrupted too."""
        if self.active and self.rng.random() < 10 * self.crash_in_turn and not self._is_quiet():
            self.world.later(self.rng.randint(0, max(0, end - self.world.now)), node.name, "crash")

    def on_reset(self, node: SimNode, within_us: int) -> None:
        """Handle a step of a reset (fetch, decide, install): this node or the leader may die at it."""
        if self.active and self.rng.random() < self.crash_in_reset and not self._is_quiet():
            leader = self.world.leader()
            victim = leader if leader is not None and self.rng.random() < 0.3 else node
            self.world.later(self.rng.randint(0, within_us), victim.name, "crash")

    def on_promoted(self, node: SimNode) -> None:
        """Handle a node that has fetched everything again: its former disk may come back now."""
        if self.active and "old_disk" in self.mean_ms and self.rng.random() < 0.5:
            self.world.later(self.rng.randint(10, 1000) * MS, "", "old_disk_of", node.name)

    def on_leader(self, node: SimNode) -> None:
        """Handle an election: the winner may die, or be isolated, before its first entries spread."""
        if not self.active or self._is_quiet():
            return
        if self.plays_figure_8:
            self.world.later(self.rng.randint(1, self.rng.choice((10, 50, 800))) * MS, node.name, "isolate")
        elif self.harass_leaders and self.rng.random() < self.harass_leaders:
            kind = self.rng.choice(("crash", "isolate"))
            self.world.later(self.rng.randint(1, self.harass_ms) * MS, node.name, kind)

    def isolate(self, node: SimNode) -> None:
        """Isolate a node, perhaps together with one other."""
        others = [name for name in self.world.names if name != node.name]
        self.rng.shuffle(others)
        keep = self.rng.randint(0, max(0, len(others) - 1) // 2)
        self.world.network.heal()
        self.world.network.cut([node.name, *others[:keep]], others[keep:])
        self.tell(f"{node.name} is cut off from {' '.join(others[keep:])}")
        if not self.plays_figure_8:  # there, the next leader's isolation reconnects this one
            self.world.later(self.rng.randint(500, 1500) * MS, "", "heal")

    # --- the user -------------------------------------------------------------------------------------------
    def _propose(self) -> None:
        for node in self.running():
            # Now and then a client addresses a node that does not lead, or no longer.
            if node.life is not None and (node.life.leads or self.user_rng.random() < 0.05):
                count = self.user_rng.randint(1, 5)
                node.life.propose([self.user_rng.randrange(self.entry_bytes) for _ in range(count)])
                self.world.invariants.after(node)

    def _read(self) -> None:
        node = self.any_running(self.user_rng)
        if node is not None and node.life is not None:
            node.life.read(self.world.next_read())

    def operate(self) -> None:
        """Campaign, resign, or transfer leadership."""
        node = self.any_running()
        if node is None or node.life is None:
            return
        what = self.rng.randint(0, 4)
        if what == 0:
            node.core.campaign()
        elif what == 1:
            node.core.resign()
        elif what == 2:
            node.core.want_commits(self.rng.random() < 0.5)
        else:
            to = None if what == 3 else NodeId(self.rng.choice(self.world.names))
            for each in self.running():
                if each.core.role is Role.LEADER and to != each.name and each.life is not None:
                    each.core.transfer_leadership(to)
                    each.life.pump()
        node.life.pump()

    def compact(self) -> None:
        """Let a leader decide that old segments must go, even if a node still needs them."""
        for node in self.running():
            if node.life is not None and node.life.leads and node.life.broker is None:
                node.life.retention.decide(self.need_bytes, self.keep_ms)

    # --- the villain ----------------------------------------------------------------------------------------
    def crash(self) -> None:
        """Kill a process, or its machine."""
        node = self.any_running()
        if node is not None:
            self.kill(node)

    def restart_all(self) -> None:
        """Restart all nodes at once."""
        for node in self.running():
            self.kill(node)

    def pause(self) -> None:
        """SIGSTOP: input queues up."""
        node = self.any_running()
        if node is not None:
            node.paused_until = self.world.now + self.rng.randint(50, 2000) * MS
            self.tell(f"{node.name} pauses until {node.paused_until / 1e6:.3f} s")

    def _stall(self, payload: object) -> None:
        """Stall a node, then let it run for a moment."""
        if not self.active:
            return
        node, stands = self.world.nodes[str(payload)], self.stall_rng.randint(*self.stalls_ms) * MS
        if not self._is_quiet():
            self.happened["stalls"] = self.happened.get("stalls", 0) + 1
            node.paused_until = max(node.paused_until, self.world.now + stands)
        self.world.later(stands + self.stall_rng.randint(10, 50) * MS, "", "stall", node.name)

    def burst(self) -> None:
        """Deliver many ticks at once."""
        node = self.any_running()
        if node is not None and node.life is not None:
            for _ in range(self.rng.randint(2, 30)):
                node.life.tick()

    def clock_step(self) -> None:
        """Set a wall clock."""
        node = self.world.nodes[self.rng.choice(self.world.names)]
        node.clock.step(self.rng.choice((-3_600_000, -60_000, -500, 500, 60_000, 3_600_000)))

    def cut(self) -> None:
        """Cut the network in some shape, or heal it."""
        network = self.world.network
        names = self._shuffled()
        if self.rng.random() < 0.2:
            network.heal()
            return
        if self.rng.random() < 0.5:
            network.heal()
        shape = self.rng.choice(list(SHAPES))
        SHAPES[shape](network, names, self.rng)
        self.tell(f"cut: {shape} {' '.join(names)}")
        if self.rng.random() < 0.6:
            self.world.later(self.rng.randint(100, 3000) * MS, "", "heal")

    def flap(self) -> None:
        """Let a link flap."""
        names = self._shuffled()
        at = 0
        for _ in range(self.rng.randint(3, 12)):
            at += self.rng.randint(20, 400) * MS
            self.world.later(at, names[0], "cut_off", names[1:2] if self.rng.random() < 0.5 else names[1:])
            at += self.rng.randint(20, 400) * MS
            self.world.later(at, "", "heal")
        self.tell(f"links of {names[0]} flap for {at / 1e6:.3f} s")

    def cut_off(self, node: SimNode, others: list[str]) -> None:
        """Cut a flapping link once."""
        self.world.network.cut([node.name], others)

    def clog(self) -> None:
        """Block a link for a while, then deliver everything; or slow a link down for good."""
        source, target = self._shuffled()[:2] if len(self.world.names) > 1 else ("", "")
        if self.rng.random() < 0.5:
            self.world.network.clogged[source, target] = self.world.now + self.rng.randint(50, 3000) * MS
        else:
            self.world.network.slow[source, target] = self.rng.randint(5, 500) * MS
        self.tell(f"clogged or slow: {source} -> {target}")

    def hint(self) -> None:
        """Break a connection, or only tell the core so."""
        node = self.any_running()
        if node is not None and node.life is not None:
            peer = NodeId(self.rng.choice(self.world.names))
            node.core.link_down(peer, refused=self.rng.random() < 0.5)
            node.life.pump()

    def stranger(self) -> None:
        """Send a non-member's answer that looks like a member's, or a message to the wrong node (row E13)."""
        node = self.any_running()
        if node is not None and node.life is not None:
            self.world.promises.step(node, forged_answer(node.core))
            node.life.pump()
            self.world.invariants.after(node)

    def kill(self, node: SimNode, *, power: bool | None = None) -> None:
        """Kill a process, with or without its machine, and restart it later."""
        rng = self.rng
        if power is None:
            power = rng.random() < self.power_share
        keep = rng.choice(list(Keep))
        if power and not node.is_sync and not self._may_lose_power(node):
            power = False
        self.crashes += 1
        self.tell(f"{node.name} {f'loses power, the disk keeps {keep.value}' if power else 'is killed'}")
        node.crash(keep if power else None)
        self.disks.before_start(node)
        self.world.later(rng.choice((1, 50, 400, 3000)) * MS, "", "restart", node.name)
        if rng.random() < 0.5:
            for each in self.running():
                if each.life is not None:
                    each.core.link_down(NodeId(node.name), refused=True)
                    each.life.pump()

    def _may_lose_power(self, node: SimNode) -> bool:
        """Return whether a node may lose power: async flush modes survive that of a minority (D7)."""
        atlas = self.world.atlas
        if node.name not in atlas.hurt and not atlas.may_hurt(node.name):
            return False
        atlas.note(node.name, POWER_LOST)
        if node.life is not None:
            node.ghosts.append(node.image.known())
        return True

    # --- who ------------------------------------------------------------------------------------------------
    def running(self) -> list[SimNode]:
        """Return the nodes that run and are not paused."""
        world = self.world
        return [n for n in world.nodes.values() if n.up and world.now >= n.paused_until]

    def any_running(self, rng: random.Random | None = None) -> SimNode | None:
        """Return a random one of them."""
        running = self.running()
        return (rng or self.rng).choice(running) if running else None

    def _shuffled(self) -> list[str]:
        names = list(self.world.names)
        self.rng.shuffle(names)
        return names
