"""The key index against a scan: after damage, deletion, restart it finds all and says what it skipped."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from ledgermq.broker.reading import key_index
from ledgermq.broker.reading.key_hashes import ItemForm, id_hash, key_hash
from ledgermq.broker.reading.key_index import KeyIndex
from ledgermq.broker.reading.key_run import WRITING
from ledgermq.proto.entry import EntryKind
from ledgermq.proto.record import pack_message_id
from ledgermq.raft.errors import DamagedLogError

from ..key_checks import FORM, check, files_of, filled, hashes, run
from ..key_log import SEGMENT, MessageLog, Stored, indexed, searched, settled


def expected(node: MessageLog, hashed: int, begin: int, end: int, form: ItemForm = FORM) -> list[int]:
    """Return by a scan which records have the hash, as far as an item has bits of it; the newest first."""
    found = [
        each.offset
        for each in node.stored
        if begin <= each.offset < end
        for other in hashes(node, each)
        if other >> form.place_bits == hashed >> form.place_bits
    ]
    return sorted(found, reverse=True)


@pytest.mark.parametrize("seed", range(24))
async def test_random_logs_give_what_a_scan_gives(seed: int, tmp_path: Path) -> None:
    """Segments roll, parts are written, nodes restart, retention deletes; short hashes collide."""
    rng = random.Random(seed)
    form = rng.choice((FORM, ItemForm(62), ItemForm(58)))
    options: dict[str, Any] = {"form": form, "part_items": rng.choice((3, 20, 1000))}
    node = MessageLog()
    topics = [node.topic("orders", 2), node.topic("payments", 1)]

    def send() -> None:
        for _ in range(rng.randint(1, 30)):
            if rng.random() < 0.2:
                node.apply(kind=EntryKind.NOOP)
            sections = [
                (topic, 0, [
                    (f"m{rng.randrange(1 << 30)}", rng.sample(("a", "b", "c", "d"), rng.randint(0, 3)))
                    for _ in range(rng.choice((1, 1, 2, 5)))
                ])
                for topic in rng.sample(topics, rng.randint(1, 2))
            ]  # fmt: skip
            node.send_entry(*sections, pad=rng.choice((0, 17, 300)))

    begin = 0
    for _ in range(4):
        send()
        async with indexed(node.log, tmp_path / "keyindex", **options) as index:
            await settled(index)
            send()
            await settled(index)
            newest = len(node.log.segments()) - 1
            if newest > 1 and rng.random() < 0.5:
                node.log.drop_before(node.log.first_offset // SEGMENT + rng.randint(1, newest))
                begin = node.log.first_offset
                await wake(index)
            alive = [each for each in node.stored if each.offset >= begin]
            for each in rng.sample(alive, min(len(alive), 12)):
                for hashed in hashes(node, each):
                    low, high = sorted((rng.randint(begin, node.end), rng.randint(begin, node.end)))
                    for bounds in ((begin, node.end), (low, high)):
                        got = await searched(index, hashed, *bounds)
                        assert got == expected(node, hashed, *bounds, form)
            absent = id_hash(pack_message_id("nobody sent this")[0])
            got = await searched(index, absent, begin, node.end)
            assert got == expected(node, absent, begin, node.end, form)


async def wake(index: KeyIndex) -> None:
    """Let it look for what retention deleted."""
    index._wanted.set()
    while index._wanted.is_set():  # noqa: ASYNC110 (its task has its turn)
        await asyncio.sleep(0)
    await index._in(index._worker, lambda: None)
    await asyncio.sleep(0)
    await index._in(index._finished._worker, lambda: None)


async def test_the_newest_come_first_and_no_more_than_asked_for(tmp_path: Path) -> None:
    node, topic = filled()
    async with indexed(node.log, tmp_path, part_items=20) as index:
        await settled(index)
        everything = expected(node, key_hash(topic, "all"), 0, node.end)
        assert len(everything) == 60
        for at_most in (1, 7, 31, 60, 100):
            assert (await index.search(key_hash(topic, "all"), 0, node.end, at_most)).offsets == (
                everything[:at_most]
            )
        assert await searched(index, key_hash(topic, "all"), 0, 0) == []
        assert await searched(index, key_hash(topic + 1, "all"), 0, node.end) == []  # of another topic


async def test_what_is_not_taken_yet_is_said_to_be_unsearched_and_found_after_catching_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(key_index, "FOLLOW_INTERVAL", 60.0)
    node, _ = filled(5)
    async with indexed(node.log, tmp_path) as index:
        first = id_hash(pack_message_id("id-0")[0])
        assert (await index.search(first, 0, node.end, 9)).unsearched == node.end
        await index.catch_up(30)
        assert len(await searched(index, first, 0, node.end)) == 1
        middle = node.end
        node.send(1, 0, ("late", []))
        late = id_hash(pack_message_id("late")[0])
        found = await index.search(late, 0, node.end, 9)
        assert (found.offsets, found.unsearched) == ([], node.end - middle)
        await index.catch_up(30)
        assert len(await searched(index, late, 0, node.end)) == 1


async def test_a_restart_goes_on_where_the_files_end(tmp_path: Path) -> None:
    node, _ = filled()
    async with indexed(node.log, tmp_path, part_items=20) as index:
        await settled(index)
    reads = node.log.reads
    async with indexed(node.log, tmp_path, part_items=20) as index:
        await settled(index)
        await check(node, index)
    assert node.log.reads == reads, "nothing was read again"
    node.send(1, 0, ("more", ["all"]))
    async with indexed(node.log, tmp_path) as index:
        await settled(index)
        await check(node, index)
    assert node.log.reads == reads + 1


async def test_each_closed_segment_has_one_file_and_the_open_one_its_parts(tmp_path: Path) -> None:
    node, _ = filled()
    async with indexed(node.log, tmp_path, part_items=20) as index:
        await settled(index)
    starts = [info.start_offset for info in node.log.segments()]
    names = [path.name for path in files_of(tmp_path)]
    assert names[: len(starts) - 1] == [f"{start:020d}" for start in starts[:-1]]
    assert {name.split(".")[0] for name in names[len(starts) - 1 :]} == {f"{starts[-1]:020d}"}


async def test_no_damaged_byte_changes_an_answer(tmp_path: Path) -> None:
    """Each byte of a run and a part in turn: at once the right answer, or one that says what is missing."""
    node = MessageLog()
    topic = node.topic(queues=1)
    for i in range(13):
        node.send(topic, 0, (f"id-{i}", ["k"] * (i % 2)), pad=1000)
    folder = tmp_path / "keyindex"
    async with indexed(node.log, folder, part_items=4) as index:
        await settled(index)
    whole, part = files_of(folder)[0], files_of(folder)[-1]
    targets = [node.stored[0], node.stored[3], node.stored[-1]]
    for path in (whole, part):
        raw = path.read_bytes()
        for at in range(len(raw)):
            path.write_bytes(raw[:at] + bytes([raw[at] ^ 1 << at % 8]) + raw[at + 1 :])
            noticed = await damage_is_noticed(node, folder, targets)
            assert noticed, f"byte {at} of {path.name}"
            assert path.read_bytes() == raw, "made again as it was"


async def damage_is_noticed(node: MessageLog, folder: Path, targets: Sequence[Stored]) -> bool:
    """Look everything up, before and after it is made again; tell whether something had to be."""
    reads = node.log.reads
    async with indexed(node.log, folder, part_items=4) as index:
        await index.catch_up(30)
        for settled_before in (False, True):
            if settled_before:
                await settled(index)
            for each in targets:
                for hashed in hashes(node, each):
                    found = await index.search(hashed, 0, node.end, 1000)
                    right = expected(node, hashed, 0, node.end)
                    assert found.offsets == right or (found.unsearched and set(found.offsets) < set(right))
    return node.log.reads > reads


@pytest.mark.parametrize("keep", [0, 79, 80, 95, -1])
async def test_a_file_of_another_length_is_made_again(keep: int, tmp_path: Path) -> None:
    node, _ = filled(30)
    async with indexed(node.log, tmp_path) as index:
        await settled(index)
    whole = files_of(tmp_path)[0]
    raw = whole.read_bytes()
    whole.write_bytes(raw[:keep] if keep >= 0 else raw + b"\0")
    async with indexed(node.log, tmp_path) as index:
        await settled(index)
        await check(node, index)
    assert whole.read_bytes() == raw


async def test_entries_without_messages_take_no_items(tmp_path: Path) -> None:
    node = MessageLog()
    async with indexed(node.log, tmp_path, part_items=1) as index:
        for i in range(400):
            node.apply(kind=EntryKind.NOOP)
            if i == 200:
                node.send(node.topic(queues=1), 0, ("lonely", []))
            await index.catch_up(30)
        assert index.entries_behind == 0
        await settled(index)
        await check(node, index)


async def test_files_that_vanish_while_the_node_runs_are_made_again(tmp_path: Path) -> None:
    node, _ = filled()
    async with indexed(node.log, tmp_path, part_items=20) as index:
        await settled(index)
        for path in files_of(tmp_path):
            path.unlink(missing_ok=True)  # parts of a run that was made just now go by themselves
        found = await index.search(hashes(node, node.stored[0])[0], 0, node.end, 9)
        assert found.unsearched
        await settled(index)
        await check(node, index)
        assert index.damaged


async def test_files_of_another_log_are_not_believed(tmp_path: Path) -> None:
    """The same segments, the same indexes: but the checksums of the entries differ."""
    one, topic = filled()
    other = MessageLog()
    assert other.topic(queues=2) == topic
    for i in range(60):
        other.send_entry(
            (topic, 0, [(f"it-{i}", [f"k{i % 7}"])]), (topic, 1, [(f"x-{i}", ["all"]), (f"y-{i}", [])])
        )
    assert [each.offset for each in one.stored] == [each.offset for each in other.stored]
    async with indexed(one.log, tmp_path, part_items=20) as index:
        await settled(index)
    async with indexed(other.log, tmp_path, part_items=20) as index:
        await settled(index)
        await check(other, index)
        assert await searched(index, hashes(one, one.stored[0])[0], 0, other.end) == []


async def test_what_a_crash_left_behind_is_deleted(tmp_path: Path) -> None:
    node, _ = filled()
    async with indexed(node.log, tmp_path) as index:
        await settled(index)
    names = files_of(tmp_path)
    (tmp_path / f"{names[0].name}{WRITING}").write_bytes(names[0].read_bytes())
    (tmp_path / "00000000000000999424").write_bytes(names[0].read_bytes())
    async with indexed(node.log, tmp_path) as index:
        await settled(index)
        await check(node, index)
    assert [path.name for path in files_of(tmp_path)] == [path.name for path in names]


async def test_retention_deletes_the_files_with_the_segments(tmp_path: Path) -> None:
    node, _ = filled()
    async with indexed(node.log, tmp_path) as index:
        await settled(index)
        before = files_of(tmp_path)
        node.log.drop_before(2)
        await wake(index)
        assert files_of(tmp_path) == before[2:]
        await check(node, index, begin=node.log.first_offset)


async def test_damaged_log_bytes_are_repaired_before_they_are_taken(tmp_path: Path) -> None:
    node, _ = filled()
    node.log.damaged = {9, 40}

    async def repair(error: DamagedLogError) -> bool:
        node.log.damaged.discard(min(node.log.damaged))
        return True

    async with indexed(node.log, tmp_path, repair=repair) as index:
        await settled(index)
        await check(node, index)
    assert not node.log.damaged


def test_memory_holds_no_more_than_a_part_and_a_slice(tmp_path: Path) -> None:
    """A3.18: what an index takes of memory does not grow with the log."""
    node, topic = filled(3)
    most = 0

    async def scenario() -> None:
        nonlocal most
        async with indexed(node.log, tmp_path, part_items=50) as index:
            for i in range(300):
                node.send(topic, 0, *((f"m{i}-{j}", ["k"]) for j in range(10)))
                await index.catch_up(30)
                assert index._tail is not None
                most = max(most, len(index._tail.content.items))
            await settled(index)
            assert len(index._finished.runs) > 30
            assert index._builds.reader._bytes <= 8 << 20

    run(scenario)
    assert most < 50 + 20
