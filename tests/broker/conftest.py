"""Runs each test that is a coroutine function in a loop of its own, in which its fixtures are opened."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from typing import Any

import pytest

TIMEOUT_S = 120.0


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    if not inspect.iscoroutinefunction(pyfuncitem.obj):
        return None
    names = inspect.signature(pyfuncitem.obj).parameters
    asyncio.run(_run(pyfuncitem.obj, {name: pyfuncitem.funcargs[name] for name in names}))
    return True


async def _run(test: Callable[..., Awaitable[None]], given: dict[str, Any]) -> None:
    """Run a test; enter each fixture that is an asynchronous context manager, and pass on its value."""
    async with asyncio.timeout(TIMEOUT_S), AsyncExitStack() as stack:
        for name, value in given.items():
            if isinstance(value, AbstractAsyncContextManager):
                given[name] = await stack.enter_async_context(value)
        await test(**given)
