"""The private door of the server behind a front: a Unix socket, which is connected to one by one.

It has a name only until the front listens: from then on it is reached through a descriptor, so that a process that is
killed leaves nothing behind, and nobody else on the machine finds it.

A server that is behind with taking connections makes the kernel refuse the next one (EAGAIN); nothing tells when there is
room again. So whoever is refused tries again in a moment, and those behind it wait until it is through.
"""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Final

#: A connection that finds no room for so long, s, is given up.
DOOR_TIMEOUT_S: Final = 5.0
#: Between two attempts, s.
_PAUSE_S: Final = 0.005


class UnixDoor:
    """A Unix socket of the server behind."""

    def __init__(self, path: Path) -> None:
        self.address = f"unix:{path}"
        self.waiting = 0  # connections that wait until the server takes more
        self._path = str(path)
        self._handle = -1  # of the socket, when it has no name any more
        self._turn = asyncio.Lock()

    async def connect(
        self, protocol: asyncio.Protocol, is_wanted: Callable[[], bool]
    ) -> asyncio.Transport | None:
        """Give `protocol` a connection and return it; None: it is not wanted any more.

        Raises: BlockingIOError (the server takes none for too long), OSError.
        """
        connection = await self._reach(is_wanted)
        if connection is None:
            return None
        try:
            transport, _ = await asyncio.get_running_loop().create_unix_connection(
                lambda: protocol, sock=connection
            )
        except BaseException:
            connection.close()
            raise
        return transport

    async def _reach(self, is_wanted: Callable[[], bool]) -> socket.socket | None:
        loop = asyncio.get_running_loop()
        until = loop.time() + DOOR_TIMEOUT_S
        self.waiting += 1
        try:
            async with self._turn:
                while is_wanted():
                    try:
                        return _connected(self._path)
                    except BlockingIOError:
                        if loop.time() >= until:
                            raise
                    await asyncio.sleep(_PAUSE_S)
                return None
        finally:
            self.waiting -= 1

    def hide(self) -> bool:
        """Reach the socket without its name from now on; False: the system knows no way."""
        if not hasattr(os, "O_PATH"):
            return False
        handle = os.open(self._path, os.O_PATH | os.O_CLOEXEC)
        unnamed = f"/proc/self/fd/{handle}"
        if not Path(unnamed).exists():  # no /proc here
            os.close(handle)
            return False
        self._handle, self._path = handle, unnamed
        return True

    def close(self) -> None:
        """Give the socket up."""
        if self._handle >= 0:
            os.close(self._handle)
            self._handle = -1


def _connected(path: str) -> socket.socket:
    """Connect at once; asyncio takes "no room" of a Unix socket for "not yet"."""
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        connection.setblocking(False)
        connection.connect(path)
    except BaseException:
        connection.close()
        raise
    return connection
