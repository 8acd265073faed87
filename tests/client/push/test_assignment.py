"""What an answer of the leader changes."""

from __future__ import annotations

from ledgermq.client.message import MessageQueue
from ledgermq.client.push.assignment import changes
from ledgermq.client.push.owned_queue import ByteBudget, OwnedQueue, QueueLimits
from ledgermq.proto import log_pb2 as pb


def here(*rows: tuple[int, int, int]) -> dict[tuple[int, int], OwnedQueue]:
    """Queues (topic id, queue id, epoch) that the member has."""
    limits, budget = QueueLimits(), ByteBudget(1)
    queues = [
        OwnedQueue(
            MessageQueue("orders", "g0", queue_id),
            t,
            0,
            0,
            limits=limits,
            budget=budget,
            epoch=e,
            committed=0,
        )
        for t, queue_id, e in rows
    ]
    return {owned.key: owned for owned in queues}


def answer(owned: list[tuple[int, int, int]], revoked: tuple[int, ...] = ()) -> pb.MembershipResponse:
    rows = [pb.QueueOwnership(topic="orders", topic_id=t, queue_id=q, epoch=e) for t, q, e in owned]
    return pb.MembershipResponse(owned=rows, revoked=[row for row in rows if row.queue_id in revoked])


def test_new_queues_start_and_those_that_stay_are_left_alone() -> None:
    change = changes(here((7, 0, 1)), answer([(7, 0, 1), (7, 1, 2)]))
    assert [each.queue_id for each in change.started] == [1]
    assert (change.lost, change.revoked, change.handed_over) == ([], [], [])


def test_a_queue_that_is_not_named_any_more_is_lost() -> None:
    owned = here((7, 0, 1), (7, 1, 1))
    assert changes(owned, answer([(7, 1, 1)])).lost == [owned[7, 0]]


def test_another_epoch_is_another_ownership() -> None:
    owned = here((7, 0, 1))
    change = changes(owned, answer([(7, 0, 5)]))
    assert change.lost == [owned[7, 0]]
    assert [each.epoch for each in change.started] == [5]


def test_a_topic_that_was_created_again_is_another_one() -> None:
    owned = here((7, 0, 1))
    change = changes(owned, answer([(8, 0, 5)]))
    assert (change.lost, [each.topic_id for each in change.started]) == ([owned[7, 0]], [8])


def test_a_revoked_queue_is_handed_over_once() -> None:
    owned = here((7, 0, 1))
    assert changes(owned, answer([(7, 0, 1)], (0,))).revoked == [owned[7, 0]]
    owned[7, 0].release()
    assert changes(owned, answer([(7, 0, 1)], (0,))).revoked == []


def test_a_revoked_queue_of_which_nothing_is_here_is_said_to_be_handed_over_again() -> None:
    change = changes({}, answer([(7, 0, 1)], (0,)))
    assert [(each.queue_id, each.epoch) for each in change.handed_over] == [(0, 1)]
    assert change.started == []


def test_of_a_revoked_queue_that_is_here_with_an_older_epoch_nothing_is_kept() -> None:
    owned = here((7, 0, 1))
    change = changes(owned, answer([(7, 0, 3)], (0,)))
    assert (change.lost, len(change.handed_over), change.started) == ([owned[7, 0]], 1, [])
