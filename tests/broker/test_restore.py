"""Folders from dumps: the choice of the dump, refusals, and no folder before all of it is whole."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from ledgermq.broker import restore
from ledgermq.broker.restore import Limit
from ledgermq.raft.disk.files import DiskUse, RealFileSystem
from ledgermq.raft.errors import DataFolderError
from ledgermq.raft.folder.storage import StorageConfig, open_storage
from ledgermq.raft.log.identity import Identity, is_new, read_identity
from ledgermq.raft.types import LogIndex, NodeId
from tests.spark_jobs.dump_maker import Log, flip_bit, make_dumps, make_log, take_dump

NODES = ("n1", "n2", "n3")


def run(tmp_path: Path, *flags: object, dumps: tuple[str, ...] = ("dumps",), to: str = "new") -> int:
    folders = [str(tmp_path / name) for name in dumps]
    return restore.main([*folders, "--data", str(tmp_path / to), *map(str, flags)])


def opened(folder: Path, log: Log) -> tuple[Identity, list[tuple[int, int]]]:
    """Open a folder as a node does; return whose it is, and (index, checksum) of its entries."""
    identity = read_identity(RealFileSystem(), folder / "identity", folder.name)
    config = StorageConfig(
        data_dir=folder, cluster_id="local", group=identity.group, node_id=identity.node_id,
        segment_size=log.segment_size, read_threads=0,
    )  # fmt: skip
    storage = open_storage(config, RealFileSystem())
    try:
        assert is_new(storage.identity, storage.hard_state, storage.log.last_index), (
            "it votes before it met the others"
        )
        assert storage.hard_state.term > storage.log.last_term
        headers = [storage.log.header_nowait(LogIndex(i)) for i in range(1, storage.log.last_index + 1)]
        return storage.identity, [(header.index, header.crc) for header in headers if header is not None]
    finally:
        storage.close(clean=False)


def entries(log: Log, count: int) -> list[tuple[int, int]]:
    return [(header.index, header.crc) for header in log.entries[:count]]


def test_every_node_gets_the_whole_log_and_a_new_group(tmp_path: Path) -> None:
    log = make_dumps(tmp_path / "dumps")
    assert run(tmp_path) == 0
    found = {name: opened(tmp_path / "new" / name, log) for name in NODES}
    assert all(held == entries(log, len(log.entries)) for _, held in found.values())
    identities = [identity for identity, _ in found.values()]
    assert len({each.group_id for each in identities}) == 1 and identities[0].group_id
    assert len({each.incarnation for each in identities}) == 3
    assert [each.node_id for each in identities] == list(NODES)


@pytest.mark.parametrize("by_time", [False, True])
def test_what_was_written_behind_the_target_is_left_out(
    tmp_path: Path, by_time: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    log = make_dumps(tmp_path / "dumps")
    target = log.entries[29]
    flags = ("--to-time", target.timestamp) if by_time else ("--to-index", 30)
    count = (
        max(header.index for header in log.entries if header.timestamp <= target.timestamp) if by_time else 30
    )
    assert run(tmp_path, *flags, "--nodes", "a=host:1,b", "--group", "g7") == 0
    identity, held = opened(tmp_path / "new" / "a", log)
    assert (identity.group, set(identity.members), held) == ("g7", {"a", "b"}, entries(log, count))
    out = capsys.readouterr().out
    assert f"up to entry {count}" in out and f"Left out: {len(log.entries) - count} entries" in out
    assert "--peers a=host:1,b=HOST:20911" in out


def test_what_was_found_and_made_is_told_to_programs(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    log = make_dumps(tmp_path / "dumps")
    last = log.entries[29]
    flip_bit(tmp_path / "dumps" / "n3", log.entries[9].physical_offset + 40)
    assert restore.main([str(tmp_path / "dumps"), "--show", "--to-index", "30", "--json"]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert {each["node"]: each["last_index"] for each in shown["dumps"]} == dict.fromkeys(
        NODES, len(log.entries)
    )
    verified = {
        "last_index": 30, "last_term": last.term, "last_time_ms": last.timestamp, "damaged_nodes": ["n3"],
    }  # fmt: skip
    assert verified.items() <= shown.items() and (shown["problems"], shown["events"]) == ([], [])

    assert run(tmp_path, "--to-index", "30", "--json") == 0
    made = json.loads(capsys.readouterr().out)
    record = json.loads((tmp_path / "new" / "restored.json").read_text())
    assert verified.items() <= made.items() and record.items() <= made.items()
    assert (made["data"], made["entries_left_out"]) == (str(tmp_path / "new"), len(log.entries) - 30)
    assert made["entries_perhaps_never_confirmed"] == 0


def test_a_group_of_one_is_restored_too(tmp_path: Path) -> None:
    log = make_dumps(tmp_path / "dumps")
    assert run(tmp_path, "--nodes", "n1") == 0
    assert opened(tmp_path / "new" / "n1", log)[1] == entries(log, len(log.entries))


def test_damage_in_one_dump_is_read_from_another(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    log = make_dumps(tmp_path / "dumps")
    flip_bit(tmp_path / "dumps" / "n3", log.entries[10].physical_offset + 70)
    flip_bit(tmp_path / "dumps" / "n2", log.entries[20].physical_offset + 70)
    (tmp_path / "dumps" / "n1" / "commitlog" / f"{0:020d}").unlink()
    assert run(tmp_path) == 0
    assert opened(tmp_path / "new" / "n2", log)[1] == entries(log, len(log.entries))
    assert "another dump was whole there" in capsys.readouterr().out


def test_damage_in_all_dumps_is_refused_and_it_is_said_how_far_one_can_go(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    log = make_dumps(tmp_path / "dumps")
    for name in NODES:
        flip_bit(tmp_path / "dumps" / name, log.entries[40].physical_offset + 70)
    assert run(tmp_path) == 1
    assert "--to-index 40" in capsys.readouterr().err
    assert sorted(path.name for path in tmp_path.iterdir() if path.name.startswith("new")) == []
    assert run(tmp_path, "--to-index", 40) == 0
    assert opened(tmp_path / "new" / "n1", log)[1] == entries(log, 40)


@pytest.mark.parametrize("flags", [(), ("--to-index", 50)])
def test_dumps_that_disagree_are_refused(
    tmp_path: Path, flags: tuple[object, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    """Also when the target is below the commit points: the histories fork at entry 45."""
    take_dump(make_log(), tmp_path / "dumps", "n1")
    take_dump(make_log(fork_at=45), tmp_path / "dumps", "n2")
    assert run(tmp_path, *flags) == 1
    assert "the dumps disagree" in capsys.readouterr().err
    assert not (tmp_path / "new").exists()
    assert run(tmp_path, *flags, dumps=("dumps/n2",)) == 0, "one dump alone is the person's decision"


def test_dumps_from_before_and_after_a_restore_are_told_apart(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for node, fork, ids in (("n1", 0, ("06", [])), ("n2", 45, ("07", ["06"]))):
        folder = take_dump(make_log(fork_at=fork) if fork else make_log(), tmp_path / "dumps", node)
        fields = json.loads((folder / "manifest.json").read_text())
        fields |= dict(zip(("group_id", "former_group_ids"), ids, strict=True))
        (folder / "manifest.json").write_text(json.dumps(fields))
    assert run(tmp_path) == 1
    err = capsys.readouterr().err
    assert "before this broker group was restored or recovered" in err
    assert f"{6:016x}" in err and f"{7:016x}" in err
    assert run(tmp_path, dumps=("dumps/n2",)) == 0


def test_the_dump_that_reaches_furthest_counts(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    log = make_log()
    take_dump(make_log(50), tmp_path / "dumps", "n1")
    take_dump(
        log, tmp_path / "dumps", "n2", commit=40
    )  # of a stopped node: it does not know what is committed
    assert run(tmp_path) == 0
    assert opened(tmp_path / "new" / "n1", log)[1] == entries(log, 60)
    assert "10 entries at its end may never have been confirmed" in capsys.readouterr().out


@pytest.mark.parametrize(
    "step", ["inspect", "restore_folder", "clone_folder", "_write_record", "_give_name", "_check_space"]
)
def test_a_restore_that_breaks_off_leaves_nothing_that_starts_and_can_be_repeated(
    tmp_path: Path, step: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = make_dumps(tmp_path / "dumps")

    def die(*args: object) -> None:
        raise MemoryError(step)

    def keep(path: Path, **options: object) -> None:
        """A killed process removes nothing."""

    with monkeypatch.context() as patch:
        patch.setattr(restore, step, die)
        patch.setattr("shutil.rmtree", keep)
        with pytest.raises(MemoryError):
            run(tmp_path)
    assert not (tmp_path / "new").exists()
    assert (tmp_path / "new.restoring").exists()
    assert run(tmp_path) == 0
    assert not (tmp_path / "new.restoring").exists()
    assert opened(tmp_path / "new" / "n3", log)[1] == entries(log, len(log.entries))


def test_a_folder_without_its_last_step_is_not_opened(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The identity is written last: until then the folder belongs to no node."""
    make_dumps(tmp_path / "dumps")
    monkeypatch.setattr(restore, "stopped_folder", _refuse)
    monkeypatch.setattr("shutil.rmtree", lambda path, **options: None)
    monkeypatch.setattr("ledgermq.raft.folder.restored_folder.write_identity", _refuse)
    with pytest.raises(MemoryError):
        run(tmp_path)
    folder = tmp_path / "new.restoring" / "n1"
    config = StorageConfig(
        data_dir=folder, cluster_id="local", group="g0", node_id=NodeId("n1"), segment_size=64 << 10
    )
    with pytest.raises(DataFolderError, match="identity is missing"):
        open_storage(config, RealFileSystem())


def _refuse(*args: object) -> None:
    raise MemoryError


def _fill(tmp_path: Path) -> None:
    (tmp_path / "new").mkdir()
    (tmp_path / "new" / "precious").touch()


def _occupy(tmp_path: Path) -> None:
    (tmp_path / "new.restoring").mkdir()
    (tmp_path / "new.restoring" / "precious").touch()


def _unfinished(tmp_path: Path) -> None:
    for name in NODES:
        (tmp_path / "dumps" / name / "manifest.json").unlink()


def _another_group(tmp_path: Path) -> None:
    take_dump(make_log(), tmp_path / "dumps", "n4", group="g1")


@pytest.mark.parametrize(
    ("spoil", "words"),
    [
        (_fill, "is there and not empty"),
        (_occupy, "is in the way"),
        (_unfinished, "was not finished"),
        (_another_group, "nothing to do with each other"),
    ],
)
def test_what_cannot_be_restored_is_refused_and_nothing_is_touched(
    tmp_path: Path, spoil: Callable[[Path], None], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    make_dumps(tmp_path / "dumps")
    spoil(tmp_path)
    before = sorted(str(path) for path in tmp_path.rglob("*"))
    assert run(tmp_path) == 1
    assert words in capsys.readouterr().err
    assert sorted(str(path) for path in tmp_path.rglob("*")) == before


@pytest.mark.parametrize(("limit", "chosen"), [
    (Limit(time_ms=100), "old"), (Limit(time_ms=5_500), "old"), (Limit(time_ms=9_000), "new"),
    (Limit(), "new"), (Limit(index=700), "old"), (Limit(index=9_000), "new"),
])  # fmt: skip
def test_a_dump_whose_state_is_later_than_the_target_does_not_count(limit: Limit, chosen: str) -> None:
    """Between the two nothing is left: retention deleted entries 1,001 to 4,999 before the second dump."""

    def log(name: str, first: int, end: int, state: int) -> Any:
        manifest = SimpleNamespace(
            first_index=first, first_offset=first, end_offset=end, is_restorable=True,
            state=SimpleNamespace(index=state) if state else None,
        )  # fmt: skip
        return SimpleNamespace(folder=name, manifest=manifest, base=SimpleNamespace(timestamp=first - 1))

    old, new = log("old", 1, 1_000, 0), log("new", 5_000, 10_000, 9_000)
    entries = [(SimpleNamespace(index=each, timestamp=each), b"") for each in range(5_000, 10_000)]
    dumped: Any = SimpleNamespace(logs=[new, old], entries=lambda begin: iter(entries))
    assert str(restore.choose_base(dumped, limit).folder) == chosen


def test_a_disk_without_room_is_told_before_anything_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    make_dumps(tmp_path / "dumps")
    monkeypatch.setattr(RealFileSystem, "disk_use", lambda self, path: DiskUse(1 << 40, 1 << 20))
    monkeypatch.setattr(restore, "_make_first", _refuse)
    assert run(tmp_path) == 1
    assert "has 1,048,576 bytes free, 3 nodes need up to" in capsys.readouterr().err
    assert not (tmp_path / "new").exists()
