"""Event loop of the command line and the synchronous clients. Asynchronous clients use their caller's."""

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
