"""Event loop of the command line and the synchronous clients, and waits for an event with a timeout.

Asynchronous clients use the loop of their caller.
"""

from __future__ import annotations

import asyncio
import importlib


def new_event_loop() -> asyncio.AbstractEventLoop:
    """Return uvloop's event loop if it is installed, else asyncio's."""
    try:
        loop: asyncio.AbstractEventLoop = importlib.import_module("uvloop").new_event_loop()
    except ModuleNotFoundError:
        return asyncio.new_event_loop()
    return loop


async def happens(event: asyncio.Event, within_s: float | None) -> bool:
    """Return True once the event is set, False after `within_s` (None: never). Does not clear the event."""
    if within_s is None:
        await event.wait()
        return True
    try:
        async with asyncio.timeout(within_s):
            await event.wait()
    except TimeoutError:
        return False
    return True


async def happens_anew(event: asyncio.Event, within_s: float | None = None) -> bool:
    """As `happens`, but ignore what happened before."""
    event.clear()
    return await happens(event, within_s)
