"""A leader and a follower with one log, for receives at the follower; no Raft, no disk, no gRPC."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Callable, Coroutine, Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

from ledgermq.broker.cluster.calls import CLIENT_ID, Call, LeaderCalls
from ledgermq.broker.cluster.forwarding import FORWARDED_BY, ForwardError
from ledgermq.broker.cluster.known_leader import Leadership
from ledgermq.broker.leader.recent_deliveries import LeaseHolders, RecentDeliveries
from ledgermq.broker.leader.releases import LeaseReleases
from ledgermq.broker.leader.works import SendWork
from ledgermq.broker.metrics import Metrics
from ledgermq.broker.official import receive_at_follower as granted_receive
from ledgermq.broker.official.grants_for_followers import GrantService
from ledgermq.broker.official.receive_at_follower import GrantedReceives
from ledgermq.broker.official.receive_at_leader import receive
from ledgermq.broker.reading.log_reader import LogReader
from ledgermq.broker.reading.polls import Polls
from ledgermq.broker.state.commands import CreateGroup
from ledgermq.broker.state.machine import BrokerState
from ledgermq.broker.wire.official import OutgoingRecord
from ledgermq.proto import rocketmq_v2_pb2 as v2
from ledgermq.proto.entry import HEADER_SIZE, EntryKind, decode_header, encode_entry
from ledgermq.raft.errors import LogCompactedError, NotLeaderError

from .fake_raft import FakeRaft, settle
from .reading.test_log_reader import BytesLog

BODIES = (b"first", b"second", b"third")
METADATA = ((CLIENT_ID, "client"), (FORWARDED_BY, "n2"))


class Log(BytesLog):
    """A node's copy of the log. Reads of what stands before `begin` find nothing, those of `slow` wait for `gate`."""

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
        self._service = GrantService(leader)
        self._leader = leader
        self.asked: list[str] = []
        self.fail: dict[str, ForwardError] = {}
        self.on_unclaimed: Callable[[bytes], None]

    def metadata(self, received: Any, listener: str) -> Any:
        return (*received, (FORWARDED_BY, "n2"))

    def _ask(self, method: str) -> None:
        name = method.rpartition("/")[2]
        self.asked.append(name)
        if name in self.fail:
            raise self.fail[name]

    def _method(self, method: str) -> Any:
        details: Any = SimpleNamespace(method=method, invocation_metadata=())
        return self._service.handler().service(details)

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
            frames = receive(self._leader, v2.ReceiveMessageRequest.FromString(request), call)
        else:
            frames = self._method(method).unary_stream(request, Grpc(metadata))
        async for frame in frames:
            yield frame


def _follows(command: Any) -> Any:
    raise NotLeaderError("n1")


class GrantRig:
    """n1 leads and has three messages in one queue; consumers talk to n2, which has the same log and applies it when told."""

    def __init__(self) -> None:
        self.raft = FakeRaft()
        self.leader = self._leader()
        self.follower_state = BrokerState()
        self.entries: list[bytes] = []
        self.log: Log
        self.hurried = 0
        self.to_leader = ToLeader(self.leader)
        self.context = self._follower()
        self.receives = GrantedReceives(self.context)

    def _follower(self) -> Any:
        leadership = Leadership("n2")
        leadership.on_changed("n1", 1)
        forwarder: Any = self.to_leader
        return SimpleNamespace(
            replica=SimpleNamespace(
                state=self.follower_state, rebuild=None, releases=LeaseReleases(_follows, lambda: self.follower_state)
            ),
            leadership=leadership, polls=Polls(), metrics=Metrics(),
            waiting_reader=self._hurry, config=SimpleNamespace(group="g0", follower_reads=True),
            forwarder=forwarder, calls=LeaderCalls(leadership, forwarder, lambda result: None),
        )  # fmt: skip

    def _leader(self) -> Any:
        raft, leadership = self.raft, Leadership("n1")
        leadership.on_ready(1)
        no_forwarder: Any = None
        return SimpleNamespace(
            raft=raft, pipeline=raft.pipeline, polls=Polls(), deliveries=RecentDeliveries(), holders=LeaseHolders(), metrics=Metrics(),
            replica=SimpleNamespace(
                state=raft.state, view=raft.view, releases=LeaseReleases(raft.pipeline.run, lambda: raft.state)
            ),
            leadership=leadership, calls=LeaderCalls(leadership, no_forwarder, lambda result: None),
            config=SimpleNamespace(group="g0", auto_create_topics=False, min_invisible_ms=0),
            own_messaging_address=lambda listener: "leader:1", sign_of_life=lambda client_id, here=True: None,
        )  # fmt: skip

    @contextmanager
    def _hurry(self) -> Iterator[None]:
        self.hurried += 1
        yield

    async def prepare(self) -> None:
        """An entry with the topic, one with the group and the first two messages, one with the third."""
        await self.raft.topic("a", 1)
        self.raft.pipeline.run(CreateGroup("billing"))
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
        self.leader.reader = LogReader(BytesLog(self.log.raw))
        self.context.reader = LogReader(self.log)

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
        return receive(self.leader, self.request(), call)

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
        """The offsets that can be given to somebody, without an attempt that counted."""
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


def run(test: Callable[[GrantRig], Coroutine[Any, Any, None]]) -> None:
    async def body() -> None:
        rig = GrantRig()
        await rig.prepare()
        async with asyncio.timeout(30):
            await test(rig)
        await rig.receives.stop()

    asyncio.run(body())
