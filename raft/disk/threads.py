"""Blocking work in a thread that is waited for, whatever becomes of the task that asked for it.

A cancelled `asyncio.to_thread` leaves its thread running: it would go on writing behind a lock that is given back.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from typing import Any, TypeVar

T = TypeVar("T")


async def in_thread(work: Callable[[], T], undo: Callable[[T], object] | None = None) -> T:
    """Return what `work` returns. When this is cancelled, the thread ends first; `undo` (in a thread, too) takes back
    a result that nobody takes."""
    running = asyncio.ensure_future(asyncio.to_thread(work))
    try:
        return await asyncio.shield(running)
    except asyncio.CancelledError:
        await _ended(running)
        if running.exception() is None and undo is not None:
            undoing = asyncio.ensure_future(asyncio.to_thread(undo, running.result()))
            await _ended(undoing)
            undoing.result()
        raise


async def _ended(running: asyncio.Future[Any]) -> None:
    """Wait for a thread; who is cancelled once more (a fault, then the stop of the node) waits for it all the same."""
    while not running.done():
        with suppress(asyncio.CancelledError):
            await asyncio.wait([running])
