"""The fixture `cluster`: Raft nodes on the event loop of a test."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

from .node_cluster import Cluster


def pytest_configure(config: pytest.Config) -> None:
    """Register the marker of the fixture `cluster`."""
    config.addinivalue_line("markers", "cluster(*names, **settings): members and settings of `cluster`")


@pytest.fixture
def cluster_class() -> type[Cluster]:
    """Return what `cluster` is in a module."""
    return Cluster


@pytest.fixture
def cluster(
    tmp_path: Path, runner: asyncio.Runner, cluster_class: type[Cluster], request: pytest.FixtureRequest
) -> Iterator[Cluster]:
    """Return nodes that are not started yet. They are killed at the end."""
    marker = request.node.get_closest_marker("cluster")
    names, settings = (marker.args, marker.kwargs) if marker is not None else ((), {})
    made = cluster_class(tmp_path, *([list(names)] if names else []), **settings)
    yield made
    runner.run(made.close())
