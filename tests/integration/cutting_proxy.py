"""A TCP proxy that loses answers: it forwards everything to the server, and cuts connections during answers.

The client's requests have then arrived and are stored, but the client does not know: it must send again, and
the repeat must be recognised.
"""

from __future__ import annotations

import random
import socket
import threading
from contextlib import suppress

from .tcp_proxy import CHUNK, TcpProxy


class CuttingProxy(TcpProxy):
    """Listens on `port` of 127.0.0.1 for `target`.

    After `start_cutting` it cuts connections at random, at one in `cut_one_in` chunks.
    """

    def __init__(self, port: int, target_port: int, seed: int, cut_one_in: int = 20) -> None:
        super().__init__(port, target_port)
        self.cuts = 0
        self._cut_one_in = cut_one_in
        self._rng = random.Random(seed)
        self._cutting = threading.Event()

    def start_cutting(self) -> None:
        self._cutting.set()

    def stop_cutting(self) -> None:
        self._cutting.clear()

    def _begin(self, client: socket.socket, server: socket.socket) -> None:
        for source, sink, answers in ((client, server, False), (server, client, True)):
            threading.Thread(target=self._pass, args=(source, sink, answers), daemon=True).start()

    def _pass(self, source: socket.socket, sink: socket.socket, answers: bool) -> None:
        with suppress(OSError):
            while data := source.recv(CHUNK):
                if answers and self._cutting.is_set() and self._rng.randrange(self._cut_one_in) == 0:
                    self.cuts += 1
                    break  # this answer, and all behind it, are lost
                sink.sendall(data)
        self._end(source, sink)
