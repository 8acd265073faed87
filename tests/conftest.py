"""How tests are shared out to the workers of pytest-xdist (tests/run_suites.py): what shares a fixture stays
together.

The unit of work is a file. Tests of processes and of the simulator last long and are few: each is a unit of
its own, unless its file shares a cluster (a fixture of the module). One worker alone has the Spark session of
a suite, one the containers, whose names and images are the same for all. Tests marked `long` begin first, so
that no worker waits for one at the end.
"""

from __future__ import annotations

import asyncio
import functools
import inspect
import logging
import signal
from collections.abc import Awaitable, Callable, Iterator
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from xdist.remote import Producer
from xdist.scheduler import LoadScopeScheduling

# A slow machine is no failure. `settings()` keeps what Hypothesis sets by itself where CI is set.
settings.register_profile("ledgermq", settings(), deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("ledgermq")

# The poller of grpc.aio reports a loop that an earlier test has closed to the loop of the test that runs now.
logging.getLogger("asyncio").addFilter(lambda record: "PollerCompletionQueue" not in record.getMessage())

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    # A shell starts what runs in its background so, and every process that a test interrupts would inherit
    # it.
    signal.signal(signal.SIGINT, signal.default_int_handler)

ROOT = Path(__file__).resolve().parent.parent
#: Limit of a test that is a coroutine.
COROUTINE_SECONDS = 120.0
ONE_BY_ONE = ("tests/integration/", "tests/e2e/", "tests/sim/")


def unit_of_work(nodeid: str) -> str:
    """Return what all tests have in common that must run in one process, one after the other."""
    path = nodeid.split("::", 1)[0]
    if path.startswith("tests/spark_jobs/"):
        return "tests/spark_jobs"
    text = _source(path)
    if "mark.docker" in text:
        return "containers"
    if "dump_and_check" in text:
        return "replica checks"
    is_shared = 'scope="module"' in text or 'scope="session"' in text
    return path if is_shared or not path.startswith(ONE_BY_ONE) else nodeid


@functools.cache
def _source(path: str) -> str:
    return (ROOT / path).read_text()


class UnitsOfWork(LoadScopeScheduling):  # type: ignore[misc]  # xdist has no types
    """Gives a free worker the next unit."""

    def _split_scope(self, nodeid: str) -> str:
        return unit_of_work(nodeid)


def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> UnitsOfWork:
    config.option.loadscopereorder = False  # the order is ours
    return UnitsOfWork(config, log)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Put what is marked `long` first; else the order stays."""
    items.sort(key=lambda item: item.get_closest_marker("long") is None)


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """Run a test that is a coroutine function to its end, in the event loop of its fixtures."""
    if not inspect.iscoroutinefunction(pyfuncitem.obj):
        return None
    runner: asyncio.Runner = pyfuncitem._request.getfixturevalue("runner")
    given = {name: pyfuncitem.funcargs[name] for name in pyfuncitem._fixtureinfo.argnames}
    runner.run(_run(pyfuncitem.obj, given))
    return True


async def _run(test: Callable[..., Awaitable[None]], given: dict[str, Any]) -> None:
    """Run a test. Enter each fixture that is an asynchronous context manager, and pass on its value."""
    async with asyncio.timeout(COROUTINE_SECONDS), AsyncExitStack() as stack:
        for name, value in given.items():
            if isinstance(value, AbstractAsyncContextManager):
                given[name] = await stack.enter_async_context(value)
        await test(**given)


@pytest.fixture
def runner() -> Iterator[asyncio.Runner]:
    """Return the event loop of a test that is a coroutine."""
    with asyncio.Runner() as made:
        yield made


@pytest.fixture(autouse=True)
def _own_interrupt_handler() -> Iterator[None]:
    """Give each test Python's own Ctrl-C: a loop that ran in this process before may have left its handler
    behind.
    """
    signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, signal.default_int_handler)
