"""Threads for blocking work that are always awaited, even if the task that started them is cancelled.

A cancelled `asyncio.to_thread` leaves its thread running, which would go on writing after its lock was
released.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from typing import Any, TypeVar

T = TypeVar("T")


async def in_thread(work: Callable[[], T], undo: Callable[[T], object] | None = None) -> T:
    """Return the result of `work`. If this is cancelled, wait for the thread to end first.

    `undo` (also run in a thread) then takes back the unused result.
    """
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
    """Wait for a thread, even if cancelled again meanwhile (by a fault, then by the stop of the node)."""
    while not running.done():
        with suppress(asyncio.CancelledError):
            await asyncio.wait([running])
