"""Restore plans: which messages, in which writes, into which queues. Without Spark."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

pytest.importorskip("pyarrow", reason="the [spark] extra is not installed")
from ledgermq.client.cluster.topic_route import BrokerGroup, TopicInBrokerGroup, TopicRoute
from ledgermq.spark_jobs.errors import SparkJobError
from ledgermq.spark_jobs.lake import restore_job
from ledgermq.spark_jobs.lake.lake_folder import LakeFolder
from ledgermq.spark_jobs.lake.restore_job import (
    RestoreOptions,
    _checked,
    _rows_of,
    parse_offsets,
    plan_restore,
    queue_mapping,
)

from .lake_maker import BEGIN_MS, add_batch, messages, new_lake
from .test_lake_folder import compact

ALL = RestoreOptions("ns:1", "orders", "again")


@pytest.fixture
def lake(tmp_path: Path) -> Iterator[LakeFolder]:
    """Queue 0 with messages 0 to 3699, one each second, in two batches and two hours; queue 1 with 100."""
    with new_lake(tmp_path) as made:
        add_batch(made, messages(0, 3000), messages(0, 100, queue=1))
        add_batch(made, messages(3000, 3700))
        yield made


def restored(lake: LakeFolder, options: RestoreOptions) -> list[list[bytes]]:
    """Return the bodies of each partition, over all writes."""
    plan = plan_restore(lake, options)
    return [
        [
            body
            for low, high in plan.windows()
            for batch in _rows_of(plan, low, high, queue)
            for body in batch.column("body").to_pylist()
        ]
        for queue in range(len(plan.queues))
    ]


def bodies(queue: int, first: int, end: int) -> list[bytes]:
    return [f"body {queue}/{number}".encode() for number in range(first, end)]


def test_every_queue_is_a_partition_in_its_order(lake: LakeFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    assert restored(lake, ALL) == [bodies(0, 0, 3700), bodies(1, 0, 100)]
    monkeypatch.setattr(restore_job, "WRITE_OFFSETS", 999)
    assert restored(lake, ALL) == [bodies(0, 0, 3700), bodies(1, 0, 100)]
    assert len(plan_restore(lake, ALL).windows()) == 4
    compact(lake)
    assert restored(lake, ALL) == [bodies(0, 0, 3700), bodies(1, 0, 100)]


def test_times_and_offsets_limit_what_is_restored(lake: LakeFolder) -> None:
    some = replace(ALL, first_ms=BEGIN_MS + 90_000, end_ms=BEGIN_MS + 3_650_000)
    assert restored(lake, some) == [bodies(0, 90, 3650), bodies(1, 90, 100)]
    plan = plan_restore(lake, some)
    parts = {
        each.path: [other for other in plan.parts[0] if other.path == each.path] for each in plan.parts[0]
    }
    assert sum(_checked(plan, each)["messages"] for each in parts.values()) == 3560
    offsets = parse_offsets('{"g0": {"0": [2990, 3010]}}')
    assert restored(lake, replace(ALL, offsets=offsets)) == [bodies(0, 2990, 3010), []]


def test_the_write_id_names_what_is_restored(lake: LakeFolder) -> None:
    first = plan_restore(lake, ALL).write_id
    compact(lake)
    assert plan_restore(lake, ALL).write_id == first
    assert plan_restore(lake, replace(ALL, into="other")).write_id != first
    assert plan_restore(lake, replace(ALL, end_ms=BEGIN_MS + 50)).write_id != first
    assert plan_restore(lake, replace(ALL, write_id="mine")).write_id == "mine"
    add_batch(lake, messages(3700, 3701))
    assert plan_restore(lake, ALL).write_id != first


def test_queues_keep_their_numbers_where_there_are_as_many(lake: LakeFolder) -> None:
    group = BrokerGroup("c", "g0", 1, "n1", (), True)
    route = TopicRoute("again", "c", (TopicInBrokerGroup(group, 3, 2, True, True),))
    plan = plan_restore(lake, ALL)
    assert queue_mapping(plan, route) == [("g0/0", "g0/0"), ("g0/1", "g0/1")]
    one = TopicRoute("again", "c", (TopicInBrokerGroup(group, 3, 1, True, True),))
    assert queue_mapping(plan, one) == [("g0/0", "g0/0"), ("g0/1", "g0/0")]
    none = TopicRoute("again", "c", (TopicInBrokerGroup(group, 3, 1, True, False),))
    with pytest.raises(SparkJobError, match='no broker group takes messages of topic "again"'):
        queue_mapping(plan, none)


def test_what_is_not_there_is_said(lake: LakeFolder) -> None:
    with pytest.raises(SparkJobError, match='no message of topic "orders" in this range'):
        plan_restore(lake, replace(ALL, end_ms=BEGIN_MS - 1))
    with pytest.raises(SparkJobError, match=r"queue 7 of broker group g0.*It has|Did you mean"):
        plan_restore(lake, replace(ALL, offsets={("g0", 7): (0, 1)}))


@pytest.mark.parametrize(
    "text", ["", "{}", "[1]", '{"g0": 3}', '{"g0": {"x": [0, 1]}}', '{"g0": {"0": [5, 5]}}']
)
def test_offsets_that_are_none(text: str) -> None:
    with pytest.raises(SparkJobError, match="it takes the first offset of each queue"):
        parse_offsets(text)


def test_a_damaged_file_is_named_before_anything_is_written(lake: LakeFolder) -> None:
    plan = plan_restore(lake, ALL)
    path = Path(plan.parts[1][0].path)
    path.write_bytes(bytes(path.stat().st_size))
    assert _checked(plan, plan.parts[1])["damaged"] == path.relative_to(lake.root).as_posix()
