"""Positions, admission control and tasks, without Spark and without a broker."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("pyarrow", reason="the [spark] extra is not installed")
from ledgermq.client.cluster.topic_route import BrokerGroup
from ledgermq.spark_jobs.errors import SparkJobError
from ledgermq.spark_jobs.topics.read_plan import (
    SMALL_RANGE,
    QueueState,
    advance,
    fair_shares,
    ranges_between,
    resolve,
    tasks_of,
)
from ledgermq.spark_jobs.topics.source_options import ReadBoundary
from ledgermq.spark_jobs.topics.stream_offsets import (
    PartPositions,
    decode_positions,
    encode_positions,
)


def group(name: str = "g0", group_id: int = 1, former: tuple[int, ...] = ()) -> BrokerGroup:
    return BrokerGroup("local", name, 1, "n1", (), True, group_id=group_id, former_group_ids=former)


def state(
    queue: int, begin: int, end: int, *, topic_id: int = 7, of: BrokerGroup | None = None
) -> QueueState:
    return QueueState("orders", of or group(), topic_id, queue, begin, end)


def positions(*offsets: int, topic_id: int = 7, group_id: int = 1) -> dict[tuple[str, str], PartPositions]:
    return {("orders", "g0"): PartPositions(group_id, topic_id, dict(enumerate(offsets)))}


def test_offsets_are_the_same_text_whatever_the_order() -> None:
    one = {("b", "g1"): PartPositions(2, 8, {10: 1, 9: 2}), ("a", "g0"): PartPositions(255, 7, {0: 3})}
    other = {("a", "g0"): PartPositions(255, 7, {0: 3}), ("b", "g1"): PartPositions(2, 8, {9: 2, 10: 1})}
    text = json.dumps(encode_positions(one))
    assert text == json.dumps(encode_positions(other))
    assert decode_positions(json.loads(text)) == one
    assert '"group": "00000000000000ff", "topic": 7' in text


@pytest.mark.parametrize(
    ("found", "words"),
    [({"v": 2}, "newer version"), ({"orders": {"0": 1}}, "another source"), (["x"], "another source"),
     ({"v": 1, "topics": {"a": {"g": {"group": "x"}}}}, "another source")],
)  # fmt: skip
def test_a_checkpoint_of_something_else_is_refused(found: object, words: str) -> None:
    with pytest.raises(SparkJobError, match=words):
        decode_positions(found)


@given(st.lists(st.integers(1, 10_000), max_size=20), st.integers(1, 20_000))
def test_shares_use_the_limit_and_no_more(backlogs: list[int], most: int) -> None:
    shares = fair_shares(backlogs, most)
    assert sum(shares) == min(most, sum(backlogs))
    assert all(0 <= share <= backlog for share, backlog in zip(shares, backlogs, strict=True))
    if most >= len(backlogs):
        assert all(shares)


@given(
    st.lists(st.tuples(st.integers(0, 50), st.integers(0, 500)), min_size=1, max_size=8), st.integers(1, 200)
)
def test_micro_batches_read_everything_once(queues: list[tuple[int, int]], most: int) -> None:
    states = [state(number, begin, begin + size) for number, (begin, size) in enumerate(queues)]
    at = resolve(ReadBoundary("earliest"), states, "startingOffsets")
    cap = resolve(ReadBoundary("latest"), states, "")
    seen: list[tuple[int, int]] = []
    while (after := advance(at, states, most, cap, fail=True)) != at:
        ranges = ranges_between(at, after, states, fail=True)
        assert 0 < sum(each.end - each.start for each in ranges) <= most
        seen += [(each.queue_id, offset) for each in ranges for offset in range(each.start, each.end)]
        at = after
    expected = [(number, begin + n) for number, (begin, size) in enumerate(queues) for n in range(size)]
    assert sorted(seen) == expected


def test_a_new_queue_begins_at_its_first_offset_and_a_silent_one_keeps_its_position() -> None:
    start = positions(5, 9)
    found = advance(start, [state(0, 0, 8), state(2, 0, 4)], None, None, fail=True)
    assert found == {("orders", "g0"): PartPositions(1, 7, {0: 8, 1: 9, 2: 4})}
    ranges = ranges_between(start, found, [state(0, 0, 8), state(1, 0, 9), state(2, 0, 4)], fail=True)
    assert [(each.queue_id, each.start, each.end) for each in ranges] == [(0, 5, 8), (2, 0, 4)]


def test_a_query_until_now_does_not_read_what_came_later() -> None:
    cap = positions(8)
    assert advance(positions(5), [state(0, 0, 20), state(1, 0, 3)], None, cap, fail=True) == positions(8)


@pytest.mark.parametrize(
    ("now", "words"),
    [(state(0, 0, 2, topic_id=8), "created again"), (state(0, 0, 2, of=group(group_id=2)), "made again")],
)
def test_what_was_made_again_is_noticed(now: QueueState, words: str) -> None:
    with pytest.raises(SparkJobError, match=f"{words}.*failOnDataLoss=false"):
        advance(positions(5), [now], None, None, fail=True)
    found = advance(positions(5), [now], None, None, fail=False)
    ranges = ranges_between(positions(5), found, [now], fail=False)
    assert [(each.start, each.end, each.topic_id) for each in ranges] == [(0, 2, now.topic_id)]


def test_a_recovered_broker_group_is_the_same() -> None:
    recovered = state(0, 0, 9, of=group(group_id=3, former=(1,)))
    found = advance(positions(5), [recovered], None, None, fail=True)
    assert [each.end for each in ranges_between(positions(5), found, [recovered], fail=True)] == [9]


def test_what_retention_took_is_an_error_or_is_left_out() -> None:
    now = [state(0, 7, 9)]
    with pytest.raises(SparkJobError, match=r"offsets 5 to 7 .* deleted by retention"):
        ranges_between(positions(5), positions(9), now, fail=True)
    ranges = ranges_between(positions(5), positions(9), now, fail=False)
    assert [(each.start, each.end) for each in ranges] == [(7, 9)]
    assert ranges_between(positions(5), positions(6), now, fail=False) == []


def test_given_offsets() -> None:
    states = [state(0, 2, 9), state(1, 2, 9), state(2, 2, 9)]
    given = ReadBoundary("earliest", offsets={"orders": {"g0": {0: 4, 1: -1}}})
    assert resolve(given, states, "startingOffsets") == positions(4, 9, 2)
    beyond = ReadBoundary("earliest", offsets={"orders": {"g0": {0: 10}}})
    with pytest.raises(SparkJobError, match=r"startingOffsets names offset 10 .* ends at 9"):
        resolve(beyond, states, "startingOffsets")
    unknown = ReadBoundary("earliest", offsets={"orders": {"g1": {0: 1}}})
    with pytest.raises(SparkJobError, match=r'"g1".*g0/0, g0/1, g0/2'):
        resolve(unknown, states, "startingOffsets")


@given(st.lists(st.integers(1, 3 * SMALL_RANGE), min_size=1, max_size=12), st.integers(0, 40))
def test_tasks_cover_their_ranges_in_order(sizes: list[int], least: int) -> None:
    ranges = [state(number, 0, size).range(0, size) for number, size in enumerate(sizes)]
    tasks = tasks_of(ranges, least)
    pieces = sorted((each.queue_id, each.start, each.end) for task in tasks for each in task)
    for number, size in enumerate(sizes):
        mine = [(lo, hi) for queue, lo, hi in pieces if queue == number]
        assert [lo for lo, _ in mine] == [0, *(hi for _, hi in mine[:-1])]
        assert mine[-1][1] == size
    assert len(tasks) >= min(least, sum(sizes))
    if not least:
        assert all(len(task) == 1 or sum(e.end - e.start for e in task) <= SMALL_RANGE for task in tasks)
