"""What the leader chooses, and what it remembers until its entries are applied."""

from __future__ import annotations

import random

import numpy as np
import pytest

from ledgermq.broker.leader.leader_view import LeaderView, Verdict
from ledgermq.broker.leader.selection import Delivery
from ledgermq.broker.state.commands import (
    LATEST,
    Ack,
    Command,
    CommitOffsets,
    DeleteTopic,
    EvictDedup,
    ReleaseLeases,
    SessionLost,
    SetPositions,
    StartPosition,
    lease_rows,
    position_rows,
)
from ledgermq.proto.record import RecordFlags, decode_section, walk_sections

from ..entry_log import START_MS, Node, records, section
from ..receiving import accepted, ack, change, deliveries, offsets, receive, request


@pytest.fixture
def node() -> Node:
    return Node()


@pytest.fixture
def topic(node: Node) -> int:
    return node.topic()


# --- offsets and retries ------------------------------------------------------------------------------------
def test_offsets_go_on_behind_what_is_proposed_and_not_applied(node: Node, topic: int) -> None:
    turn = node.view.open_turn()
    assert [turn.add_records(section(topic, 0, records(3))).base_offset for _ in range(2)] == [0, 3]
    entry = node.propose(turn)
    later = node.view.open_turn()
    assert later.add_records(section(topic, 0, records(1))).base_offset == 6
    later.abandon()
    assert node.view.next_offset(topic, 0) == 6
    node.commit_proposed(entry)
    assert node.view.next_offset(topic, 0) == node.state.queue_end(topic, 0) == 6


def test_a_turn_seals_its_sections_with_the_way_back_to_the_entry(node: Node) -> None:
    topic, group = node.topic(), node.group()
    turn = node.view.open_turn()
    turn.add_command(CommitOffsets(group, position_rows([(topic, 0, 0)])))
    turn.add_records(section(topic, 0, records(3)))
    turn.add_records(section(topic, 1, records(2)))
    parts, count = turn.close()
    payload = b"".join(parts)
    assert turn.size == len(payload)
    for position, header in walk_sections(payload, count):
        assert header.entry_distance == 64 + position


def produce(
    node: Node,
    topic: int,
    sequence: int,
    *,
    epoch: int = 0,
    count: int = 2,
    apply: bool = True,
    producer: int = 9,
) -> tuple[Verdict, int]:
    turn = node.view.open_turn("token")
    made = section(
        topic, 0, records(count), producer_id=producer, producer_epoch=epoch, base_sequence=sequence
    )
    admission = turn.add_records(made)
    if admission.verdict is Verdict.ACCEPTED and apply:
        node.commit(turn)
    elif admission.verdict is Verdict.ACCEPTED:
        node.propose(turn)
    return admission.verdict, admission.base_offset


def test_a_retry_of_a_stored_batch_is_told_the_offset_of_the_first_copy(node: Node, topic: int) -> None:
    for i in range(70):
        assert produce(node, topic, 2 * i) == (Verdict.ACCEPTED, 2 * i)
    assert produce(node, topic, 138) == (Verdict.DUPLICATE, 138)
    assert produce(node, topic, 2 * 6) == (Verdict.DUPLICATE, 12)
    assert produce(node, topic, 2 * 5) == (Verdict.DUPLICATE, -1), "only 64 results are kept"
    assert produce(node, topic, 139)[0] is Verdict.SEQUENCE_GAP, "other bytes than before"


def test_a_retry_while_the_first_copy_is_undecided_waits_for_it(node: Node, topic: int) -> None:
    assert produce(node, topic, 0, apply=False) == (Verdict.ACCEPTED, 0)
    turn = node.view.open_turn()
    made = section(topic, 0, records(2), producer_id=9, base_sequence=0)
    admission = turn.add_records(made)
    assert (admission.verdict, admission.base_offset) == (Verdict.PENDING, 0)
    assert admission.turn is not None
    assert admission.turn.token == "token"
    assert not turn.size
    assert decode_section(made).base_queue_offset == -1, "a refused section is not touched"


def test_sequences_must_be_contiguous_and_begin_at_zero(node: Node, topic: int) -> None:
    assert produce(node, topic, 4)[0] is Verdict.SEQUENCE_GAP
    produce(node, topic, 0)
    assert produce(node, topic, 4)[0] is Verdict.SEQUENCE_GAP
    assert produce(node, topic, 2)[0] is Verdict.ACCEPTED


def test_a_higher_epoch_takes_over_from_zero_and_the_lower_is_refused(node: Node, topic: int) -> None:
    produce(node, topic, 0)
    assert produce(node, topic, 2, epoch=1)[0] is Verdict.SEQUENCE_GAP
    assert produce(node, topic, 0, epoch=1, apply=False) == (Verdict.ACCEPTED, 2)
    assert produce(node, topic, 2)[0] is Verdict.STALE_EPOCH


def test_producers_that_are_known_and_have_a_batch_under_way_count_once(node: Node, topic: int) -> None:
    node.view = LeaderView(node.state, 1, START_MS, max_streams=3)
    for producer in (1, 2):
        produce(node, topic, 0, producer=producer)
    for producer in (1, 2):
        assert produce(node, topic, 2, producer=producer, apply=False)[0] is Verdict.ACCEPTED
    assert produce(node, topic, 0, producer=3, apply=False)[0] is Verdict.ACCEPTED
    assert produce(node, topic, 0, producer=4)[0] is Verdict.TOO_MANY_STREAMS


def test_a_new_producer_is_refused_when_as_many_are_remembered_as_may_be(node: Node, topic: int) -> None:
    node.view = LeaderView(node.state, 1, START_MS, max_streams=2)
    assert produce(node, topic, 0, producer=1)[0] is Verdict.ACCEPTED
    assert produce(node, topic, 0, producer=2)[0] is Verdict.ACCEPTED
    assert produce(node, topic, 0, producer=3)[0] is Verdict.TOO_MANY_STREAMS
    assert produce(node, topic, 2, producer=1)[0] is Verdict.ACCEPTED  # known producers continue
    assert produce(node, topic, 0, producer=1)[0] is Verdict.DUPLICATE
    node.command(EvictDedup(START_MS, START_MS + 10**9))
    assert produce(node, topic, 0, producer=3)[0] is Verdict.ACCEPTED


def test_an_abandoned_turn_leaves_no_trace(node: Node, topic: int) -> None:
    turn = node.view.open_turn()
    turn.add_records(section(topic, 0, records(2), producer_id=9))
    turn.add_records(section(topic, 1, records(2, first_id=500)))
    turn.abandon()
    assert node.view.find_message(topic, (500).to_bytes(16, "little")) is None
    assert produce(node, topic, 0) == (Verdict.ACCEPTED, 0)


def test_messages_are_known_by_id_while_undecided_and_after(node: Node, topic: int) -> None:
    turn = node.view.open_turn()
    turn.add_records(section(topic, 1, records(3, first_id=70)))
    turn.add_records(section(topic, 1, records(1, first_id=90, flags=RecordFlags.COPY)))
    entry = node.propose(turn)
    known = node.view.find_message(topic, (71).to_bytes(16, "little"))
    assert known is not None
    assert (known.queue_id, known.offset, known.turn) == (1, 1, turn)
    node.commit_proposed(entry)
    known = node.view.find_message(topic, (71).to_bytes(16, "little"))
    assert known is not None
    assert (known.queue_id, known.offset, known.turn) == (1, 1, None)
    assert node.view.find_message(topic + 1, (71).to_bytes(16, "little")) is None
    assert node.view.find_message(topic, (90).to_bytes(16, "little")) is None, "a copy is not a send"


def test_message_ids_are_forgotten_after_two_minutes_of_log_time(node: Node, topic: int) -> None:
    node.fill(topic, 0, 1, first_id=1)
    node.log.now += 100_000
    node.fill(topic, 0, 1, first_id=2)
    assert node.view.housekeeping(node.log.now) == []
    node.log.now += 30_000
    (command,) = node.view.housekeeping(node.log.now)
    assert isinstance(command, EvictDedup)
    node.command(command)
    assert node.view.find_message(topic, (1).to_bytes(16, "little")) is None
    assert node.view.find_message(topic, (2).to_bytes(16, "little")) is not None


def test_nothing_is_taken_for_a_topic_that_is_being_deleted(node: Node, topic: int) -> None:
    turn = node.view.open_turn()
    turn.add_command(DeleteTopic(topic))
    assert turn.add_records(section(topic, 0, records(1))).verdict is Verdict.TOPIC_GONE
    turn.abandon()
    turn = node.view.open_turn()
    assert turn.add_records(section(topic, 0, records(1))).verdict is Verdict.ACCEPTED
    assert turn.add_records(section(topic, 8, records(1))).verdict is Verdict.QUEUE_NOT_FOUND
    assert turn.add_records(section(topic + 1, 0, records(1))).verdict is Verdict.TOPIC_GONE


def test_a_second_deletion_that_is_not_proposed_leaves_the_first_one_standing(node: Node) -> None:
    """Records behind the first deletion would be acknowledged, and be nowhere."""
    topic = node.topic(queues=1)
    first = node.view.open_turn()
    first.add_command(DeleteTopic(topic))
    node.propose(first)
    second = node.view.open_turn()
    second.add_command(DeleteTopic(topic))
    second.abandon()
    assert node.view.open_turn().add_records(section(topic, 0, records(1))).verdict is Verdict.TOPIC_GONE


# --- where a new group begins -------------------------------------------------------------------------------
def test_a_new_group_begins_at_the_first_message_by_default(node: Node) -> None:
    topic, group = node.topic(queues=1), node.group()
    node.fill(topic, 0, 3)
    assert offsets(receive(node, request(group, topic))) == [(0, 0), (0, 1), (0, 2)]


def test_a_group_that_begins_at_the_end_keeps_that_place_while_messages_arrive(node: Node) -> None:
    topic, group = node.topic(queues=1), node.group(start=LATEST)
    node.fill(topic, 0, 3)
    assert receive(node, request(group, topic)) == []
    node.fill(topic, 0, 2)
    assert offsets(receive(node, request(group, topic))) == [(0, 3), (0, 4)]


def test_a_start_by_time_is_looked_up_by_the_shell(node: Node) -> None:
    topic, group = node.topic(queues=2), node.group(start=StartPosition(5))
    node.fill(topic, 0, 3)
    turn = node.view.open_turn()
    assert turn.grant(request(group, topic), node.log.now).unresolved == [0, 1]
    assert not turn.size
    node.command(SetPositions(group, position_rows([(topic, 0, 2), (topic, 1, 0)])))
    assert offsets(receive(node, request(group, topic))) == [(0, 2)]


# --- leases -------------------------------------------------------------------------------------------------
def test_what_is_leased_is_not_given_twice_before_it_expires(node: Node) -> None:
    topic, group = node.topic(queues=1), node.group()
    node.fill(topic, 0, 3)
    asked = request(group, topic, 2)
    first = receive(node, asked)
    assert offsets(receive(node, asked)) == [(0, 2)]
    assert receive(node, asked) == []
    assert node.view.selector.next_expiry(group, topic) == node.log.now + 1_000
    node.log.now += 1_000
    again = receive(node, asked)
    assert offsets(again) == offsets(first)
    assert [item.attempt for item in first + again] == [1, 1, 2, 2]
    assert ack(node, asked, first) == [False, False], "the handles of an older lease"
    assert ack(node, asked, again) == [True, True]
    assert ack(node, asked, again) == [True, True], "twice is fine"
    assert node.state.committed_offset(group, topic, 0) == 2


def test_a_turn_that_was_not_proposed_gives_its_messages_back(node: Node) -> None:
    topic, group = node.topic(queues=1), node.group()
    node.fill(topic, 0, 3)
    turn = node.view.open_turn()
    turn.grant(request(group, topic), node.log.now)
    turn.abandon()
    assert len(receive(node, request(group, topic))) == 3


def test_an_acknowledgement_that_is_applied_before_a_renewed_grant_wins(node: Node) -> None:
    topic, group = node.topic(queues=1), node.group()
    node.fill(topic, 0, 1)
    asked = request(group, topic)
    found = receive(node, asked)
    node.log.now += 999
    done = node.view.open_turn()
    done.add_command(Ack(group, topic, lease_rows([(0, 0, found[0].lease_id)])))
    done_entry = node.propose(done)
    node.log.now += 1
    turn = node.view.open_turn()
    plan = turn.grant(asked, node.log.now)
    entry = node.propose(turn)
    node.commit_proposed(done_entry)
    assert deliveries(plan, node.commit_proposed(entry).results) == []


def test_a_reset_that_is_applied_before_a_grant_loses_no_message(node: Node) -> None:
    topic, group = node.topic(queues=1), node.group()
    node.fill(topic, 0, 4)
    asked = request(group, topic, 2)
    receive(node, asked)
    reset = node.log.add([_commands(CommitOffsets(group, position_rows([(topic, 0, 0)]), True))])
    turn = node.view.open_turn()
    plan = turn.grant(asked, node.log.now)
    entry = node.propose(turn)
    node.commit_proposed(reset)
    assert deliveries(plan, node.commit_proposed(entry).results) == []
    assert offsets(receive(node, request(group, topic))) == [(0, 0), (0, 1), (0, 2), (0, 3)]


def _commands(*commands: Command) -> bytearray:
    from ..entry_log import command_section

    return command_section(*commands)


def test_acknowledgements_out_of_order_commit_up_to_the_first_open_one(node: Node) -> None:
    topic, group = node.topic(queues=1), node.group()
    node.fill(topic, 0, 5)
    asked = request(group, topic)
    found = receive(node, asked)
    ack(node, asked, [found[3], found[1]])
    assert (node.state.committed_offset(group, topic, 0), node.state.leased_count(group, topic, 0)) == (0, 3)
    ack(node, asked, [found[0]])
    assert node.state.committed_offset(group, topic, 0) == 2


def test_an_expired_handle_is_refused_unless_forced(node: Node) -> None:
    topic, group = node.topic(queues=1), node.group()
    node.fill(topic, 0, 1)
    asked = request(group, topic)
    found = receive(node, asked)
    node.log.now += 1_000
    assert ack(node, asked, found) == [False]
    assert ack(node, asked, found, force=True) == [True]


def test_changing_the_invisible_time_ends_older_handles_and_moves_the_deadline(node: Node) -> None:
    topic, group = node.topic(queues=1), node.group()
    node.fill(topic, 0, 1)
    asked = request(group, topic)
    (item,) = receive(node, asked)
    assert change(node, asked, item, 5_000) == [True]
    new_id = node.state.applied_index
    assert ack(node, asked, [item]) == [False]
    node.log.now += 4_999
    assert receive(node, asked) == []
    assert change(node, asked, Delivery(0, 0, 0, 0, 0, 1, new_id), 0) == [True]
    assert [found.attempt for found in receive(node, asked)] == [2]


def test_released_messages_are_there_at_once_and_the_attempt_does_not_count(node: Node) -> None:
    topic, group = node.topic(queues=1), node.group()
    node.fill(topic, 0, 1)
    asked = request(group, topic)
    (item,) = receive(node, asked)
    assert accepted(node, ReleaseLeases(group, topic, lease_rows([(0, 0, item.lease_id)]))) == [True]
    assert ack(node, asked, [item]) == [False]
    assert [found.attempt for found in receive(node, asked)] == [1]


def test_leases_of_a_session_end_with_it_and_not_by_time(node: Node) -> None:
    topic, group = node.topic(queues=1), node.group()
    node.fill(topic, 0, 2)
    asked = request(group, topic, session=77)
    (first, _second) = receive(node, asked)
    node.log.now += 10_000_000
    node.view.session_seen(77, node.log.now)
    assert ack(node, asked, [first]) == [True]
    assert receive(node, asked) == []
    assert node.view.housekeeping(node.log.now + 14_999)[-1:] != [SessionLost(77)]
    assert SessionLost(77) in node.view.housekeeping(node.log.now + 15_000)
    effects = node.command(SessionLost(77))
    assert effects.released == {(group, topic)}
    assert offsets(receive(node, asked)) == [(0, 1)]


def test_a_session_that_says_goodbye_is_lost_at_once(node: Node) -> None:
    topic, group = node.topic(queues=1), node.group()
    node.fill(topic, 0, 1)
    receive(node, request(group, topic, session=77))
    assert node.view.housekeeping(node.log.now) == []
    node.view.session_closed(77)
    assert node.view.housekeeping(node.log.now) == [SessionLost(77)]


# --- filters, bounds, fairness ------------------------------------------------------------------------------
def test_a_filter_skips_what_it_does_not_want_and_keeps_the_order(node: Node) -> None:
    topic, group = node.topic(queues=1), node.group()
    node.fill(topic, 0, 10, tags=[1, 2, 3])
    asked = request(group, topic, 2, tags=frozenset({2, 3}))
    first = receive(node, asked)
    assert offsets(first) == [(0, 1), (0, 2)]
    ack(node, asked, first)
    assert node.state.committed_offset(group, topic, 0) == 4, "skipped messages are done"
    assert offsets(receive(node, request(group, topic, tags=frozenset({2, 3})))) == [
        (0, 4),
        (0, 5),
        (0, 7),
        (0, 8),
    ]


def test_a_short_run_that_a_filter_skips_costs_no_entry_and_is_not_scanned_again(node: Node) -> None:
    topic, group = node.topic(queues=1), node.group()
    asked = request(group, topic, tags=frozenset({9}))
    receive(node, asked)
    node.fill(topic, 0, 50, tags=[1])
    assert node.view.selector.has_deliverable(asked, node.log.now)
    turn = node.view.open_turn()
    turn.grant(asked, node.log.now)
    assert not turn.size
    assert not node.view.selector.has_deliverable(asked, node.log.now)
    assert node.view.selector.has_deliverable(request(group, topic), node.log.now), (
        "another filter may want them"
    )
    node.fill(topic, 0, 1, tags=[9])
    assert offsets(receive(node, asked)) == [(0, 50)]


def test_a_long_run_that_a_filter_skips_is_written_down(node: Node) -> None:
    topic, group = node.topic(queues=1), node.group()
    for _ in range(5):
        node.fill(topic, 0, 1_000, size=8, tags=[1])
    asked = request(group, topic, tags=frozenset({9}))
    assert receive(node, asked) == []
    assert node.state.committed_offset(group, topic, 0) == 5_000


def test_selection_is_bounded_by_bytes_but_gives_at_least_one(node: Node) -> None:
    topic, group = node.topic(queues=1), node.group()
    node.fill(topic, 0, 5, size=1_000)
    assert len(receive(node, request(group, topic, max_bytes=10))) == 1
    assert len(receive(node, request(group, topic, max_bytes=2_500))) == 2


def test_all_queues_get_their_turn(node: Node) -> None:
    topic, group = node.topic(queues=3), node.group()
    for queue in range(3):
        node.fill(topic, queue, 4)
    first = [receive(node, request(group, topic, 1))[0].queue_id for _ in range(3)]
    assert sorted(first) == [0, 1, 2]
    assert len(receive(node, request(group, topic, 100))) == 9


# --- everything at once against a dumb second version -------------------------------------------------------
@pytest.mark.parametrize("seed", range(8))
def test_random_consumers_lose_nothing_and_agree_with_a_dumb_model(seed: int) -> None:
    """The model keeps one dictionary entry per message: done, or (lease id, deadline, attempt)."""
    choose = random.Random(seed)
    node = Node()
    topic, group = node.topic(queues=2), node.group()
    done: set[tuple[int, int]] = set()
    leased: dict[tuple[int, int], tuple[int, int, int]] = {}
    handles: list[Delivery] = []
    asked = request(group, topic, 4, 100)
    for _ in range(400):
        node.log.now += choose.randint(0, 30)
        step = choose.random()
        if step < 0.2:
            node.fill(topic, choose.randint(0, 1), choose.randint(1, 5))
        elif step < 0.5:
            for item in receive(node, asked):
                place = (item.queue_id, item.queue_offset)
                _, deadline, attempt = leased.get(place, (0, 0, 0))
                assert place not in done, f"seed {seed}"
                assert deadline <= node.log.now, f"seed {seed}: given while leased"
                assert item.attempt == attempt + 1
                leased[place] = (item.lease_id, node.log.now + 100, item.attempt)
                handles.append(item)
        elif handles:
            item = choose.choice(handles)
            place = (item.queue_id, item.queue_offset)
            lease, deadline, attempt = leased.get(place, (0, 0, 0))
            current = lease == item.lease_id and deadline > node.log.now and place not in done
            if step < 0.9:
                assert ack(node, asked, [item]) == [current or place in done], f"seed {seed}"
                if current:
                    done.add(place)
            else:
                assert change(node, asked, item, 50) == [current], f"seed {seed}"
                if current:
                    leased[place] = (node.state.applied_index, node.log.now + 50, attempt)
    for queue in (0, 1):
        open_ones = [n for n in range(node.state.queue_end(topic, queue)) if (queue, n) not in done]
        expected = open_ones[0] if open_ones else node.state.queue_end(topic, queue)
        assert node.state.committed_offset(group, topic, queue) == expected
    node.log.now += 1_000
    rest = receive(node, request(group, topic, 10_000))
    total = {(queue, n) for queue in (0, 1) for n in range(node.state.queue_end(topic, queue))}
    assert set(offsets(rest)) == total - done
    assert np.all(np.array([item.size for item in rest]) > 0)
