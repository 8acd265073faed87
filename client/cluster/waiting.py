"""Waiting for an event, and no longer than a time allows."""

from __future__ import annotations

import asyncio


async def happens(event: asyncio.Event, within_s: float | None) -> bool:
    """Return True as soon as the event is set, False after so many seconds (None: never). Leaves it as it is."""
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
    """As `happens`, but what has happened before does not count."""
    event.clear()
    return await happens(event, within_s)
