"""The windows of deduplication."""

from __future__ import annotations

import numpy as np
import pytest

from ledgermq.broker.state import dedup
from ledgermq.broker.state.dedup import MessageIds, ProducerStreams, Stream


def ids(first: int, count: int) -> bytes:
    return b"".join((first + i).to_bytes(16, "little") for i in range(count))


def stream_of(count: int) -> tuple[ProducerStreams, Stream]:
    """Return a stream after so many batches of ten records, which begin at queue offset 1,000."""
    streams = ProducerStreams()
    for i in range(count):
        streams.record((1, 1, 0), 0, 10 * i, 10, 1_000 + 10 * i, 5)
    found = streams.get((1, 1, 0))
    assert found is not None
    return streams, found


def test_a_stream_keeps_the_last_results_only() -> None:
    _, stream = stream_of(dedup.KEPT_BATCHES + 36)
    assert dedup.KEPT_BATCHES == 64
    assert stream.find(990, 10) == 1_990
    assert stream.find(360, 10) == 1_360, "the oldest of 64"
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


def test_an_id_is_known_for_the_whole_window_after_it_was_stored() -> None:
    """A generation holds ids of up to 15 s; none of them goes before the youngest is old enough."""
    known = MessageIds()
    known.record(1, 0, 0, ids(0, 1), np.ones(1, bool), now=1_000)
    known.record(1, 0, 1, ids(1, 1), np.ones(1, bool), now=15_000)  # joins the same generation
    assert len(known.generations) == 1
    assert known.oldest() == 15_000
    known.evict(15_000)
    assert known.find(1, ids(1, 1)) == (0, 1), "stored at 15 s, and asked to forget what is older than that"
    assert known.find(1, ids(0, 1)) == (0, 0)
    known.evict(15_001)
    assert known.find(1, ids(1, 1)) is None
    assert known.count == 0


def test_ids_of_more_than_fifteen_seconds_are_forgotten_apart() -> None:
    known = MessageIds()
    known.record(1, 0, 0, ids(0, 1), np.ones(1, bool), now=1_000)
    known.record(1, 0, 1, ids(1, 1), np.ones(1, bool), now=1_000 + dedup.GENERATION_MS)
    known.evict(2_000)
    assert known.find(1, ids(0, 1)) is None
    assert known.find(1, ids(1, 1)) == (0, 1)


def test_the_same_id_in_another_topic_is_another_message() -> None:
    known = MessageIds()
    known.record(1, 0, 5, ids(0, 1), np.ones(1, bool), now=0)
    assert known.find(2, ids(0, 1)) is None


def test_a_new_epoch_of_a_producer_forgets_the_results_of_the_one_before() -> None:
    streams, _ = stream_of(3)
    streams.record((1, 1, 0), 1, 0, 7, 2_000, 6)
    stream = streams.get((1, 1, 0))
    assert stream is not None
    assert (stream.epoch, stream.next_sequence) == (1, 7)
    assert stream.find(0, 7) == 2_000
    assert stream.find(10, 10) is None, "sequence 10 of epoch 1 was not stored yet"
