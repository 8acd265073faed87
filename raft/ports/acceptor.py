"""Acceptor: takes connections from listening sockets, a few per loop turn, within the limits.

The servers of asyncio accept a whole backlog in one turn, create objects for each connection before it can be
refused, and differ in what they do when descriptors run out. Here a refusal costs one accept and one close.
Owns: the listening sockets, and one spare descriptor. When descriptors run out, the spare is released for a
moment to accept the next connection and close it. So clients are refused instead of left waiting, and the
loop does not spin.
Must not: know what the connections are for.
"""

from __future__ import annotations

import asyncio
import errno
import os
import socket
import struct
from collections.abc import Callable, Sequence
from typing import Final

from .counts import PortCounts, Refused

#: Connections per socket to accept or refuse in one turn of the loop.
ACCEPTS_PER_TURN: Final = 16
#: Pause in seconds of a socket whose connections cannot be accepted.
STARVED_PAUSE_S: Final = 0.1
#: Errors of accept or connect when there is no descriptor or memory.
STARVED: Final = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)
_RESET_AT_CLOSE: Final = struct.pack("ii", 1, 0)

#: Returns the protocol for a connection from that host; None: it is already refused (and counted).
Admit = Callable[[str], "asyncio.Protocol | None"]


class Acceptor:
    """Accepts connections until `close`. Use it on the loop thread."""

    def __init__(self, sockets: Sequence[socket.socket], admit: Admit, counts: PortCounts) -> None:
        self._sockets = list(sockets)
        self._admit = admit
        self._counts = counts
        self._beginning: set[asyncio.Task[None]] = set()
        self._spare = _spare_descriptor()
        for each in self._sockets:
            self._listen(each)

    def close(self) -> None:
        """Stop accepting and free the ports. Accepted connections stay open."""
        loop = asyncio.get_running_loop()
        for each in self._sockets:
            if each.fileno() >= 0:
                loop.remove_reader(each)
                each.close()
        self._sockets.clear()
        if self._spare >= 0:
            os.close(self._spare)
            self._spare = -1

    def _listen(self, listening: socket.socket) -> None:
        if listening.fileno() >= 0:  # otherwise it was closed meanwhile
            asyncio.get_running_loop().add_reader(listening, self._take, listening)

    def _take(self, listening: socket.socket) -> None:
        """Accept waiting connections. Those left make the socket readable again."""
        for _ in range(ACCEPTS_PER_TURN):
            try:
                connection, peer = listening.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as error:
                self._pause(listening, error)
                return
            self._welcome(connection, _host(peer))

    def _welcome(self, connection: socket.socket, host: str) -> None:
        protocol = self._admit(host)
        if protocol is None:
            reset(connection)
            return
        connection.setblocking(False)
        task = asyncio.get_running_loop().create_task(_begin(connection, protocol))
        self._beginning.add(task)
        task.add_done_callback(self._beginning.discard)

    def _pause(self, listening: socket.socket, error: OSError) -> None:
        """Refuse connections without a descriptor, and retry after a pause."""
        if error.errno in STARVED:
            self._refuse_some(listening)
        loop = asyncio.get_running_loop()
        loop.remove_reader(listening)
        loop.call_later(STARVED_PAUSE_S, self._listen, listening)

    def _refuse_some(self, listening: socket.socket) -> None:
        if self._spare < 0:  # its place was taken the last time
            self._spare = _spare_descriptor()
        for _ in range(ACCEPTS_PER_TURN):
            if self._spare < 0:
                return
            os.close(self._spare)
            try:
                connection, peer = listening.accept()
            except OSError:
                return
            else:
                reset(connection)
                self._counts.refuse(Refused.DESCRIPTORS, _host(peer))
            finally:
                self._spare = _spare_descriptor()


async def _begin(connection: socket.socket, protocol: asyncio.Protocol) -> None:
    try:
        await asyncio.get_running_loop().connect_accepted_socket(lambda: protocol, connection)
    except OSError as error:  # the client left at once
        connection.close()
        protocol.connection_lost(error)
    except BaseException:  # the loop ends
        connection.close()
        raise


def reset(connection: socket.socket) -> None:
    """Close a connection with a reset. The kernel keeps nothing of it."""
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET_AT_CLOSE)
    connection.close()


def _host(peer: object) -> str:
    return str(peer[0]) if isinstance(peer, tuple) else ""


def _spare_descriptor() -> int:
    try:
        return os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return -1
