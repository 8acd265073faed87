"""Private Unix socket of the server behind a front, with connections opened one at a time.

It has a name only until the front listens. After that it is reached through a descriptor, so a killed process
leaves nothing behind and no other user of the machine finds it.

If the server is slow to accept, the kernel refuses the next connection (EAGAIN), and nothing signals when
there is room again. A refused connection therefore retries after a pause, and later ones wait until it is
through.
"""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Final

#: Seconds after which a connection that finds no room is given up.
DOOR_TIMEOUT_S: Final = 5.0
#: Seconds between two attempts.
_PAUSE_S: Final = 0.005


class UnixDoor:
    """Unix socket of the server behind a front."""

    def __init__(self, path: Path) -> None:
        self.address = f"unix:{path}"
        self.waiting = 0  # connections that wait for the server to accept
        self._path = str(path)
        self._handle = -1  # descriptor of the socket once it has no name any more
        self._turn = asyncio.Lock()

    async def connect(
        self, protocol: asyncio.Protocol, is_wanted: Callable[[], bool]
    ) -> asyncio.Transport | None:
        """Connect `protocol` and return its transport; None: it is no longer wanted.

        Raises: BlockingIOError (the server accepts none for too long), OSError.
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
        """Reach the socket without its name from now on. False: the system does not support it."""
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
        """Release the socket."""
        if self._handle >= 0:
            os.close(self._handle)
            self._handle = -1


def _connected(path: str) -> socket.socket:
    """Connect without waiting. asyncio treats "no room" on a Unix socket as "not yet"."""
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        connection.setblocking(False)
        connection.connect(path)
    except BaseException:
        connection.close()
        raise
    return connection
