"""Base class of the asyncio clients: `async with` closes them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Self


class AsyncClient(ABC):
    """A client with connections. Usage: `async with`, or `await close()` at the end."""

    @abstractmethod
    async def close(self) -> None:
        """Close every connection."""

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()
