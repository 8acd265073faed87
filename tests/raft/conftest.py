"""Coroutine tests: each runs on an event loop of its own, on which its fixtures are closed too."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Iterator
from pathlib import Path

import pytest

from .node_cluster import Cluster


def pytest_configure(config: pytest.Config) -> None:
    """Register the marker of the fixture `cluster`."""
    config.addinivalue_line("markers", "cluster(*names, **settings): members and settings of `cluster`")


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """Run a test that is a coroutine."""
    if not inspect.iscoroutinefunction(pyfuncitem.obj):
        return None
    runner: asyncio.Runner = pyfuncitem._request.getfixturevalue("runner")
    runner.run(
        pyfuncitem.obj(**{name: pyfuncitem.funcargs[name] for name in pyfuncitem._fixtureinfo.argnames})
    )
    return True


@pytest.fixture
def runner() -> Iterator[asyncio.Runner]:
    """Return the event loop of a test."""
    with asyncio.Runner() as made:
        yield made


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
