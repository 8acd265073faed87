"""Waiting for an event, and no longer than a time allows."""

from __future__ import annotations

import asyncio


async def happens(event: asyncio.Event, within_s: float | None) -> bool:
    """Return True as soon as the event is set, False after so many seconds (None: never). Leaves it as it is."""
    try:
        async with asyncio.timeout(within_s):
            await event.wait()
    except TimeoutError:
        return False
    return True
