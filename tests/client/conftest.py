"""Runs the tests that are coroutine functions, each in an event loop of its own."""

from __future__ import annotations

import asyncio
import inspect

import pytest

_LIMIT_S = 120.0


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """Run an `async def` test to its end, and fail it when that takes too long."""
    if not inspect.iscoroutinefunction(pyfuncitem.obj):
        return None
    arguments = {name: pyfuncitem.funcargs[name] for name in pyfuncitem._fixtureinfo.argnames}
    asyncio.run(asyncio.wait_for(pyfuncitem.obj(**arguments), _LIMIT_S))
    return True
