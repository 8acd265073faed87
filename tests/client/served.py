"""A fake cluster in a thread of its own, for the synchronous clients and the command line, which block."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from typing import Any, Generic, TypeVar

from .fakes import FakeCluster

C = TypeVar("C", bound=FakeCluster)
T = TypeVar("T")

_PATIENCE_S = 120


class Served(Generic[C]):
    """A running cluster and the loop it lives on."""

    def __init__(self, cluster: C, loop: asyncio.AbstractEventLoop) -> None:
        self.cluster = cluster
        self.address = cluster.address
        self._loop = loop

    def run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine on the cluster's loop."""
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result(_PATIENCE_S)

    def call(self, function: Callable[..., T], *arguments: Any) -> T:
        """Call a function on the cluster's loop."""

        async def work() -> T:
            return function(*arguments)

        return self.run(work())


@contextmanager
def served(make: Callable[[], C]) -> Iterator[Served[C]]:
    """Run the cluster that `make` builds until the block ends."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, name="fake-cluster", daemon=True)
    thread.start()

    async def enter() -> C:
        cluster = make()
        await cluster.__aenter__()
        return cluster

    try:
        cluster = asyncio.run_coroutine_threadsafe(enter(), loop).result(_PATIENCE_S)
        running = Served(cluster, loop)
        try:
            yield running
        finally:
            running.run(cluster.__aexit__(None, None, None))
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join(_PATIENCE_S)
        loop.close()
