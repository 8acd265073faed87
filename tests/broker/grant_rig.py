"""A leader and a follower with one log, for receives at the follower; no Raft, no disk, no gRPC."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from types import SimpleNamespace
from typing import Any, cast

from ledgermq.broker.cluster.forwarding import FORWARDED_BY
from ledgermq.broker.cluster.known_leader import Leadership
from ledgermq.broker.cluster.lane import ForwardError
from ledgermq.broker.cluster.leader_calls import CLIENT_ID, Call, LeaderCalls
from ledgermq.broker.cluster.members import Members
from ledgermq.broker.config import BrokerConfig
from ledgermq.broker.leader.pipeline import SendWork
from ledgermq.broker.leader.releases import LeaseHolders, LeaseReleases, RecentDeliveries
from ledgermq.broker.metrics import Metrics
from ledgermq.broker.official import receive_at_follower as granted_receive
from ledgermq.broker.official.give_backs import tell_leader
from ledgermq.broker.official.grants_for_followers import GrantService
from ledgermq.broker.official.receive_at_follower import GrantedReceives, OwnLog, UnclaimedGrants
from ledgermq.broker.official.receive_at_leader import LeaderReceives, Selections
from ledgermq.broker.reading.log_reader import LogReader
from ledgermq.broker.reading.polls import Polls
from ledgermq.broker.service.answers import LeaderHandlers, Refusals
from ledgermq.broker.service.broker_group_identity import BrokerGroupIdentity
from ledgermq.broker.service.creation import Creation
from ledgermq.broker.state.commands import CreateConsumerGroup
from ledgermq.broker.state.machine import BrokerState
from ledgermq.broker.wire.official import OutgoingRecord
from ledgermq.proto import rocketmq_v2_pb2 as v2
from ledgermq.proto.entry import HEADER_SIZE, EntryKind, decode_header, encode_entry
from ledgermq.proto.route_pb2 import ListenerAddresses, NodeInfo
from ledgermq.raft.errors import LogCompactedError, NotLeaderError

from .fake_raft import FakeRaft, settle
from .reading.test_log_reader import BytesLog

BODIES = (b"first", b"second", b"third")
METADATA = ((CLIENT_ID, "client"), (FORWARDED_BY, "n2"))


class Log(BytesLog):
    """A node's copy of the log. Reads before `begin` find nothing; those of a `slow` one wait for `gate`."""

    def __init__(self, raw: bytes) -> None:
        super().__init__(raw)
        self.begin = 0
        self.slow = False
        self.gate = asyncio.Event()
        self.reads = 0

    async def read_at(self, offset: int, size: int) -> memoryview:
        self.reads += 1
        if offset < self.begin:
            raise LogCompactedError(offset, self.begin)
        if self.slow:
            await self.gate.wait()
        return await super().read_at(offset, size)


class Grpc:
    """What a handler of the Raft port sees of a call that n2 passed on."""

    def __init__(self, metadata: Any) -> None:
        self._metadata = metadata

    def invocation_metadata(self) -> Any:
        return self._metadata

    def time_remaining(self) -> float:
        return 60.0

    async def abort(self, code: Any, details: str, trailing: Any = ()) -> None:
        raise ForwardError(False, f"{code.name}: {details}")


class ToLeader:
    """The follower's way to the leader; `asked` has the methods of what went there."""

    def __init__(self, leader: Any) -> None:
        self._leader = leader
        self.asked: list[str] = []
        self.fail: dict[str, ForwardError] = {}

    def metadata(self, received: Any, listener: str) -> Any:
        return (*received, (FORWARDED_BY, "n2"))

    def _ask(self, method: str) -> None:
        name = method.rpartition("/")[2]
        self.asked.append(name)
        if name in self.fail:
            raise self.fail[name]

    def _method(self, method: str) -> Any:
        details: Any = SimpleNamespace(method=method, invocation_metadata=())
        return self._leader.grants.handler().service(details)

    async def unary(
        self,
        node_id: str,
        method: str,
        request: bytes,
        metadata: Any,
        timeout: float,
    ) -> bytes:
        assert node_id == "n1"
        self._ask(method)
        answer: bytes = await self._method(method).unary_unary(request, Grpc(metadata))
        return answer

    poll = unary

    async def stream(
        self, node_id: str, method: str, request: bytes, metadata: Any, timeout: float
    ) -> AsyncGenerator[bytes, None]:
        assert node_id == "n1"
        self._ask(method)
        if method == granted_receive.RECEIVE:
            call = Call("client", "", "default", "n2", time.monotonic() + 60, metadata)
            frames = self._leader.receives.receive(v2.ReceiveMessageRequest.FromString(request), call)
        else:
            frames = self._method(method).unary_stream(request, Grpc(metadata))
        async for frame in frames:
            yield frame


def _follows(command: Any) -> Any:
    raise NotLeaderError("n1")


class GrantRig:
    """n1 leads, with three messages in one queue; consumers talk to n2, which applies it when told."""

    def __init__(self) -> None:
        self.raft = FakeRaft()
        empty = BytesLog(b"")
        self.leader_reader, self.follower_reader = LogReader(empty), LogReader(empty)
        self.leader = self._leader()
        self.follower_state = BrokerState()
        self.entries: list[bytes] = []
        self.log: Log
        self.hurried = 0
        self.to_leader = ToLeader(self.leader)
        self.context = self._follower()
        self.receives = self.receives_by(self.to_leader)

    def _follower(self) -> SimpleNamespace:
        leadership = Leadership("n2")
        leadership.on_changed("n1", 1)
        releases = LeaseReleases(
            _follows,
            lambda: self.follower_state,
            leadership,
            lambda command: tell_leader(self.calls, releases, command),
        )
        replica = SimpleNamespace(state=self.follower_state, rebuild=None, releases=releases)
        return SimpleNamespace(
            replica=replica, leadership=leadership, polls=Polls(), metrics=Metrics(),
            config=SimpleNamespace(group="g0", follower_reads=True),
        )  # fmt: skip

    def receives_by(self, forwarder: Any) -> GrantedReceives:
        """Return the follower's receives; `forwarder` is its way to the leader."""
        node, commits = self.context, cast(Any, SimpleNamespace(waiting=self._hurry))
        self.calls = LeaderCalls(node.leadership, forwarder, lambda result: None)
        self.own_log = OwnLog(node.replica, self.follower_reader, node.polls, commits)
        return GrantedReceives(node.config, forwarder, node.replica.releases, self.own_log, node.metrics)

    @property
    def unclaimed(self) -> UnclaimedGrants:
        """What takes the follower's late answers."""
        return UnclaimedGrants(self.context.replica.releases, self.context.metrics)

    def _leader(self) -> SimpleNamespace:
        raft, leadership = self.raft, Leadership("n1")
        leadership.on_ready(1)
        replica: Any = SimpleNamespace(
            state=raft.state,
            view=raft.view,
            releases=LeaseReleases(raft.pipeline.run, lambda: raft.state, leadership),
        )
        config, fake, nothing = BrokerConfig(group="g0", min_invisible_ms=0), cast(Any, raft), cast(Any, None)
        listener = ListenerAddresses(name="default", messaging_address="leader:1")
        members = Members(NodeInfo(node_id="n1", listeners=[listener]), ("n1",))
        creation = Creation(config, replica, raft.pipeline, leadership)
        deliveries, metrics, holders = RecentDeliveries(), Metrics(), LeaseHolders()
        selections = Selections(fake, replica, raft.pipeline, Polls(), leadership, nothing)
        receives = LeaderReceives(
            config, replica, creation, selections, deliveries, holders, self.leader_reader, members, metrics
        )
        calls = LeaderCalls(leadership, nothing, lambda result: None)
        refusals = Refusals(fake, leadership, members, metrics)
        clients: Any = SimpleNamespace(heard=lambda client_id, here=True: None)
        grants = GrantService(
            replica, receives, self.leader_reader, calls,
            LeaderHandlers(calls, BrokerGroupIdentity(config, fake), refusals), clients, refusals,
        )  # fmt: skip
        return SimpleNamespace(replica=replica, receives=receives, grants=grants)

    @contextmanager
    def _hurry(self) -> Iterator[None]:
        self.hurried += 1
        yield

    async def prepare(self) -> None:
        """An entry with the topic, one with the group and the first two messages, one with the third."""
        await self.raft.topic("a", 1)
        self.raft.pipeline.run(CreateConsumerGroup("billing"))
        for place, body in enumerate(BODIES):
            run = v2.Message(topic=v2.Resource(name="a"), body=body).SerializeToString()
            at = len(run) - len(body)
            record = OutgoingRecord(b"", run, at, len(body), b"%16d" % place, 0, 0, (), 0)
            self.raft.pipeline.submit(SendWork(self.raft.state.topics.named("a"), [(record, "")]))
            if place == 1:
                await settle()
                await self.raft.decide(1)
        await settle()
        await self.raft.decide(2)
        crc = 0
        for proposal, payload in zip(self.raft.proposals, self.raft.payloads, strict=True):
            header = proposal.header
            entry = encode_entry(
                EntryKind.RECORDS, [payload], section_count=header.section_count, index=header.index, term=1,
                physical_offset=header.physical_offset, timestamp=header.timestamp, prev_crc=crc,
            )  # fmt: skip
            self.entries.append(bytes(entry))
            crc = decode_header(entry).crc
        self.log = Log(b"".join(self.entries))
        self.leader_reader._log = BytesLog(self.log.raw)
        self.follower_reader._log = self.log

    def apply(self, entries: int) -> None:
        """The follower applies so many more entries."""
        for _ in range(entries):
            raw = self.entries[self.follower_state.applied_index]
            header = decode_header(raw)
            payload = memoryview(raw)[HEADER_SIZE : HEADER_SIZE + header.payload_size]
            for section in self.follower_state.apply(header, payload).sections:
                self.context.polls.wake(("queue", section.topic_id, section.queue_id))

    # --- receiving ------------------------------------------------------------------------------------------
    def request(self, topic: str = "a", count: int = 3) -> v2.ReceiveMessageRequest:
        made = v2.ReceiveMessageRequest(auto_renew=True, batch_size=count)
        made.message_queue.topic.name, made.group.name = topic, "billing"
        made.long_polling_timeout.FromMilliseconds(0)
        return made

    def receive(self, topic: str = "a", count: int = 3, timeout: float = 50.0) -> Any:
        """Return the frames that the follower gives to a consumer."""
        raw = self.request(topic, count).SerializeToString()
        return self.receives.receive("n1", topic, raw, METADATA, timeout)

    def receive_at_leader(self) -> Any:
        call = Call("client", "", "default", "", time.monotonic() + 60, ())
        return self.leader.receives.receive(self.request(), call)

    async def begun(self, frames: Any) -> asyncio.Task[Any]:
        """Ask for the first frame; the grant is committed and applied at the leader."""
        task: asyncio.Task[Any] = asyncio.ensure_future(anext(frames))
        await self.decide(3)
        return task

    async def decide(self, place: int) -> None:
        """Commit and apply the leader's next proposal, when it is made."""
        while len(self.raft.proposals) <= place:
            await settle()
        await self.raft.decide(place)

    async def all_of(self, frames: Any) -> list[bytes]:
        task = await self.begun(frames)
        return [await task, *[frame async for frame in frames]]

    @property
    def visible(self) -> list[int]:
        """The offsets that can be delivered, without an attempt that counted."""
        found = self.raft.state.consumption.get((1, 1, 0))
        assert found is not None
        ended = found.expired(1000)
        assert not ended["attempt"].any()
        offsets: list[int] = ended["offset"].tolist()
        return offsets

    def read_from(self, source: str) -> float:
        value: float = self.context.metrics.granted_messages.labels(source)._value.get()
        return value


def bodies(frames: list[bytes]) -> list[bytes]:
    parsed = [v2.ReceiveMessageResponse.FromString(frame) for frame in frames]
    return [frame.message.body for frame in parsed if frame.WhichOneof("content") == "message"]


def status(frame: bytes) -> v2.Status:
    return v2.ReceiveMessageResponse.FromString(frame).status


@asynccontextmanager
async def opened() -> AsyncIterator[GrantRig]:
    """Give a rig whose leader has its messages."""
    made = GrantRig()
    await made.prepare()
    yield made
    await made.receives.stop()
