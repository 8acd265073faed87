"""LogService at a leader that cannot be sure that it still leads, or has not applied everything yet."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any, cast

import grpc.aio
import pytest

from ledgermq.broker.cluster.known_leader import Leadership
from ledgermq.broker.cluster.leader_calls import LeaderCalls
from ledgermq.broker.cluster.members import Members
from ledgermq.broker.config import BrokerConfig
from ledgermq.broker.leader.leader_view import Verdict
from ledgermq.broker.leader.pipeline import Applied, ProduceWork, SectionOutcome
from ledgermq.broker.metrics import Metrics
from ledgermq.broker.native import consumer_offsets, produce
from ledgermq.broker.native.consumer_offsets import ConsumerOffsets
from ledgermq.broker.native.log_service import FetchStreams
from ledgermq.broker.native.produce import ProduceStreams
from ledgermq.broker.reading.live_readers import LiveReaders
from ledgermq.broker.refusals import RefusedError
from ledgermq.broker.service.answers import LeaderHandlers, Refusals
from ledgermq.broker.service.broker_group_identity import BrokerGroupIdentity
from ledgermq.broker.service.creation import Creation
from ledgermq.broker.service.read_barrier import ReadBarrier
from ledgermq.broker.state.commands import AssignQueues, Command, JoinConsumerGroup, assignment_rows
from ledgermq.proto import log_pb2, route_pb2
from ledgermq.proto.call_metadata import group_metadata
from ledgermq.proto.route_pb2 import NodeInfo
from ledgermq.raft.errors import NotLeaderError, ProposalLostError, TransferringError

from ..entry_log import Node, records, section


class Stream:
    """The answers that were written."""

    def __init__(self) -> None:
        self.written: list[Any] = []

    async def write(self, answer: Any) -> None:
        self.written.append(answer)


class Slaves:
    """sync_master, with enough of them in contact or not."""

    def __init__(self, *, in_contact: bool) -> None:
        self._in_contact = in_contact

    def check_contact(self) -> None:
        if not self._in_contact:
            raise ProposalLostError("only 0 of 1 slaves are in contact")

    async def wait(self, index: int, since: float) -> None:
        pass


async def answer(
    outcomes: list[SectionOutcome], *, timestamp: int, leads: bool, slaves: Slaves | None = None
) -> log_pb2.ProduceResponse:
    async def read_index() -> int:
        if not leads:
            raise NotLeaderError(None)
        return 1

    streams = streams_of(
        following("n2"), RefusingPipeline(NotLeaderError(None)), read_index=read_index, slaves=slaves
    )
    work: Any = SimpleNamespace(
        future=asyncio.get_running_loop().create_future(), timestamp=timestamp, size=100, index=timestamp,
        committed_at=0.0,
    )  # fmt: skip
    work.future.set_result(outcomes)
    under_way: asyncio.Queue[Any] = asyncio.Queue()
    for item in ((7, work), None):
        under_way.put_nowait(item)
    stream = Stream()
    await streams._answer(under_way, stream, "")
    written: log_pb2.ProduceResponse
    (written,) = stream.written
    return written


def following(leader_id: str) -> Leadership:
    leadership = Leadership("n1")
    leadership.on_changed(leader_id, 1)
    return leadership


GAP = SectionOutcome(Verdict.SEQUENCE_GAP, -1, 1, 3)


def test_a_leader_that_was_deposed_unawares_speaks_of_no_gap() -> None:
    """What it calls a gap its successor may have stored: the producer must ask that one."""
    written = asyncio.run(answer([GAP], timestamp=0, leads=False))
    assert written.refusal.code == route_pb2.NOT_LEADER
    assert not written.results


def test_a_leader_that_was_confirmed_speaks_of_the_gap() -> None:
    written = asyncio.run(answer([GAP], timestamp=0, leads=True))
    assert [each.refusal.code for each in written.results] == [route_pb2.SEQUENCE_GAP]


def test_a_committed_entry_of_the_same_turn_is_proof_enough() -> None:
    stored = SectionOutcome(Verdict.ACCEPTED, 5, 1)
    written = asyncio.run(answer([stored, GAP], timestamp=9, leads=False))
    assert [each.refusal.code for each in written.results] == [0, route_pb2.SEQUENCE_GAP]


@pytest.mark.parametrize("outcomes", [[GAP], [SectionOutcome(Verdict.ACCEPTED, 5, 1), GAP]])
def test_a_master_is_its_own_majority_so_it_asks_its_slaves_before_it_speaks_of_a_gap(
    outcomes: list[SectionOutcome],
) -> None:
    """Cut off from them it may have been replaced, and the next master may have what it misses."""
    stamp = len(outcomes) - 1
    written = asyncio.run(answer(outcomes, timestamp=stamp, leads=True, slaves=Slaves(in_contact=False)))
    assert written.refusal.code == route_pb2.OUTCOME_UNKNOWN and written.refusal.retryable
    assert not written.results
    written = asyncio.run(answer(outcomes, timestamp=stamp, leads=True, slaves=Slaves(in_contact=True)))
    assert written.results[-1].refusal.code == route_pb2.SEQUENCE_GAP


class Requests(Stream):
    """A Produce stream: the request that comes in, and the answers that go out."""

    def __init__(self, *requests: bytes, group_id: int = 0) -> None:
        super().__init__()
        self._requests = list(requests)
        self._group_id = group_id

    def invocation_metadata(self) -> tuple[tuple[str, str], ...]:
        return (("user-agent", "test"), *group_metadata(self._group_id))

    def time_remaining(self) -> float:
        return 30.0

    async def read(self) -> Any:
        return self._requests.pop(0) if self._requests else vars(grpc.aio)["EOF"]


class RefusingPipeline:
    """Takes a work when this node serves, and fails it with `error`, as at the end of a lead."""

    def __init__(self, error: Exception) -> None:
        self._error = error
        self.produce_refusal = ""
        self.works: list[ProduceWork] = []

    def submit(self, work: ProduceWork) -> None:
        self.works.append(work)
        work.fail(self._error)


class FakeRaft:
    """A node of a quorum group; `group_id`: the id of its broker group, 0 while it does not know it."""

    def __init__(self, group_id: int = 0, read_index: Any = None) -> None:
        self.group_id = group_id
        self.former_group_ids = (5, 6)
        self.config = SimpleNamespace(reign=None)
        self.read_index = read_index


CONFIG = BrokerConfig(max_message_bytes=1 << 20, node_id="n1", group="g0")


def refusals_of(raft: Any, leadership: Leadership) -> Refusals:
    return Refusals(raft, leadership, Members(NodeInfo(), ()), Metrics())


def streams_of(
    leadership: Leadership,
    pipeline: Any,
    raft: FakeRaft | None = None,
    *,
    read_index: Any = None,
    slaves: Any = None,
) -> ProduceStreams:
    """Return the Produce streams of a node."""
    found: Any = raft or FakeRaft(read_index=read_index)
    identity = BrokerGroupIdentity(CONFIG, found)
    refusals = refusals_of(found, leadership)
    return ProduceStreams(CONFIG, found, pipeline, leadership, slaves, identity, refusals, Metrics())


def producing(
    leadership: Leadership, pipeline: RefusingPipeline, raft: FakeRaft | None = None, *, meant_id: int = 0
) -> tuple[asyncio.Task[None], Stream]:
    """Begin to serve a stream with one request; return it and the answers."""
    sections = bytes(section(1, 0, records(1), producer_id=9, base_sequence=0))
    request = log_pb2.ProduceRequest(request_id=7, sections=sections, section_count=1)
    stream = Requests(request.SerializeToString(), group_id=meant_id)
    serve = streams_of(leadership, pipeline, raft).handler("")
    return asyncio.ensure_future(serve(None, stream)), stream


async def turns() -> None:
    """Let the tasks go as far as they can without an event."""
    for _ in range(20):
        await asyncio.sleep(0)


async def test_a_request_that_comes_during_an_election_waits_for_its_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(produce, "ELECTION_PATIENCE_S", 3600.0)
    leadership, pipeline = Leadership("n1"), RefusingPipeline(NotLeaderError(None))
    served, stream = producing(leadership, pipeline)
    leadership.on_changed("n1", 2)  # elected, but its no-op is not applied
    await turns()
    assert pipeline.works == []
    leadership.on_changed("n2", 3)
    await served
    assert len(pipeline.works) == 1
    assert [each.refusal.leader_id for each in stream.written] == ["n2"]


@pytest.mark.parametrize(
    ("own_id", "meant_id", "is_taken"), [(7, 7, 1), (7, 0, 1), (0, 7, 1), (7, 8, 0), (7, 5, 1)]
)
async def test_what_is_meant_for_another_group_of_the_name_is_not_taken(
    own_id: int, meant_id: int, is_taken: int
) -> None:
    """Its topic ids are those of other topics here.

    What it was before a recovery, or a promotion, is no other one.
    """
    leadership, pipeline = Leadership("n1"), RefusingPipeline(NotLeaderError(None))
    leadership.on_changed("n2", 2)
    served, stream = producing(leadership, pipeline, FakeRaft(own_id), meant_id=meant_id)
    await served
    assert len(pipeline.works) == is_taken
    (refusal,) = [each.refusal for each in stream.written]
    assert (refusal.code == route_pb2.OTHER_GROUP) is not is_taken
    assert refusal.retryable and refusal.message
    assert [each.request_id for each in stream.written] == [7]


async def test_a_node_that_learns_which_group_it_is_of_while_a_request_waits_does_not_take_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A group that was made anew: its clients were back before its first election was over."""
    monkeypatch.setattr(produce, "ELECTION_PATIENCE_S", 3600.0)
    leadership, pipeline = Leadership("n1"), RefusingPipeline(NotLeaderError(None))
    raft = FakeRaft()
    served, stream = producing(leadership, pipeline, raft, meant_id=7)
    await turns()
    raft.group_id = 8
    leadership.on_ready(2)
    await served
    assert pipeline.works == []
    assert [each.refusal.code for each in stream.written] == [route_pb2.OTHER_GROUP]


async def test_what_a_long_poll_meant_for_another_group_has_found_is_not_handed_out() -> None:
    raft: Any = FakeRaft()

    async def fetch(request: log_pb2.FetchRequest) -> bytes:
        raft.group_id = 8  # and a topic is made, and the first message is stored
        return log_pb2.FetchResponse(node_id="n1").SerializeToString()

    stream, fetches = (
        Requests(b"", b"", group_id=7),
        cast(Any, SimpleNamespace(fetch=fetch, node_id="n1")),
    )
    identity = BrokerGroupIdentity(CONFIG, raft)
    refusals = refusals_of(raft, Leadership("n1"))
    await FetchStreams(fetches, LiveReaders(), identity, refusals).serve(None, stream)
    answers = [log_pb2.FetchResponse.FromString(each) for each in stream.written]
    assert [each.refusal.code for each in answers] == [route_pb2.OTHER_GROUP] * 2


async def test_a_call_that_waited_for_a_leader_is_not_served_by_another_group() -> None:
    leadership, raft, forwarder = Leadership("n1"), cast(Any, FakeRaft()), cast(Any, None)

    async def serve(request: Any) -> Any:
        raise AssertionError("it is for another group")

    handlers = LeaderHandlers(
        LeaderCalls(leadership, forwarder, lambda result: None),
        BrokerGroupIdentity(CONFIG, raft),
        refusals_of(raft, leadership),
    )
    kinds = log_pb2.CommitOffsetsRequest, log_pb2.CommitOffsetsResponse
    handler = handlers.unary("/Log/CommitOffsets", *kinds, serve, "default")
    call = Requests(group_id=7)
    answer = asyncio.ensure_future(handler.unary_unary(b"", call))
    await turns()
    raft.group_id = 8
    leadership.on_ready(2)
    assert log_pb2.CommitOffsetsResponse.FromString(await answer).refusal.code == route_pb2.OTHER_GROUP


async def test_a_refusal_of_a_hand_over_names_the_next_leader(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(produce, "ELECTION_PATIENCE_S", 3600.0)
    leadership = Leadership("n1")
    leadership.on_ready(1)
    served, stream = producing(leadership, RefusingPipeline(TransferringError("n2")))
    await turns()
    assert not stream.written
    leadership.on_lost()
    await turns()
    assert not stream.written
    leadership.on_changed("n2", 2)
    await served
    (refused,) = stream.written
    assert (refused.refusal.code, refused.refusal.leader_id) == (route_pb2.NOT_LEADER, "n2")


async def test_without_a_next_leader_the_patience_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(produce, "ELECTION_PATIENCE_S", 0.0)
    served, stream = producing(Leadership("n1"), RefusingPipeline(NotLeaderError(None)))
    await served
    assert [each.refusal.code for each in stream.written] == [route_pb2.NO_QUORUM]


class Committing:
    """A leader whose log holds more than it has applied: an entry with three messages."""

    def __init__(self, *, leads: bool = True) -> None:
        self.node = Node()
        self.topic, self.group = self.node.topic("orders"), self.node.group("billing")
        self._leads = leads
        self._waiting = [section(self.topic, 0, records(3), base=0)]

    async def commit(self, offset: int, epoch: int = 0) -> int | None:
        """Store an offset of queue 0; return what is stored then."""
        request = log_pb2.CommitOffsetsRequest(group="billing")
        request.offsets.add(topic="orders", queue_id=0, offset=offset, epoch=epoch)
        await self.offsets().commit(request)
        return self.node.state.committed_offset(self.group, self.topic, 0)

    def offsets(self) -> ConsumerOffsets:
        replica: Any = SimpleNamespace(state=self.node.state)
        pipeline: Any = SimpleNamespace(run=self._run)
        raft: Any = SimpleNamespace(read_index=self._read_index, wait_applied=self._wait_applied)
        leadership, nothing = Leadership("n1"), cast(Any, None)
        creation = Creation(CONFIG, replica, pipeline, leadership)
        return ConsumerOffsets(replica, pipeline, creation, ReadBarrier(raft, replica, leadership), nothing)

    async def _read_index(self) -> int:
        if not self._leads:
            raise NotLeaderError(None)
        return 3

    async def _wait_applied(self, index: int) -> None:
        assert index == 3
        while self._waiting:
            self.node.apply(self._waiting.pop())

    async def _run(self, command: Command) -> Applied:
        effects = self.node.command(command)
        return Applied(effects.results[0], effects.index)


def test_an_offset_that_a_quicker_follower_has_shown_already_is_stored() -> None:
    """A follower may apply an entry, and a consumer commit it, before the leader has applied it."""
    assert asyncio.run(Committing().commit(3)) == 3


def test_an_offset_beyond_everything_that_is_committed_is_refused() -> None:
    with pytest.raises(RefusedError) as refused:
        asyncio.run(Committing().commit(4))
    assert refused.value.refusal.code == route_pb2.OFFSET_OUT_OF_RANGE


def test_a_leader_that_was_deposed_unawares_calls_no_offset_impossible() -> None:
    with pytest.raises(NotLeaderError):
        asyncio.run(Committing(leads=False).commit(3))


def test_commits_beside_an_owner_are_refused_and_say_what_to_do() -> None:
    committing = Committing()
    committing.node.command(JoinConsumerGroup(committing.group, "a", ("orders",)))
    rows = assignment_rows([(committing.topic, 0, 0, 0)])
    epoch = committing.node.command(AssignQueues(committing.group, ("a",), rows)).index
    for wrong, text in ((0, "members of consumer group"), (epoch - 1, "Drop what is buffered")):
        with pytest.raises(RefusedError, match=text) as refused:
            asyncio.run(committing.commit(3, wrong))
        assert (refused.value.refusal.code, refused.value.refusal.retryable) == (route_pb2.FENCED, False)
        assert 'queue 0 of topic "orders"' in refused.value.refusal.message
    assert asyncio.run(committing.commit(3, epoch)) == 3


async def test_a_commit_of_more_offsets_than_a_node_applies_in_one_go_is_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(consumer_offsets, "MAX_COMMIT_ROWS", 2)
    request = log_pb2.CommitOffsetsRequest(group="billing", offsets=[log_pb2.QueueOffset()] * 3)
    with pytest.raises(RefusedError, match="3 offsets in one commit; at most 2"):
        await Committing().offsets().commit(request)
