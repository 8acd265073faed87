"""A TCP proxy that loses answers: it forwards everything to the server, and cuts connections during answers.

The client's requests have then arrived and are stored, but the client does not know: it must send again, and
the repeat must be recognised.
"""

from __future__ import annotations

import random
import socket
import threading
from contextlib import suppress
from typing import Self

_CHUNK = 65_536


class CuttingProxy:
    """Listens on `port` of 127.0.0.1 for `target`.

    After `start_cutting` it cuts connections at random, at one in `cut_one_in` chunks.
    """

    def __init__(self, port: int, target_port: int, seed: int, cut_one_in: int = 20) -> None:
        self.cuts = 0
        self._target_port = target_port
        self._cut_one_in = cut_one_in
        self._rng = random.Random(seed)
        self._cutting = threading.Event()
        self._open: set[socket.socket] = set()
        self._listening = socket.create_server(("127.0.0.1", port), reuse_port=False)
        self._thread = threading.Thread(target=self._accept, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self._listening.shutdown(socket.SHUT_RDWR)
        self._listening.close()
        for each in list(self._open):
            _close(each)
        self._thread.join()

    def start_cutting(self) -> None:
        self._cutting.set()

    def stop_cutting(self) -> None:
        self._cutting.clear()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listening.accept()
            except OSError:
                return
            try:
                server = socket.create_connection(("127.0.0.1", self._target_port))
            except OSError:  # the node is down
                _close(client)
                continue
            self._open |= {client, server}
            for source, sink, answers in ((client, server, False), (server, client, True)):
                threading.Thread(target=self._pass, args=(source, sink, answers), daemon=True).start()

    def _pass(self, source: socket.socket, sink: socket.socket, answers: bool) -> None:
        with suppress(OSError):
            while data := source.recv(_CHUNK):
                if answers and self._cutting.is_set() and self._rng.randrange(self._cut_one_in) == 0:
                    self.cuts += 1
                    break  # this answer, and all behind it, are lost
                sink.sendall(data)
        _close(source)
        _close(sink)
        self._open -= {source, sink}


def _close(each: socket.socket) -> None:
    with suppress(OSError):
        each.shutdown(socket.SHUT_RDWR)
    each.close()
