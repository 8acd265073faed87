"""Base class of proxies between a client and a port of a node."""

from __future__ import annotations

import socket
import threading
from abc import ABC, abstractmethod
from contextlib import suppress
from typing import Final, Self

CHUNK: Final = 65_536


class TcpProxy(ABC):
    """Listens on `port` of 127.0.0.1 for `target_port`, and ends its connections with itself."""

    def __init__(self, port: int, target_port: int) -> None:
        self._target_port = target_port
        self._open: set[socket.socket] = set()
        self._listening = socket.create_server(("127.0.0.1", port))
        self._thread = threading.Thread(target=self._accept, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self._listening.shutdown(socket.SHUT_RDWR)
        self._listening.close()
        self._end(*self._open)
        self._thread.join()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listening.accept()
            except OSError:
                return
            try:
                server = socket.create_connection(("127.0.0.1", self._target_port))
            except OSError:  # the node is down
                self._end(client)
                continue
            self._open |= {client, server}
            self._begin(client, server)

    @abstractmethod
    def _begin(self, client: socket.socket, server: socket.socket) -> None:
        """Pass a connection on, in threads of its own; `_end` it afterwards."""

    def _end(self, *ends: socket.socket) -> None:
        for each in ends:
            with suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
            each.close()
        self._open -= {*ends}
