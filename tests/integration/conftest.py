"""A broker group of three nodes of a test's own."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from .cluster import Cluster


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    with Cluster(tmp_path, nodes=3) as running:
        yield running


@pytest.fixture
def command_line(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let `ledgermq` find the cluster, and print wide tables."""
    monkeypatch.setenv("LEDGERMQ_NAMESERVER", cluster.nameserver)
    monkeypatch.setenv("COLUMNS", "200")
