"""Waiting for an event with a timeout."""

from __future__ import annotations

import asyncio


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
