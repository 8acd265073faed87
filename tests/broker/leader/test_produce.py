"""The append pipeline: works of one moment share an entry, retries wait for the first copy, bounds hold."""

from __future__ import annotations

import asyncio
import struct

import pytest

from ledgermq.broker.leader import pipeline as produce
from ledgermq.broker.leader.leader_view import Verdict
from ledgermq.broker.leader.pipeline import (
    Flight,
    ProduceWork,
    SendWork,
    TooManyRequestsError,
    TurnFailedError,
)
from ledgermq.broker.state.commands import (
    Ack,
    BrokerGroupMode,
    CommitOffsets,
    CreateTopic,
    DeleteTopic,
    GrantLeases,
    LogStart,
    MessageType,
    ParkMessages,
    ParkReason,
    ReleaseLeases,
    SetBrokerGroupMode,
    lease_rows,
    park_rows,
    position_rows,
)
from ledgermq.broker.state.machine import BrokerState
from ledgermq.broker.wire.native import checked_sections
from ledgermq.broker.wire.official import OutgoingRecord, outgoing_record
from ledgermq.proto import rocketmq_v2_pb2 as v2
from ledgermq.proto.entry import HEADER_SIZE
from ledgermq.proto.record import SectionKind, encode_record, encode_section, walk_sections
from ledgermq.raft.errors import DiskFullError, EntryTooLargeError, NotLeaderError, ProposalLostError

from ..fake_raft import FakeRaft, settle


@pytest.fixture
def raft() -> FakeRaft:
    return FakeRaft()


def sections(sequence: int = 0, body: bytes = b"hello", producer: int = 7, count: int = 1) -> ProduceWork:
    """Return one section of `count` equal records."""
    records: list[bytes] = []
    for _ in range(count):
        record = encode_record(
            b"",
            body,
            section_distance=64 + sum(len(each) for each in records),
            body_offset_in_rest=0,
            body_size=len(body),
            message_id=bytes(16),
            born_timestamp=0,
        )
        records.append(record)
    raw = encode_section(
        SectionKind.RECORDS,
        records,
        count,
        topic_id=1,
        queue_id=0,
        producer_id=producer,
        base_sequence=sequence,
    )
    return ProduceWork(checked_sections(1, memoryview(raw), 1))


def message(state: BrokerState, name: bytes) -> SendWork:
    record = OutgoingRecord(b"", b"body", 0, 4, name.ljust(16), 0, 0, (), 0)
    return SendWork(state.topics.named("a"), [(record, "")])


def large_message(state: BrokerState, name: bytes = b"x") -> SendWork:
    """A message that need not wait for the append that is out."""
    body = bytes(produce.LARGE_TURN_BYTES)
    record = OutgoingRecord(b"", body, 0, len(body), name.ljust(16), 0, 0, (), 0)
    return SendWork(state.topics.named("a"), [(record, "")])


async def test_sections_messages_and_commands_of_one_moment_share_an_entry(raft: FakeRaft) -> None:
    await raft.topic()
    work, sent = sections(), [message(raft.state, name) for name in (b"1", b"2")]
    raft.pipeline.submit(work)
    for each in sent:
        raft.pipeline.submit(each)
    created = raft.pipeline.run(CreateTopic("b", 1))
    await settle()
    assert len(raft.payloads) == 2
    found = list(walk_sections(raft.payloads[1], 3))
    assert [header.entry_distance for _, header in found] == [HEADER_SIZE + at for at, _ in found]
    assert [header.kind for _, header in found] == [1, 1, 2], "two messages to one queue are one section"
    assert not work.future.done()
    await raft.decide(1)
    assert work.future.result()[0].base_offset == 0
    assert [each.future.result()[0].offset for each in sent] in ([0, 1], [1, 2])
    assert created.result().result.topic.name == "b"


async def test_a_command_is_answered_when_it_is_applied_not_before(raft: FakeRaft) -> None:
    created = raft.pipeline.run(CreateTopic("b", 1))
    await settle()
    raft.proposals[0].committed.set_result(None)
    await settle()
    assert not created.done()


async def test_a_retry_of_an_undecided_message_waits_for_the_first_copy(raft: FakeRaft) -> None:
    await raft.topic()
    first, retry = sections(), sections()
    raft.pipeline.submit(first)
    await settle()
    raft.pipeline.submit(retry)
    again = message(raft.state, b"x"), message(raft.state, b"x")
    for each in again:
        raft.pipeline.submit(each)
    await settle()
    assert not retry.future.done()
    await raft.decide(1)
    assert first.future.result()[0].verdict is Verdict.ACCEPTED
    await raft.decide(2)
    assert retry.future.result()[0].base_offset == first.future.result()[0].base_offset
    assert retry.future.result()[0].verdict is not Verdict.ACCEPTED
    assert again[0].future.result()[0].offset == again[1].future.result()[0].offset
    assert raft.state.queue_end(1, 0) + raft.state.queue_end(1, 1) == 2


async def test_a_retry_whose_turn_is_empty_is_not_confirmed_before_its_first_copy(raft: FakeRaft) -> None:
    """Large works do not wait for the append that is out; a turn of duplicates ends at once."""
    await raft.topic()
    large = bytes(produce.LARGE_TURN_BYTES)
    first, retry = sections(body=large), sections(body=large)
    raft.pipeline.submit(first)
    await settle()
    raft.pipeline.submit(retry)
    await settle()
    assert len(raft.proposals) == 2, "the retry adds nothing to the log"
    assert not retry.future.done(), "it is not known yet whether the first copy is stored"
    await raft.decide(1)
    assert retry.future.result()[0].base_offset == first.future.result()[0].base_offset
    assert raft.state.queue_end(1, 0) == 1


async def test_a_retry_shares_the_unknown_fate_of_its_first_copy(raft: FakeRaft) -> None:
    await raft.topic()
    large = bytes(produce.LARGE_TURN_BYTES)
    first, retry, resent = sections(body=large), sections(body=large), large_message(raft.state)
    sent = large_message(raft.state)
    for work in (first, sent):
        raft.pipeline.submit(work)
    await settle()
    for work in (retry, resent):
        raft.pipeline.submit(work)
    await settle()
    assert not retry.future.done()
    assert not resent.future.done()
    for proposal in raft.proposals[1:]:
        proposal.committed.set_exception(ProposalLostError("the lead is lost"))
    await settle()
    for work in (first, retry, sent, resent):
        with pytest.raises(ProposalLostError):
            work.future.result()


async def test_a_resent_message_is_not_confirmed_before_its_first_copy(raft: FakeRaft) -> None:
    await raft.topic()
    first, again = large_message(raft.state), large_message(raft.state)
    raft.pipeline.submit(first)
    await settle()
    raft.pipeline.submit(again)
    await settle()
    assert not again.future.done()
    await raft.decide(1)
    assert again.future.result()[0].offset == first.future.result()[0].offset
    assert raft.state.queue_end(1, 0) + raft.state.queue_end(1, 1) == 1


async def test_small_works_wait_for_the_append_that_is_out_and_large_ones_do_not(raft: FakeRaft) -> None:
    await raft.topic()
    for sequence in range(2):
        raft.pipeline.submit(sections(sequence))
        await settle()
    assert len(raft.proposals) == 2
    for sequence in range(2, 14):
        raft.pipeline.submit(sections(sequence, bytes(produce.LARGE_TURN_BYTES)))
        await settle()
    assert len(raft.proposals) == 1 + produce.MAX_TURNS_IN_FLIGHT


async def test_over_a_bound_a_work_is_refused_and_the_limit_is_named(
    monkeypatch: pytest.MonkeyPatch, raft: FakeRaft
) -> None:
    with pytest.raises(EntryTooLargeError):
        raft.pipeline.submit(sections(0, bytes(4 << 20), count=5))
    monkeypatch.setattr(produce, "MAX_WAITING_BYTES", 100)
    with pytest.raises(TooManyRequestsError, match="100"):
        raft.pipeline.submit(sections(0, bytes(200)))


async def test_when_producers_fill_the_bound_the_brokers_own_commands_still_get_through(
    monkeypatch: pytest.MonkeyPatch, raft: FakeRaft
) -> None:
    """A release that is refused comes never again: its messages would wait as long as their client lives."""
    await raft.topic()
    release = ReleaseLeases(1, 1, lease_rows([(0, 0, 1)]))
    filling = sections(0, bytes(200))
    monkeypatch.setattr(produce, "MAX_WAITING_BYTES", filling.size)
    monkeypatch.setattr(produce, "ESSENTIAL_RESERVE", 200)
    raft.pipeline.submit(filling)
    with pytest.raises(TooManyRequestsError):
        raft.pipeline.run(Ack(1, 1, lease_rows([(0, 0, 1)])))
    released = raft.pipeline.run(release)
    with pytest.raises(TooManyRequestsError):
        raft.pipeline.run(release)  # the reserve has a bound too
    await settle()
    await raft.decide(1)
    assert released.done() and not released.exception()


async def test_a_lost_proposal_is_unknown_and_a_refused_one_gives_its_offsets_back(raft: FakeRaft) -> None:
    await raft.topic()
    raft.error = NotLeaderError("n2")
    refused = sections()
    raft.pipeline.submit(refused)
    await settle()
    assert isinstance(refused.future.exception(), NotLeaderError)
    raft.error = None
    lost = sections()
    raft.pipeline.submit(lost)
    await settle()
    assert raft.view.next_offset(1, 0) == 1, "the refused section left no gap"
    raft.proposals[1].committed.set_exception(ProposalLostError("gone"))
    await settle()
    assert isinstance(lost.future.exception(), ProposalLostError)
    assert not raft.pipeline.bytes_waiting
    assert raft.pipeline.bytes_waiting == 0


async def test_at_step_down_what_was_not_proposed_is_refused(raft: FakeRaft) -> None:
    await raft.topic()
    out, waiting = sections(0), sections(1)
    raft.pipeline.submit(out)
    await settle()
    raft.pipeline.submit(waiting)
    raft.pipeline.on_leader(None)
    assert isinstance(waiting.future.exception(), NotLeaderError)
    assert not out.future.done()
    with pytest.raises(NotLeaderError):
        raft.pipeline.submit(sections(1))


async def test_a_command_that_cannot_be_encoded_fails_its_caller_only(raft: FakeRaft) -> None:
    work = sections()
    await raft.topic()
    raft.pipeline.submit(work)
    with pytest.raises(struct.error):
        raft.pipeline.run(CreateTopic("b", 2**32))
    await settle()
    await raft.decide(1)
    assert work.future.result()[0].base_offset == 0


async def test_a_defect_while_a_turn_is_filled_leaves_no_gap_and_no_caller_waiting(raft: FakeRaft) -> None:
    class Broken(ProduceWork):
        def place(self, flight: Flight, now: int) -> None:
            raise ArithmeticError("a defect")

    await raft.topic()
    seen: list[object] = []
    asyncio.get_running_loop().set_exception_handler(lambda loop, found: seen.append(found["exception"]))
    innocent, broken, later = sections(), Broken([]), sections()
    raft.pipeline.submit(innocent)
    raft.pipeline.submit(broken)
    await settle()
    assert [type(each) for each in seen] == [ArithmeticError], "it is not hidden"
    assert isinstance(innocent.future.exception(), TurnFailedError)
    assert isinstance(broken.future.exception(), TurnFailedError)
    raft.pipeline.submit(later)
    await settle()
    await raft.decide(1)
    assert later.future.result()[0].base_offset == 0, "no offset stayed reserved"


@pytest.mark.parametrize("seconds", [2**62, -(2**62)])
async def test_a_birth_time_that_no_clock_shows_fails_no_message(seconds: int, raft: FakeRaft) -> None:
    """It does not fit its field of the record; what shares the turn must not be refused for it."""
    await raft.topic("a", 1)
    sent = v2.Message(body=b"x")
    sent.system_properties.message_id = "odd"
    sent.system_properties.born_timestamp.seconds = seconds
    odd = SendWork(raft.state.topics.named("a"), [(outgoing_record(sent), "")])
    innocent = message(raft.state, b"1")
    for each in (odd, innocent):
        raft.pipeline.submit(each)
    await settle()
    await raft.decide(1)
    assert [each.future.result()[0].offset for each in (odd, innocent)] == [0, 1]


async def test_the_command_that_makes_room_on_a_full_disk_goes_alone_and_urgently(raft: FakeRaft) -> None:
    await raft.topic()
    for command in (CreateTopic("b", 1, MessageType.NORMAL), LogStart(1, 0, position_rows([])),
                    CreateTopic("c", 1, MessageType.NORMAL)):  # fmt: skip
        raft.pipeline.run(command)
    await settle()
    await raft.decide(1)
    await raft.decide(2)
    assert raft.urgent == [False, False, True, False]


async def test_on_a_nearly_full_disk_only_what_frees_space_or_sends_messages_elsewhere_is_taken(
    raft: FakeRaft,
) -> None:
    await raft.topic()
    raft.pipeline.refusal = "n1 refuses all writes: its disk is 96% used"
    for command in (
        CreateTopic("b", 1, MessageType.NORMAL),
        CommitOffsets(1, position_rows([(1, 0, 0)])),
        Ack(1, 1, lease_rows([(0, 0, 1)])),
        GrantLeases(1, 1, 1000, ()),
    ):
        with pytest.raises(DiskFullError, match="96% used"):
            raft.pipeline.run(command)
    with pytest.raises(DiskFullError, match="96% used"):
        raft.pipeline.submit(ProduceWork([]))
    assert len(raft.proposals) == 1, "nothing of it waits"
    drain = SetBrokerGroupMode(BrokerGroupMode.DRAINING)
    taken = [
        raft.pipeline.run(command)
        for command in (
            LogStart(1, 0, position_rows([])),
            DeleteTopic(1),
            drain,
            ParkMessages(1, 1, park_rows([(0, 0, 1, 0)]), ParkReason.ATTEMPTS),
        )
    ]
    for place in (1, 2):  # a start of the log goes alone
        await settle()
        await raft.decide(place)
    assert not raft.pipeline.bytes_waiting
    assert all(future.done() and not future.exception() for future in taken)
    raft.pipeline.refusal = ""
    raft.pipeline.run(CommitOffsets(1, position_rows([])))
