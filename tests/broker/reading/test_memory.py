"""How much memory counts, seen through a copy of the kernel's files."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from ledgermq.broker.reading.memory import usable_memory

RAM = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def write(root: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    return root


def test_without_control_groups_the_machine_counts(tmp_path: Path) -> None:
    assert usable_memory(tmp_path) == RAM


@pytest.mark.parametrize(
    "files",
    [
        {"proc/self/cgroup": "0::/\n", "sys/fs/cgroup/memory.max": "1048576\n"},
        {"proc/self/cgroup": "0::/a/b\n", "sys/fs/cgroup/a/b/memory.max": "max\n",
         "sys/fs/cgroup/a/memory.max": "1048576\n"},
        {"proc/self/cgroup": "0::/of/the/host\n", "sys/fs/cgroup/memory.max": "1048576\n"},
        {"proc/self/cgroup": "5:cpu:/\n4:memory:/d/x\n",
         "sys/fs/cgroup/memory/memory.limit_in_bytes": "1048576\n"},
        {"proc/self/cgroup": "4:cpu,memory:/d\n",
         "sys/fs/cgroup/memory/d/memory.limit_in_bytes": "1048576\n"},
    ],
    ids=["container", "a group above", "path of the host", "version 1", "version 1, its own group"],
)  # fmt: skip
def test_the_smallest_limit_of_the_groups_counts(tmp_path: Path, files: dict[str, str]) -> None:
    assert usable_memory(write(tmp_path, files)) == 1 << 20


def test_no_limit_is_the_machine(tmp_path: Path) -> None:
    files = {
        "proc/self/cgroup": "0::/\n4:memory:/\n",
        "sys/fs/cgroup/memory.max": "max\n",
        "sys/fs/cgroup/memory/memory.limit_in_bytes": "9223372036854771712\n",
    }
    assert usable_memory(write(tmp_path, files)) == RAM
