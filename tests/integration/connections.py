"""Connections that a test holds open to a port: silent ones, and ones that never finish what they begin."""

from __future__ import annotations

import socket
from contextlib import suppress
from typing import Self

#: How HTTP/2 begins, and an empty SETTINGS frame.
PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes((0, 0, 0, 4, 0, 0, 0, 0, 0))


class Crowd:
    """Callers of one port; they are held until the block ends, unless the port hangs up."""

    def __init__(self, address: str) -> None:
        host, _, port = address.rpartition(":")
        self._where = host, int(port)
        self._held: list[socket.socket] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for each in self._held:
            each.close()

    def call(self, first: bytes) -> None:
        """Connect, send `first` (perhaps nothing), and hold the connection, whether it is refused or not."""
        caller = socket.socket()
        self._held.append(caller)
        with suppress(OSError):
            caller.settimeout(5)
            caller.connect(self._where)
            caller.sendall(first)

    def come_again(self) -> None:
        """Call in place of one to whom the port hung up; look at one caller."""
        caller = self._held.pop(0)
        caller.settimeout(0.01)
        try:
            is_gone = caller.recv(1) == b""
        except TimeoutError:
            is_gone = False
        except OSError:
            is_gone = True
        if is_gone:
            caller.close()
            self.call(b"")
        else:
            self._held.append(caller)
