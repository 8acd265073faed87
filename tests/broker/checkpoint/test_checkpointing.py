"""Schedule of checkpoints in the background, and the files deleted with them. No timer runs."""

from __future__ import annotations

import asyncio
import errno
import logging
import os
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest

from ledgermq.broker.checkpoint import schedule as checkpointing
from ledgermq.broker.checkpoint.schedule import Checkpointing
from ledgermq.broker.checkpoint.store import CheckpointStore
from ledgermq.broker.errors import UnknownCommandError
from ledgermq.broker.reading.consume_queue_files import ConsumeQueueFiles
from ledgermq.broker.state.commands import DeleteTopic
from ledgermq.broker.state.consume_queue import UNIT_DTYPE, UNITS_PER_FILE
from ledgermq.broker.state.machine import BrokerState
from ledgermq.proto.record import SectionKind, encode_command, encode_section
from ledgermq.raft.disk.files import RealFile, RealFileSystem

from ..entry_log import Node, records, section


class Rig:
    """A node with its checkpoints; its log is durable up to `durable`. Its disk may fail (`failed`)."""

    def __init__(
        self,
        data: Path,
        state: BrokerState | None = None,
        store: type[CheckpointStore] = CheckpointStore,
        disk: RealFileSystem | None = None,
    ) -> None:
        self.node = Node(state)
        self.state = self.node.state
        self.store = store_in(data, store, disk)
        self.durable = 1 << 60
        self.rebuild = None
        self.failed: list[str] = []
        self._may_fail = disk is not None
        replica: Any = self
        self.fault: str | None = None
        self.work = Checkpointing(
            replica, self.store, durable_index=lambda: self.durable, log_end=lambda: self.node.log.end,
            on_failed=self._on_failed, fault=lambda: self.fault,
        )  # fmt: skip
        self.work.start()

    def _on_failed(self, reason: str) -> None:
        assert self._may_fail, reason
        self.fault = reason
        self.failed.append(reason)


def store_in(
    data: Path, kind: type[CheckpointStore] = CheckpointStore, disk: RealFileSystem | None = None
) -> CheckpointStore:
    disk = disk or RealFileSystem()
    return kind(disk, data / "checkpoint", ConsumeQueueFiles(disk, data / "consumequeue"))


def files_in(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())


async def test_a_clean_stop_leaves_a_checkpoint_of_everything_applied(tmp_path: Path) -> None:
    rig = Rig(tmp_path)
    rig.node.fill(rig.node.topic(), 0, 5)
    await rig.work.stop()
    assert files_in(tmp_path) == [
        f"checkpoint/{2:020d}", "checkpoint/reserve", f"consumequeue/orders@1/0/{0:020d}",
    ]  # fmt: skip
    assert store_in(tmp_path).load().applied_index == 2


async def test_a_stop_writes_nothing_without_news_or_ahead_of_its_own_log(tmp_path: Path) -> None:
    await Rig(tmp_path).work.stop()
    rig = Rig(tmp_path)
    rig.node.topic()
    rig.durable = 0
    await rig.work.stop()
    assert files_in(tmp_path) == []


async def test_files_of_a_deleted_topic_go_when_no_kept_checkpoint_counts_on_them(tmp_path: Path) -> None:
    rig = Rig(tmp_path)
    topic = rig.node.topic()
    rig.node.fill(topic, 0, 5)
    await rig.work._checkpoint_if_changed()
    rig.work.on_effects(rig.node.command(DeleteTopic(topic)))
    assert store_in(tmp_path).load().topics.find("orders"), "a crash now starts with the topic and its files"
    for kept in (1, 1, 0):
        assert len(files_in(tmp_path / "consumequeue")) == kept
        await rig.work._checkpoint_if_changed()
        rig.node.topic(name=f"t{rig.state.applied_index}")
    await rig.work.stop()


async def test_many_units_are_written_before_the_next_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rig = Rig(tmp_path)
    rig.node.fill(rig.node.topic(), 0, 5)
    await rig.work._write_units()
    assert len(rig.state.queues.unwritten()) == 1
    monkeypatch.setattr(checkpointing, "UNITS_IN_MEMORY", 5)
    await rig.work._write_units()
    assert rig.state.queues.unwritten() == []
    await rig.work.stop()


async def test_queue_files_that_are_wholly_hidden_go_with_the_checkpoints_also_after_a_crash(
    tmp_path: Path,
) -> None:
    """A crash forgets which files were to go: the next start finds them by where the queues begin."""
    rig = Rig(tmp_path)
    topic = rig.node.topic()
    queue = rig.state.queues.named(topic, 0)
    rig.state.queues.append(queue, np.zeros(UNITS_PER_FILE + 10, UNIT_DTYPE))
    await rig.work.write_now()
    rig.work.on_effects(rig.node.trim((topic, 0, UNITS_PER_FILE + 5)))
    await rig.work.write_now()
    first = tmp_path / "consumequeue" / "orders@1" / "0" / f"{0:020d}"
    assert first.exists(), "the older checkpoint counts on it"
    await rig.work.stop()

    again = Rig(tmp_path, store_in(tmp_path).load())
    again.node.log = rig.node.log
    for number in range(2):
        assert first.exists() == (number == 0), "until the checkpoint before the trim is gone"
        again.node.topic(name=f"t{number}")
        await again.work.write_now()
    assert store_in(tmp_path).load().queue_begin(topic, 0) == UNITS_PER_FILE + 5
    await again.work.stop()


async def test_a_state_that_failed_in_the_middle_of_an_entry_is_never_written(tmp_path: Path) -> None:
    """The next start applies that entry again, perhaps with a build that knows its command."""
    rig = Rig(tmp_path)
    topic = rig.node.topic()
    await rig.work.write_now()
    rig.node.topic("b")
    unknown = encode_section(SectionKind.COMMANDS, [encode_command(999, 1, b"")], 1)
    with pytest.raises(UnknownCommandError):
        rig.node.apply(section(topic, 0, records(3), base=0), unknown)
    rig.fault = "state machine failed at entry 3"
    assert await rig.work.write_now() == 1
    await rig.work.stop()
    assert store_in(tmp_path).load().queue_end(topic, 0) == 0


class FailingSync(RealFileSystem):
    """From `armed` on, flushing a queue file fails once; the next flush would say that all is well."""

    armed = False

    def open(self, path: Path, *, create: bool = False, writable: bool = True) -> RealFile:
        return _FailingFile(self, path, super().open(path, create=create, writable=writable)._fd)


class _FailingFile(RealFile):
    def __init__(self, disk: FailingSync, path: Path, fd: int) -> None:
        super().__init__(path, fd)
        self._disk = disk

    def fdatasync(self) -> None:
        if self._disk.armed and "consumequeue" in self.path.parts:
            self._disk.armed = False
            raise OSError(errno.EIO, os.strerror(errno.EIO), str(self.path))
        super().fdatasync()


async def test_a_failed_flush_of_a_queue_file_ends_the_node_and_is_not_tried_again(tmp_path: Path) -> None:
    disk = FailingSync()
    rig = Rig(tmp_path, disk=disk)
    rig.node.fill(rig.node.topic(), 0, 5)
    disk.armed = True
    assert await rig.work.write_now() == 0
    assert len(rig.failed) == 1 and "this node stops" in rig.failed[0]
    await rig.work.stop()
    assert not [name for name in files_in(tmp_path) if name.startswith("checkpoint/0")]


class FailingStore(CheckpointStore):
    """Cannot tell what is kept as long as there are `failures`."""

    failures: ClassVar[list[Exception]] = []

    @property
    def kept_index(self) -> int:
        if self.failures:
            raise self.failures.pop()
        return super().kept_index


async def test_a_look_that_fails_is_not_the_last(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """If the background task ended, the log would grow for ever without a report."""
    monkeypatch.setattr(checkpointing, "_LOOK_INTERVAL", 0.0)
    with caplog.at_level(logging.ERROR):
        rig = Rig(tmp_path, store=FailingStore)
        rig.node.topic()
        FailingStore.failures = [RuntimeError("a defect"), OSError(errno.EMFILE, "Too many open files")]
        while rig.work.floor < 2:
            rig.work._wanted = True
            await asyncio.sleep(0)
        await rig.work.stop()
    assert "checkpoint failed" in caplog.text
