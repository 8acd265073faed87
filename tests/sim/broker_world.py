"""Broker part of a run: state shared by nodes and clients, and the checks about the broker.

B apply      the real state applies every committed entry, and its command results equal the model's
B offsets    queue offsets are contiguous; B1: each message is stored once, a producer's batches in order
B equal      checkpoints are byte-identical on all nodes at equal indexes, whatever crashes came before
B rebuild    ... and equal to those of a state rebuilt from the first entry
B model      topics, queues, positions, leases and producers are those of the model
B epochs     a queue of a group has one owner per epoch, and its epochs only grow; a commit under another
             epoch moves nothing
B acked      an acknowledged send is stored exactly once, at the place in the answer, in every retry's
             answer too
B closed     no entry after a drain holds messages, until the drain is undone
B7           what was refused, and never had an unknown outcome, is not stored
B visible    every reader, on any node, sees committed messages only, and sees those that exist
B leased     a delivered message was granted to that group, by an applied entry
B5           an acknowledged message is not delivered to that group again
B level      nothing is written that is above the broker group's feature level
B attempts   no group gets a message more often than it allows; a message is parked only after that many
             failures, unless a client asks for it
B parked     a parked message is not delivered
B drained    everything is delivered in the end: what was never acknowledged comes again, and so does what
             is released; each queue has a live owner
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from crc32c import crc32c

from ledgermq.broker.checkpoint.layout import encode_snapshot, take_snapshot
from ledgermq.broker.errors import BrokerError
from ledgermq.broker.leader.selection import Delivery
from ledgermq.broker.state.codecs import encode
from ledgermq.broker.state.commands import EARLIEST, LATEST, EvictDedup
from ledgermq.broker.state.consume_queue import ColdRead
from ledgermq.broker.state.effects import Effects
from ledgermq.broker.state.machine import BrokerState
from ledgermq.proto.entry import HEADER_SIZE, EntryHeader
from ledgermq.proto.record import SectionKind, encode_section, seal_section
from ledgermq.raft.errors import DataFolderError
from ledgermq.raft.folder.opening import check_state_fits
from ledgermq.raft.folder.storage import RaftStorage
from ledgermq.raft.types import LogIndex

from .broker_clients import Clients
from .broker_life import Answer, BrokerLife, Request, effects_of
from .broker_model import BrokerModel
from .invariants import demand
from .retention import Saved

if TYPE_CHECKING:
    from .faults import Faults
    from .node import SimNode
    from .world import World

MS = 1000
SECOND = 1_000_000
DIGEST_EVERY = 16
COMPARE_EVERY = 64
LIVELY_US = 2 * SECOND
DRAIN_US = 40 * SECOND  # without progress
SETTLE_US = 10 * SECOND

Place = tuple[int, int, int]  # topic id, queue id, queue offset


class BrokerWorld:
    """One per run with brokers. Its own random numbers leave the other draws of the run as they are."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.rng = rng = random.Random(f"broker {world.seed}")
        self.model = BrokerModel()
        self.entries: list[tuple[EntryHeader, bytes]] = []
        self._digests: dict[int, int] = {}
        self.acked: dict[bytes, Place] = {}  # message id -> place in the first answer
        self.refused: dict[bytes, None] = {}  # definitely refused, every time
        #: (consumer group, topic, queue, offset) -> index of the ack
        self.done: dict[tuple[int, int, int, int], int] = {}
        self.delivered_count = 0
        self.is_lively = False  # no faults, and clients behave as usual
        self.is_draining = False
        self.loss = rng.choice((0.0, 0.05, 0.2))
        self.delay_us = rng.choice(((100, 2000), (100, 2000), (1000, 60_000)))
        # share of requests that arrive after their caller stopped waiting
        self.late_share = rng.choice((0.0, 0.05))
        self.lateness_us = rng.choice((20, 2000))
        self.checkpoint_us = rng.choice((150, 600, 3000)) * MS
        self.evicts = rng.random() < 0.2
        own = random.Random(f"members {world.seed}")  # keeps the draws of other runs
        self.member_count = own.choice((0, 0, 2, 5))
        self.exclusive_start = own.choice((EARLIEST, LATEST))
        # This name keeps the seeds by which the older broker mutants are known.
        own = random.Random(f"parked 831 {world.seed}")
        self.parking = own.choice(("", "", "", "", "", "old", "yes", "yes", "yes", "yes"))
        #: Deliveries of a message to a leasing group; 17 is the default. "old": the broker group does not
        #: learn parking.
        self.max_attempts = own.choice((1, 2, 4)) if self.parking else 17
        self.operator_count = int(random.Random(f"operators {world.seed}").random() < 0.2)
        world.segment_size = rng.choice((32_768, 65_536))
        world.limits["max_uncommitted_bytes"] = rng.choice((4_000, 20_000, 1 << 20))
        self.clients = Clients(self)

    def tame(self, faults: Faults) -> None:
        """Remove faults that these runs do not have, and let clients make most of the entries."""
        faults.mean_ms.pop("compact", None)
        pace = self.rng.choice((1, 4, 12))  # with leaders that never last, nothing is sent
        faults.mean_ms = {name: mean * pace for name, mean in faults.mean_ms.items()}
        faults.mean_ms["propose"] = 500

    @property
    def is_quiet(self) -> bool:
        """True while the broker group is judged by its peace: no requests, no periodic work."""
        return not (self.world.faults.active or self.is_lively or self.is_draining)

    def open(self, node: SimNode, storage: RaftStorage) -> BrokerLife | None:
        """Read the state of a starting node. None: it is unusable, and that is handled."""
        try:
            broker = BrokerLife(self, node)
            check_state_fits(node.config, LogIndex(broker.applied), storage.log)
        except (BrokerError, DataFolderError, OSError) as error:
            self.world.on_start_refused(node, error)
            return None
        node.saved = Saved(broker.applied)  # the log is needed from there on
        return broker

    # --- wires ----------------------------------------------------------------------------------------------
    def start(self) -> None:
        """Start the clients."""
        self.clients.start()

    def after(self, delay_us: int, call: Callable[[], None]) -> None:
        """Schedule an event of a client."""
        self.world.later(delay_us, "", "client", call)

    def deliver(self, node: SimNode, request: Request) -> None:
        """Send a call."""
        rng = self.rng
        if rng.random() >= self.loss:
            delay = rng.randint(*self.delay_us)
            if rng.random() < self.late_share:
                delay += rng.randint(50, 1500) * MS
            self.world.later(delay, node.name, "request", request)

    def answer(self, call: Callable[[], None]) -> None:
        """Send an answer."""
        if self.rng.random() >= self.loss:
            self.after(self.rng.randint(*self.delay_us), call)

    def reply_to(self, node: SimNode, hear: Callable[[Answer, bool], None]) -> Callable[[Answer], None]:
        """Return the callback for an answer, which the client gets later, with `is_newest_leader` of now."""

        def reply(answer: Answer) -> None:
            newest = self.is_newest_leader(node)
            self.answer(lambda: hear(answer, newest))

        return reply

    def draw_lateness(self) -> int:
        """Draw the time until an event loop's next turn."""
        return self.rng.randint(0, self.lateness_us)

    def is_newest_leader(self, node: SimNode) -> bool:
        """Return whether no later term had a leader: this node then knows everything ever acknowledged."""
        return int(node.core.term) == max(self.world.invariants.leader_of, default=0)

    @staticmethod
    def filler_size(size: int) -> int:
        """Return the size of a payload without effect, close to `size` bytes."""
        return 64 + 24 * max(1, min(size, 2000) // 24)

    @staticmethod
    def filler(size: int) -> bytes:
        """Return a payload of commands without effect."""
        count = (size - 64) // 24
        section = encode_section(SectionKind.COMMANDS, [encode(EvictDedup(-1, -1))] * count, count)
        seal_section(section, base_queue_offset=-1, entry_distance=HEADER_SIZE)
        assert len(section) == size
        return bytes(section)

    # --- what nodes apply -----------------------------------------------------------------------------------
    def on_entry(self, header: EntryHeader, payload: Any) -> None:
        """Handle an entry that a node is about to apply. The first node passes it to the model."""
        if header.index == self.model.index + 1:
            raw = bytes(payload)
            self.entries.append((header, raw))
            self.model.apply(
                header.index,
                header.timestamp,
                header.physical_offset,
                int(header.kind),
                header.section_count,
                raw,
            )

    def on_effects(self, broker: BrokerLife, effects: Effects) -> None:
        """Compare the results of commands with the model."""
        if effects.index == self.model.index:
            found = effects_of(effects)
            demand(
                found == self.model.results,
                f"B apply: {broker.node.name} answers {found} to entry {effects.index}, the model "
                f"{self.model.results}",
            )

    def after_apply(self, broker: BrokerLife, header: EntryHeader) -> None:
        """Compare nodes with one another, and with the model."""
        if header.index % DIGEST_EVERY == 0:
            digest = crc32c(captured(broker.replica.state))
            known = self._digests.setdefault(header.index, digest)
            demand(
                known == digest, f"B equal: the state of {broker.node.name} at {header.index} is another one"
            )
        if header.index % COMPARE_EVERY == 0 and header.index == self.model.index:
            self._compare(broker.replica.state, broker.node.name)

    def _compare(self, state: BrokerState, name: str) -> None:
        model = self.model
        pairs: list[tuple[str, Any, Any]] = [
            ("topics", {t.topic_id: (t.name, t.queue_count, t.retention_ms) for t in state.topics},
             {t.topic_id: (t.name, t.queues, t.retention) for t in model.topics.values()}),
            ("groups", {g.group_id: (g.name, g.start.value, g.fifo, g.max_attempts) for g in state.groups},
             {g.group_id: (g.name, g.start, g.fifo, g.attempts) for g in model.groups.values()}),
            ("level", state.feature_level, model.level),
            ("queues", {q.key: (q.begin, q.end) for q in state.queues},
             {key: (q.begin, q.end) for key, q in model.queues.items()}),
            ("mode", int(state.mode), model.mode),
            ("streams", {key: (s.epoch, s.next_sequence, s.timestamp) for key,
            s in state.streams.copy().items()},
             {key: (s.epoch, s.next_sequence, s.stamp) for key, s in model.streams.items()}),
        ]  # fmt: skip
        for what, found, wanted in pairs:
            demand(
                found == wanted,
                f"B model: {what} of {name} at {model.index}: {found}, the model has {wanted}",
            )
        self._compare_members(state, name)
        table = state.consumption.copy()
        demand(table.keys() == model.positions.keys(), f"B model: positions of {name} at {model.index}")
        for key, found in table.items():
            wanted = model.positions[key]
            leases = [tuple(row) for row in found.leases.tolist()]
            mine = [
                (at, each.lease_id, each.deadline, each.session, each.attempt, each.flags)
                for at, each in sorted(wanted.leases.items())
            ]
            parked = [tuple(row) for row in found.parked.tolist()]
            mine_parked = [(at, *each[:3]) for at, each in sorted(wanted.parked.items())]
            same = (found.position, found.lost, leases, parked) == (
                wanted.position, wanted.lost, mine, mine_parked,
            )  # fmt: skip
            demand(
                same, f"B model: {key} of {name} at {model.index}: {found} {leases}, the model has {wanted}"
            )

    def _compare_members(self, state: BrokerState, name: str) -> None:
        found = {
            group_id: (
                {
                    m.name: (m.joined, m.joined_at, m.topics,
                             (m.allocation, m.zone, m.filter, m.session_timeout_ms, m.release_ms))
                    for m in consumer_group.members.values()
                },
                {key: (owner.member, owner.epoch) for key, owner in consumer_group.owners.items()},
            )
            for group_id, consumer_group in state.memberships.copy().items()
        }  # fmt: skip
        wanted = {
            number: (consumer_group.members, consumer_group.owners)
            for number, consumer_group in self.model.members.groups.items()
        }
        demand(
            found == wanted,
            f"B model: members of {name} at {self.model.index}: {found}, the model has {wanted}",
        )

    # --- what clients hear ----------------------------------------------------------------------------------
    def on_acked(self, value: bytes, place: Place) -> None:
        """Handle a producer's answer that a message is stored, perhaps again."""
        known = self.acked.setdefault(value, place)
        if value not in self.model.places or len(self.model.places[value]) == 1:
            demand(known == place, f"B acked: a message is said to be at {known} and at {place}")
        self._is_there(value, place)

    def _is_there(self, value: bytes, place: Place, *, now: bool = False) -> None:
        queue = self.model.queues.get(place[:2])
        if queue is None:
            return  # deleted, or not created here yet
        if place[2] >= queue.end:
            demand(not now, f"B acked: {place} was acknowledged, and queue {place[:2]} ends at {queue.end}")
            return
        found = queue.messages[place[2]].value
        demand(found == value, f"B acked: another message than the acknowledged one is at {place}")

    def on_delivered(self, group_id: int, topic_id: int, delivery: Delivery) -> None:
        """Handle the delivery of a message to a consumer."""
        self.delivered_count += 1
        place = (group_id, topic_id, delivery.queue_id, delivery.queue_offset)
        attempt = self.model.granted.get((delivery.lease_id, *place))
        demand(
            attempt is not None,
            f"B leased: {place} was delivered under lease {delivery.lease_id}, which is none",
        )
        demand(
            attempt == delivery.attempt,
            f"B leased: {place} was delivered as attempt {delivery.attempt}, granted was attempt {attempt}",
        )
        position = self.model.positions.get(place[:3])
        parked = position.parked.get(place[3]) if position is not None else None
        demand(
            parked is None or delivery.lease_id < parked[3],
            f"B parked: {place} is parked and delivered, lease {delivery.lease_id}",
        )
        row = (delivery.physical_offset, delivery.size, delivery.tag_hash)
        self.on_seen(topic_id, delivery.queue_id, delivery.queue_offset, row)
        acked = self.done.get(place)
        reset = self.model.reset_at.get(place[:3], 0)
        demand(  # within one entry a reset may follow the acknowledgement
            acked is None or delivery.lease_id < acked or reset >= acked,
            f"B5: {place} was acknowledged at entry {acked} and is delivered again, lease "
            f"{delivery.lease_id}",
        )

    def on_seen(self, topic_id: int, queue_id: int, offset: int, row: tuple[int, int, int]) -> None:
        """Check a message that a reader saw: it must be committed, and be that one."""
        queue = self.model.queues.get((topic_id, queue_id))
        if queue is None:
            return
        demand(
            offset < queue.end, f"B visible: {topic_id}/{queue_id} {offset} is seen, committed is {queue.end}"
        )
        message = queue.messages[offset]
        demand(
            row == (message.place, message.size, message.tag),
            f"B visible: {topic_id}/{queue_id} {offset} is seen as {row}, stored is {message}",
        )

    # --- the end --------------------------------------------------------------------------------------------
    def finish(self) -> None:
        """After all faults ended, let everything be delivered and check it. Raises: InvariantError."""
        world = self.world
        self.is_lively = True
        self.clients.start()
        world.run_until(world.now + LIVELY_US)
        self.is_lively, self.is_draining = False, True
        self.clients.drain()
        self._drain()
        self.is_draining = False
        end = world.now + SETTLE_US
        while not self._is_settled() and world.now < end:
            world.run_until(world.now + SECOND // 4)
        demand(self._is_settled(), f"I10 liveness: not everything is applied: {world.describe()}")
        self._judge_answers()
        rebuilt = self._rebuild()
        for node in world.nodes.values():
            assert node.life is not None and node.life.broker is not None
            state = node.life.broker.replica.state
            demand(
                captured(state) == rebuilt, f"B rebuild: the state of {node.name} is not that of its entries"
            )
            self._compare(state, node.name)
            self._read_queues(node.life.broker)

    def _drain(self) -> None:
        """Run until all is delivered and acknowledged. The time depends on how many calls get lost."""
        world, done, end = self.world, -1, 0
        while left := self.clients.undrained():
            if (now_done := self.clients.progress()) > done:
                done, end = now_done, world.now + DRAIN_US
            demand(
                world.now < end,
                f"B drained: no progress for {DRAIN_US // SECOND} s, there is still {left}: "
                f"{world.describe()}",
            )
            world.run_until(world.now + SECOND // 4)

    def _is_settled(self) -> bool:
        lives = [node.life for node in self.world.nodes.values()]
        last = max(int(life.log.last_index) for life in lives if life is not None)
        return all(life is not None and life.applied == last for life in lives) and self.model.index == last

    def _judge_answers(self) -> None:
        for value, place in self.acked.items():
            if place[0] in self.model.topics:
                self._is_there(value, place, now=True)
        for value in self.refused:
            demand(value not in self.model.places, f"B7: {value.hex()} was refused, and is stored")

    def _rebuild(self) -> bytes:
        """Apply all entries to an empty state, comparing checkpoint files on the way."""
        state, written = BrokerState(), self._checkpoint_files()
        for header, payload in self.entries:
            state.apply(header, memoryview(payload))
            if header.index in written:
                wanted = captured(state)
                for name, raw in written[header.index]:
                    demand(
                        raw == wanted, f"B rebuild: the checkpoint of {name} at {header.index} is another one"
                    )
        return captured(state)

    def _checkpoint_files(self) -> dict[int, list[tuple[str, bytes]]]:
        found: dict[int, list[tuple[str, bytes]]] = {}
        for node in self.world.nodes.values():
            folder = node.config.data_dir / "checkpoint"
            for path, inode in node.files.names.items():
                if path.parent == folder and path.name.isdigit():
                    found.setdefault(int(path.name), []).append((node.name, bytes(inode.current)))
        return found

    def _read_queues(self, broker: BrokerLife) -> None:
        """Read every queue from its first unit to its last, from files and memory, as a consumer would."""
        queues = broker.replica.state.queues
        for queue in list(queues):
            offset = queue.begin
            while offset < queue.end:
                found = queues.lookup(*queue.key, offset, 500)
                if isinstance(found, ColdRead):
                    queues.admit(found, broker.store.files.load(found))
                    continue
                for row in found.tolist():
                    self.on_seen(*queue.key, offset, row)
                    offset += 1

    @property
    def trace(self) -> int:
        """Return a hash of everything that the brokers did."""
        return hash(
            (self.model.index, len(self.acked), len(self.done), self.delivered_count, *self._digests.values())
        )


def captured(state: BrokerState) -> bytes:
    """Return the checkpoint of a state."""
    return b"".join(encode_snapshot(take_snapshot(state)))
