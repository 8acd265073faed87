"""Resume point: where a job goes on, and lakes that do not belong to these brokers."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

pytest.importorskip("pyarrow", reason="the [spark] extra is not installed")
from ledgermq.spark_jobs.errors import SparkJobError
from ledgermq.spark_jobs.lake.lake_state import LakeState
from ledgermq.spark_jobs.lake.resume_point import (
    check_same,
    check_topic,
    check_topics,
    joined_by,
    resume_point,
    starting_offsets,
)
from ledgermq.spark_jobs.topics.read_plan import QueueState
from ledgermq.spark_jobs.topics.stream_offsets import PartPositions

from .lake_maker import add_batch, messages, new_lake, state_of

KEY = ("orders", "g0")


@pytest.fixture
def lake(tmp_path: Path) -> LakeState:
    """The lake of topic "orders" with messages 0 to 9 of queue 0, and none of queue 1."""
    with new_lake(tmp_path) as made:
        add_batch(made, messages(0, 10))
        return made.state


def test_a_new_lake_begins_at_the_first_offsets() -> None:
    found = resume_point(None, [state_of(0, 5, 9), state_of(1, 0, 0)], fail=True)
    assert found == {KEY: PartPositions(7, 1, {0: 5, 1: 0})}


def test_a_queue_goes_on_behind_the_lake_and_a_new_one_at_its_first_offset(lake: LakeState) -> None:
    states = [state_of(0, 3, 20), state_of(1, 0, 4), state_of(2, 6, 8)]
    found = resume_point(lake, states, fail=True)
    assert found == {KEY: PartPositions(7, 1, {0: 10, 1: 0, 2: 6})}
    assert json.loads(starting_offsets(found, states)) == {"orders": {"g0": {"0": 10, "1": 0, "2": 6}}}


def test_messages_that_retention_took_are_an_error_or_left_to_the_batch(lake: LakeState) -> None:
    states = [state_of(0, 15, 20)]
    with pytest.raises(
        SparkJobError, match=r"offsets 10 to 15 .* deleted by retention before they were archived"
    ):
        resume_point(lake, states, fail=True)
    assert resume_point(lake, states, fail=False)[KEY].queues[0] == 10


def test_queues_that_are_gone_keep_their_positions(lake: LakeState) -> None:
    found = resume_point(lake, [state_of(0, 0, 1, topic="payments")], fail=True)
    assert found[KEY] == lake.positions[KEY]
    assert starting_offsets(found, [state_of(0, 0, 1, topic="payments")]) == '{"payments": {"g0": {"0": 0}}}'


@pytest.mark.parametrize(
    ("state", "text"),
    [
        (state_of(0, 0, 10, topic_id=2), "was deleted and created again"),
        (state_of(0, 0, 10, group_id=8), "was made from another cluster"),
        (state_of(0, 0, 9), "the brokers have only 9 messages"),
    ],
)
def test_other_topics_and_clusters_are_refused(lake: LakeState, state: QueueState, text: str) -> None:
    with pytest.raises(SparkJobError, match=text):
        check_same(lake, [state])


def test_a_broker_group_that_was_recovered_is_the_same(lake: LakeState) -> None:
    check_same(lake, [state_of(0, 0, 10, group_id=9, former=(7,))])


def test_topics_of_the_lake(lake: LakeState) -> None:
    with pytest.raises(SparkJobError, match=r"the lake holds orders, not payments.*orders,payments"):
        check_topics(lake, ["payments"])
    check_topics(lake, ["payments", "orders"])
    with pytest.raises(SparkJobError, match=r'the lake has no topic "order"\. Did you mean "orders"'):
        check_topic(lake, "order")
    check_topic(lake, "orders")


def test_what_joins_a_running_job_begins_at_0() -> None:
    found = joined_by({KEY: PartPositions(7, 1, {0: 3})}, [state_of(0, 0, 9), state_of(0, 0, 9, topic="new")])
    assert found == {KEY: PartPositions(7, 1, {0: 3}), ("new", "g0"): PartPositions(7, 1, {})}
