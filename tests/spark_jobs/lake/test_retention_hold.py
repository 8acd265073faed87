"""Retention hold: the job sets it, advances it, and goes on when brokers do not take it."""

from __future__ import annotations

from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("pyarrow", reason="the [spark] extra is not installed")
from ledgermq.client.errors import RefusedError
from ledgermq.client.message import MessageQueue
from ledgermq.spark_jobs.lake.retention_hold import RetentionHold
from ledgermq.spark_jobs.topics.stream_offsets import PartPositions

QUEUES = {
    ("orders", "g0"): PartPositions(7, 1, {0: 5, 1: 6}),
    ("orders", "g1"): PartPositions(8, 1, {0: 7}),
    ("payments", "g0"): PartPositions(7, 2, {0: 8}),
}


class FakeAdmin:
    """Keeps what it is told; `broken`: refuses; `overridden`: retention did not wait."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, str, dict[str, int]]] = []
        self.broken = self.overridden = False

    def __call__(self, _nameservers: str) -> FakeAdmin:
        return self

    def __enter__(self) -> FakeAdmin:
        return self

    def __exit__(self, *_: object) -> None:
        return None

    def hold(self, topic: str, name: str, offsets: Mapping[MessageQueue, int]) -> list[Any]:
        if self.broken:
            raise RefusedError("NOT_SUPPORTED", "no holds here")
        shown = {f"{queue.broker_group}/{queue.queue_id}": offset for queue, offset in offsets.items()}
        self.calls.append((topic, name, shown))
        return [
            SimpleNamespace(queue=queue, offset=offset, overridden=self.overridden)
            for queue, offset in offsets.items()
        ]


def test_every_queue_of_every_topic_is_held() -> None:
    admin = FakeAdmin()
    RetentionHold("ns:1", "archive", admin).begin(QUEUES)
    assert admin.calls == [
        ("orders", "archive", {"g0/0": 5, "g0/1": 6, "g1/0": 7}), ("payments", "archive", {"g0/0": 8}),
    ]  # fmt: skip


def test_the_first_refusal_is_an_error_and_later_ones_are_warnings(caplog: pytest.LogCaptureFixture) -> None:
    admin = FakeAdmin()
    admin.broken = True
    hold = RetentionHold("ns:1", "archive", admin)
    with pytest.raises(RefusedError):
        hold.begin(QUEUES)
    hold.advance(QUEUES)
    assert "hold archive is not advanced: " in caplog.text


def test_a_hold_that_was_not_kept_is_told_once(caplog: pytest.LogCaptureFixture) -> None:
    admin = FakeAdmin()
    admin.overridden = True
    hold = RetentionHold("ns:1", "archive", admin)
    one = {("orders", "g0"): PartPositions(7, 1, {0: 5})}
    hold.begin(one)
    hold.advance(one)
    assert caplog.text.count("retention did not wait for hold archive") == 1
    assert len(admin.calls) == 2


def test_it_is_repeated_now_and_then_only() -> None:
    admin = FakeAdmin()
    hold = RetentionHold("ns:1", "archive", admin)
    hold.begin(QUEUES)
    hold.repeat()
    assert len(admin.calls) == 2
    hold._advanced_s -= 1000
    hold.repeat()
    assert len(admin.calls) == 4
