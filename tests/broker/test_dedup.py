"""The windows of deduplication."""

from __future__ import annotations

import numpy as np
import pytest

from ledgermq.broker import dedup
from ledgermq.broker.dedup import MessageIds, ProducerStreams


def ids(first: int, count: int) -> bytes:
    return b"".join((first + i).to_bytes(16, "little") for i in range(count))


def test_a_stream_keeps_the_last_results_only() -> None:
    streams = ProducerStreams()
    for i in range(100):
        streams.record((1, 1, 0), 0, 10 * i, 10, 1_000 + 10 * i, 5)
    stream = streams.get((1, 1, 0))
    assert stream is not None
    assert stream.find(990, 10) == 1_990
    assert stream.find(360, 10) == 1_360
    assert stream.find(350, 10) == -1, "stored, but too long ago to know where"
    assert stream.find(990, 9) is None
    assert stream.find(355, 10) is None


def test_silent_streams_are_forgotten() -> None:
    streams = ProducerStreams()
    streams.record((1, 1, 0), 0, 0, 1, 0, 5)
    streams.record((2, 1, 0), 0, 0, 1, 0, 9)
    streams.evict(6)
    assert streams.get((1, 1, 0)) is None
    assert streams.oldest() == 9


def test_ids_fall_out_by_count_in_whole_generations_and_that_is_counted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(dedup, "GENERATION_IDS", 10)
    monkeypatch.setattr(dedup, "MAX_MESSAGE_IDS", 25)
    known = MessageIds()
    for i in range(6):
        known.record(1, 2, 5 * i, ids(5 * i, 5), np.ones(5, bool), now=0)
    assert (known.count, known.evicted_early) == (20, 10)
    assert known.find(1, ids(9, 1)) is None
    assert known.find(1, ids(10, 1)) == (2, 10)


def test_a_snapshot_of_ids_does_not_change() -> None:
    known = MessageIds()
    known.record(1, 0, 0, ids(0, 3), np.ones(3, bool), now=0)
    copy = known.copy()
    known.record(1, 0, 3, ids(3, 3), np.array([True, False, True]), now=1)
    assert len(copy[0].places) == 3
    assert known.find(1, ids(4, 1)) is None
    assert known.find(1, ids(5, 1)) == (0, 5)
