"""Base class of what works beside the requests of a node, from `start` to `stop`."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod


class BackgroundWork(ABC):
    """One task of the event loop."""

    _task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Start the task."""
        self._task = asyncio.get_running_loop().create_task(self._run(), name=type(self).__name__)

    async def stop(self) -> None:
        """Cancel the task, and wait for its end."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    @abstractmethod
    async def _run(self) -> None: ...
