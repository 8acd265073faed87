"""Which event loop the command line and the synchronous clients run on. Asynchronous clients use their caller's."""

from __future__ import annotations

import asyncio
import importlib


def new_event_loop() -> asyncio.AbstractEventLoop:
    """Return uvloop's event loop where it is installed, else asyncio's own."""
    try:
        loop: asyncio.AbstractEventLoop = importlib.import_module("uvloop").new_event_loop()
    except ModuleNotFoundError:
        return asyncio.new_event_loop()
    return loop
