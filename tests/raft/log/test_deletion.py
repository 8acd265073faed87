"""Deletion of segments by retention: the new beginning is durable first, and nothing else is deleted."""

from __future__ import annotations

from pathlib import Path

import pytest

from ledgermq.raft.types import LogIndex
from tests.power_cut import Keep

from ..folder.test_recovery import filled
from ..log_rig import DATA, LogRig, reopen
from ..simulated_disk import SimulatedDisk, crashes, power_back


def test_retention_makes_room_on_a_disk_that_is_completely_full() -> None:
    rig = filled(60)
    rig.disk.capacity = rig.disk.used
    rig.log.delete_segments_before(LogIndex(40))
    rig.storage.run_background()
    assert rig.disk.used < rig.disk.capacity
    assert reopen(rig.disk.killed(), rig).log.first_index == rig.log.first_index > 1


def test_the_new_beginning_is_durable_before_the_first_segment_is_unlinked() -> None:
    rig = filled(60)
    done: list[tuple[str, Path]] = []
    rig.disk.on_step = lambda number, operation, path: done.append((operation, path))
    rig.log.delete_segments_before(LogIndex(40))
    assert rig.log.deleting > 1
    rig.storage.run_background()
    assert rig.log.deleting == 0
    unlinked = [place for place, (operation, _) in enumerate(done) if operation == "unlink"]
    synced = [place for place, step in enumerate(done) if step == ("sync_directory", DATA)]
    assert synced and synced[0] < unlinked[0], done


@pytest.mark.parametrize("keep", list(Keep))
def test_a_power_cut_at_any_step_of_a_deletion_loses_nothing_else_and_is_finished_at_the_next_start(
    keep: Keep,
) -> None:
    rigs: list[LogRig] = []
    begins = set()

    def made() -> SimulatedDisk:
        rigs.append(filled(60))
        return rigs[-1].disk

    def delete(disk: SimulatedDisk) -> None:
        rigs[-1].log.delete_segments_before(LogIndex(40))
        rigs[-1].storage.run_background()

    for step, disk in enumerate(crashes(made, delete, power_back(keep)), 1):
        rig = rigs[-1]
        after = reopen(disk, rig)
        begins.add(after.log.first_index)
        assert after.log.first_index in (1, rig.log.first_index), f"step {step}"
        after.entries = rig.entries
        assert after.read_all() == after.retained(), f"step {step}"
        for folder in ("commitlog", "entryindex"):
            left = [int(path.name) for path in after.disk.names if path.parent == DATA / folder]
            assert min(left, default=after.log.first_offset) >= after.log.first_offset, f"step {step}"
    assert begins == {1, rigs[-1].log.first_index}, "cuts before and behind the manifest"
