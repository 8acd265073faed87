"""Holds in the replicated state: offsets, what was lost, bounds, and equal nodes."""

from __future__ import annotations

import random

import pytest

from ledgermq.broker.checkpoint.layout import decode_snapshot, encode_snapshot, take_snapshot
from ledgermq.broker.errors import CheckpointError
from ledgermq.broker.state import commands as c
from ledgermq.broker.state.effects import HoldLoss, HoldResult
from ledgermq.broker.state.holds import MAX_HOLDS, Held, named_since
from ledgermq.broker.state.machine import BrokerState

from ..entry_log import Node, checkpoint, restored, result_of


def hold(node: Node, topic: int, *rows: tuple[int, int], name: str = "lake") -> HoldResult:
    """Set or advance a hold. Rows: queue id, offset."""
    return result_of(node.command(c.SetHold(topic, name, c.hold_rows(rows))), HoldResult)


def held(node: Node, topic: int, name: str = "lake") -> Held:
    return node.state.holds.of_topic(topic)[name]


@pytest.fixture
def node() -> Node:
    return Node()


@pytest.fixture
def topic(node: Node) -> int:
    """A topic of two queues with ten messages each."""
    topic = node.topic()
    for queue in range(2):
        node.fill(topic, queue, 10)
    return topic


def offsets(found: Held) -> dict[int, int]:
    return {queue: need.offset for queue, need in found.items()}


def test_a_hold_advances_and_never_goes_back(node: Node, topic: int) -> None:
    assert offsets(hold(node, topic, (0, 3)).held or {}) == {0: 3}
    hold(node, topic, (0, 5), (1, 2))
    assert offsets(held(node, topic)) == {0: 5, 1: 2}
    assert offsets(hold(node, topic, (0, 4)).held or {}) == {0: 5, 1: 2}, "the whole hold is told"


def test_naming_an_offset_again_tells_that_the_holder_lives(node: Node, topic: int) -> None:
    hold(node, topic, (0, 3), (1, 3))
    before = node.log.now
    node.log.now += 1000
    hold(node, topic, (0, 1))
    assert [need.advanced for _, need in sorted(held(node, topic).items())] == [before + 1000, before]
    assert [each[0] for each in node.state.holds.needs(before + 1)] == [(topic, 0)]
    assert len(list(node.state.holds.needs(before))) == 2


def test_a_hold_counts_for_as_long_as_the_setting_says() -> None:
    assert named_since(10_000_000, 0.5) == 10_000_000 - 1_800_000


def test_what_was_deleted_in_spite_of_a_hold_is_told_to_its_next_advance_and_to_a_repeat_of_it(
    node: Node, topic: int
) -> None:
    hold(node, topic, (0, 3), (1, 9))
    effects = node.trim((topic, 0, 5), (topic, 1, 5))
    assert effects.hold_losses == [HoldLoss(topic, "lake", 0, 2, True)], "queue 1 loses nothing it needs"
    assert held(node, topic)[0].lost_at(5) == 2
    effects = node.trim((topic, 0, 7))
    assert effects.hold_losses == [HoldLoss(topic, "lake", 0, 2, False)], "its holder has not come since"
    for _ in range(2):
        found = hold(node, topic, (0, 6)).held
        assert found is not None and (found[0].offset, found[0].lost, found[0].lost_at(7)) == (7, 4, 4)
    found = hold(node, topic, (0, 9)).held
    assert found is not None and found[0].lost_at(7) == 0
    assert node.trim((topic, 0, 10)).hold_losses == [HoldLoss(topic, "lake", 0, 1, True)]


def test_a_hold_of_what_is_deleted_already_is_accepted_and_counts_it(node: Node, topic: int) -> None:
    node.trim((topic, 0, 6))
    found = hold(node, topic, (0, 2)).held
    assert found is not None and (found[0].offset, found[0].lost_at(6)) == (6, 4)
    assert node.trim((topic, 0, 7)).hold_losses == [HoldLoss(topic, "lake", 0, 1, True)]


def test_a_topic_has_so_many_holds_and_an_advance_of_one_needs_no_room(node: Node, topic: int) -> None:
    for number in range(MAX_HOLDS):
        assert hold(node, topic, (0, 1), name=f"job{number}").held is not None
    assert hold(node, topic, (0, 1), name="late") == HoldResult(True, None)
    assert "late" not in node.state.holds.of_topic(topic)
    assert offsets(hold(node, topic, (0, 2), name="job3").held or {}) == {0: 2}
    released = node.command(c.ReleaseHold(topic, "job3"), c.ReleaseHold(topic, "job3"))
    assert released.results == [HoldResult(True, {}), HoldResult(True, None)]
    assert hold(node, topic, (0, 1), name="late").held is not None


def test_a_topic_that_was_created_again_has_no_holds(node: Node, topic: int) -> None:
    hold(node, topic, (0, 1))
    node.command(c.DeleteTopic(topic))
    assert list(node.state.holds) == []
    again = node.topic()
    assert not node.state.holds.of_topic(again)
    assert hold(node, topic, (0, 1)) == HoldResult(False, None)
    assert result_of(node.command(c.ReleaseHold(topic, "lake")), HoldResult) == HoldResult(False, None)


def test_queues_that_do_not_exist_are_passed_over(node: Node, topic: int) -> None:
    assert offsets(hold(node, topic, (0, 1), (7, 1)).held or {}) == {0: 1}
    hold(node, topic, (9, 1), name="nothing")
    assert list(node.state.holds.of_topic(topic)) == ["lake"]


def test_a_snapshot_does_not_change(node: Node, topic: int) -> None:
    hold(node, topic, (0, 1))
    copied = node.state.holds.copy()
    hold(node, topic, (0, 2))
    hold(node, topic, (0, 2), name="other")
    assert offsets(copied[topic]["lake"]) == {0: 1}
    assert list(copied[topic]) == ["lake"]


def test_a_checkpoint_has_version_8_only_while_there_are_holds(node: Node, topic: int) -> None:
    assert checkpoint(node.state)[4] == 1
    hold(node, topic, (0, 3), (1, 9))
    node.trim((topic, 0, 5))
    hold(node, topic, (0, 4))
    raw = checkpoint(node.state)
    assert raw[4] == 8
    again = restored(raw)
    assert checkpoint(again) == raw
    assert again.holds.of_topic(topic) == node.state.holds.of_topic(topic)
    node.command(c.ReleaseHold(topic, "lake"))
    raw = checkpoint(node.state)
    assert raw[4] == 1, "an older node reads it"
    assert list(restored(raw).holds) == []


def test_holds_that_are_cut_short_are_no_state(
    node: Node, topic: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    hold(node, topic, (0, 3), (1, 9))
    from ledgermq.broker.checkpoint import layout

    whole = layout._encode_holds
    monkeypatch.setitem(
        layout._ENCODERS, layout.Shard.HOLDS, lambda snapshot: [b"".join(whole(snapshot))[:-1]]
    )
    raw = b"".join(encode_snapshot(take_snapshot(node.state)))
    with pytest.raises(CheckpointError, match="cut short"):
        decode_snapshot(raw, "checkpoint")


@pytest.mark.parametrize("seed", range(8))
def test_nodes_with_one_history_have_equal_checkpoints_even_when_one_restarts(seed: int) -> None:
    choose, node = random.Random(seed), Node()
    topics = [node.topic(f"t{number}") for number in range(2)]
    follower, at = BrokerState(), 1
    known: dict[tuple[int, str, int], int] = {}
    for step in range(200):
        node.log.now += choose.randrange(50)
        what, topic, name = choose.random(), choose.choice(topics), f"job{choose.randrange(20)}"
        queue = choose.randrange(2)
        begin, end = node.state.queue_begin(topic, queue), node.state.queue_end(topic, queue)
        if what < 0.3:
            node.fill(topic, queue, choose.randrange(1, 4))
        elif what < 0.75:
            hold(node, topic, (queue, choose.randint(0, end)), name=name)
        elif what < 0.85:
            node.trim((topic, queue, choose.randint(begin, end)))
        elif what < 0.97:
            node.command(c.ReleaseHold(topic, name))
            known = {key: offset for key, offset in known.items() if key[:2] != (topic, name)}
        else:
            node.command(c.DeleteTopic(topic))
            topics = [each for each in topics if each != topic] + [node.topic(f"n{step}")]
        while at <= len(node.log.raw):
            follower.apply(*node.log.entry(at))
            at += 1
        if choose.random() < 0.1:
            follower = restored(checkpoint(follower))
        assert checkpoint(follower) == checkpoint(node.state), f"seed {seed} step {step}"
        for topic_id, its_name, queues in node.state.holds:
            assert topic_id in topics and len(node.state.holds.of_topic(topic_id)) <= MAX_HOLDS
            for queue_id, need in queues.items():
                key = (topic_id, its_name, queue_id)
                assert known.get(key, 0) <= need.offset <= node.state.queue_end(topic_id, queue_id)
                known[key] = need.offset
