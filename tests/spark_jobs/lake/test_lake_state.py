"""Lake state: batches continue a lake message by message, and its manifests are refused when damaged."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

pytest.importorskip("pyarrow", reason="the [spark] extra is not installed")
from crc32c import crc32c

from ledgermq.spark_jobs.errors import SparkJobError
from ledgermq.spark_jobs.lake.lake_state import (
    LakeCommit,
    LakeFile,
    LakeGap,
    LakeRange,
    LakeState,
    batch_of,
    decode_commit,
    encode_commit,
)
from ledgermq.spark_jobs.topics.stream_offsets import PartPositions

from .lake_maker import POSITIONS

HOUR = 498_611
KEY = ("orders", "g0")


def file(*ranges: tuple[int, int, int], hour: int = HOUR) -> LakeFile:
    """Return a file as a task reports it. `ranges`: (queue, first, end)."""
    found = tuple(LakeRange("g0", queue, first, end, 5) for queue, first, end in ranges)
    return LakeFile("", "orders", hour, 100, found, "_ledgermq/staging/x.part")


def empty() -> LakeState:
    return LakeState(LakeCommit(0, "begin", "ab", 1))


def after(*batches: LakeFile) -> LakeState:
    state = empty()
    for each in batches:
        state.apply(batch_of(state, state.positions or POSITIONS, [each], now_ms=1, fail=False))
    return state


def test_a_batch_moves_the_positions_behind_its_ranges() -> None:
    state = after(file((0, 0, 10), (1, 0, 3)), file((0, 10, 12)))
    assert state.positions[KEY] == PartPositions(7, 1, {0: 12, 1: 3})
    assert (state.number, state.gaps, state.topics) == (2, [], ["orders"])
    paths = [each.path for each in state.files_of("orders")]
    assert paths == [
        "topic=orders/day=2026-11-18/hour=11/000000000001-0000.parquet",
        "topic=orders/day=2026-11-18/hour=11/000000000002-0000.parquet",
    ]


def test_ranges_of_a_queue_may_come_from_several_tasks_in_any_order() -> None:
    commit = batch_of(
        empty(), POSITIONS, [file((0, 6, 9)), file((0, 0, 6), hour=HOUR - 1)], now_ms=1, fail=True
    )
    assert commit.positions[KEY].queues == {0: 9, 1: 0}


@pytest.mark.parametrize("ranges", [((0, 5, 12),), ((0, 0, 3),), ((0, 10, 12), (0, 11, 13))])
def test_messages_that_the_lake_has_are_refused(ranges: tuple[tuple[int, int, int], ...]) -> None:
    state = after(file((0, 0, 10)))
    with pytest.raises(SparkJobError, match=r"the lake has all before 1[02]"):
        batch_of(state, state.positions, [file(*ranges)], now_ms=1, fail=False)


def test_a_gap_is_an_error_or_is_noted() -> None:
    state = after(file((0, 0, 10)))
    with pytest.raises(SparkJobError, match=r"offsets 10 to 15 .* were deleted by retention .* --no-fail"):
        batch_of(state, state.positions, [file((0, 15, 20))], now_ms=1, fail=True)
    state.apply(batch_of(state, state.positions, [file((0, 15, 20))], now_ms=1, fail=False))
    assert state.gaps == [LakeGap("orders", "g0", 0, 10, 15)]
    assert state.positions[KEY].queues[0] == 20


def test_a_queue_that_came_later_begins_at_0() -> None:
    state = after(file((0, 0, 10)))
    with pytest.raises(SparkJobError, match="offsets 0 to 4"):
        batch_of(state, state.positions, [file((5, 4, 6))], now_ms=1, fail=True)
    commit = batch_of(state, state.positions, [file((5, 0, 6))], now_ms=1, fail=True)
    assert commit.positions[KEY].queues[5] == 6


def test_names_of_topics_stay_one_folder() -> None:
    assert replace(file((0, 0, 1)), topic="%RETRY%a|b").folder.startswith("topic=%25RETRY%25a%7Cb/day=")


def test_a_commit_comes_back_as_it_was_written() -> None:
    state = after(file((0, 0, 10), (1, 0, 3)), file((0, 12, 14)))
    snapshot = state.snapshot()
    found = decode_commit(encode_commit(snapshot), "x")
    assert found == snapshot
    again = LakeState(found)
    assert (again.number, again.positions, again.gaps) == (2, state.positions, state.gaps)
    assert {path: each.ranges for path, each in again.files.items()} == {
        path: each.ranges for path, each in state.files.items()
    }


def test_every_flipped_bit_of_a_manifest_is_noticed() -> None:
    data = encode_commit(after(file((0, 0, 10))).snapshot())
    for at in range(len(data)):
        broken = bytearray(data)
        broken[at] ^= 1 << at % 8
        with pytest.raises(SparkJobError, match="the manifest of the lake is damaged"):
            decode_commit(bytes(broken), "7.json")
    for size in range(len(data)):
        with pytest.raises(SparkJobError, match="its checksum is wrong"):
            decode_commit(data[:size], "7.json")


def sealed(**changes: object) -> bytes:
    fields = json.loads(encode_commit(after(file((0, 0, 10))).snapshot()).partition(b"\n")[0])
    line = json.dumps({**fields, **changes}).encode()
    return line + f"\n{crc32c(line):08x}\n".encode()


def test_what_is_sealed_and_no_commit_is_refused() -> None:
    sample = json.loads(sealed().partition(b"\n")[0])["add"][0]
    for changes in (
        {"v": "1"}, {"kind": "other"}, {"number": -1}, {"number": True},
        {"add": [{**sample, "path": "../x"}]},
        {"add": [{**sample, "path": ""}]}, {"add": [{**sample, "ranges": []}]}, {"gaps": [3]},
        {"add": [{**sample, "path": "/etc/x"}]}, {"add": [{**sample, "ranges": [["g0", 0, 5, 5, "00"]]}]},
        {"add": [{**sample, "hour": 1 << 40}]}, {"positions": {"v": 1, "topics": 4}},
    ):  # fmt: skip
        with pytest.raises(SparkJobError):
            decode_commit(sealed(**changes), "7.json")
    with pytest.raises(SparkJobError, match="newer version of LedgerMQ"):
        decode_commit(sealed(v=2), "7.json")


def test_commits_that_do_not_follow_are_refused() -> None:
    state = after(file((0, 0, 10)))
    path = next(iter(state.files))
    for commit in (
        LakeCommit(3, "batch", "ab", 1),
        LakeCommit(2, "batch", "other", 1),
        LakeCommit(2, "compaction", "ab", 1, remove=("nothing",)),
        LakeCommit(2, "compaction", "ab", 1, add=(replace(file((0, 0, 1)), path=path),)),
    ):
        with pytest.raises(SparkJobError, match="damaged"):
            after(file((0, 0, 10))).apply(commit)
