"""The background writing of the state: what it keeps and what it deletes. No timers: checkpoints are asked for."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from ledgermq.broker.checkpoint_store import CheckpointStore
from ledgermq.broker.commands import DeleteTopic
from ledgermq.broker.consume_queue_files import ConsumeQueueFiles
from ledgermq.broker.effects import Effects
from ledgermq.broker.state_writer import StateWriter
from ledgermq.raft.files import RealFileSystem

from .entry_log import Node


def writer_of(node: Node, data: Path) -> StateWriter:
    disk = RealFileSystem()
    store = CheckpointStore(disk, data / "checkpoint", ConsumeQueueFiles(disk, data / "consumequeue"))

    def no_fault(error: OSError) -> None:
        raise error

    return StateWriter(node.state, store, lambda: node.log.end, no_fault)


def files_in(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())


def test_a_clean_stop_leaves_a_checkpoint_of_everything_applied(tmp_path: Path) -> None:
    async def run() -> None:
        node = Node()
        writer = writer_of(node, tmp_path)
        writer.start()
        node.fill(node.topic(), 0, 5)
        await writer.stop()
        assert files_in(tmp_path) == [f"checkpoint/{2:020d}", f"consumequeue/orders@1/0/{0:020d}"]
        again = writer_of(Node(), tmp_path)
        assert again.floor == 2
        await again.stop()

    asyncio.run(run())


def test_a_stop_without_news_writes_nothing(tmp_path: Path) -> None:
    async def run() -> None:
        writer = writer_of(Node(), tmp_path)
        writer.start()
        await writer.stop()
        assert files_in(tmp_path) == []

    asyncio.run(run())


def test_files_of_a_deleted_topic_go_when_no_kept_checkpoint_counts_on_them(tmp_path: Path) -> None:
    async def run() -> None:
        node = Node()
        writer = writer_of(node, tmp_path)
        writer.start()
        topic = node.topic()
        node.fill(topic, 0, 5)
        await writer.checkpoint()
        effects: Effects = node.command(DeleteTopic(topic))
        writer.on_effects(effects)
        for kept in (1, 1, 0):
            assert len(files_in(tmp_path / "consumequeue")) == kept
            await writer.checkpoint()
            node.topic(name=f"t{node.state.applied_index}")
        await writer.stop()

    asyncio.run(run())


def test_a_full_disk_at_the_stop_is_told_and_not_raised(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def run() -> None:
        node = Node()
        writer = writer_of(node, tmp_path)
        writer.start()
        node.topic()

        def full(*_: object) -> int:
            raise OSError(28, "No space left on device")

        monkeypatch.setattr(CheckpointStore, "run", full)
        await writer.stop()
        assert "last checkpoint not written" in caplog.text

    asyncio.run(run())
