"""Proxy between two nodes that damages the traffic while every connection looks healthy.

    with GrayProxy(port, target_port, seed=1) as proxy:
        proxy.harm(Harm.SWALLOW, "A", ways=(THERE,))     # the present connections for appends, not new ones
        proxy.heal()

It listens for one peer of one node. A connection that calls RaftService is "A" (appends) or "C" (control),
any other "G".
THERE is from the node that connects to the one that listens, BACK the other way.
"""

from __future__ import annotations

import random
import socket
import threading
import time
from contextlib import suppress
from dataclasses import dataclass, field
from enum import Enum

from .tcp_proxy import CHUNK, TcpProxy

_PATHS = {b"RaftService/Append": "A", b"RaftService/Control": "C"}
#: Bytes of a connection in which its call must begin.
_OPENING_SIZE = 4096
THERE, BACK = "there", "back"


class Harm(Enum):
    """What becomes of bytes."""

    SWALLOW = "swallow"  # they are taken and never delivered, also not later
    FREEZE = "freeze"  # they are kept, and delivered when it is over
    SLOW = "slow"  # a thousand a second
    FLIP = "flip"  # a bit of them changes, in one chunk of eight


@dataclass(frozen=True)
class _Harming:
    harm: Harm
    kinds: str
    ways: tuple[str, ...]
    present: frozenset[int] | None  # connections; None: all, also those to come


@dataclass(eq=False)
class _Pair:
    """One connection that is passed on."""

    number: int
    client: socket.socket
    server: socket.socket
    kind: str = "G"
    opening: bytes = b""  # first bytes from the client, while the kind is not known
    holes: set[str] = field(default_factory=set)  # ways whose bytes were swallowed: nothing may follow

    def ends(self, way: str) -> tuple[socket.socket, socket.socket]:
        return (self.client, self.server) if way == THERE else (self.server, self.client)


class GrayProxy(TcpProxy):
    """Listens on `port` of 127.0.0.1 for `target_port`."""

    def __init__(self, port: int, target_port: int, seed: int) -> None:
        super().__init__(port, target_port)
        self.flips = 0
        self._rng = random.Random(seed)
        self._harming: _Harming | None = None
        self._pairs: dict[int, _Pair] = {}
        self._count = 0

    def __exit__(self, *exc: object) -> None:
        self.heal()
        super().__exit__(*exc)

    def harm(
        self, harm: Harm, kinds: str = "AC", ways: tuple[str, ...] = (THERE, BACK), *, new_ones: bool = False
    ) -> None:
        """Begin; `new_ones`: also on connections that are made from now on."""
        self._harming = _Harming(harm, kinds, ways, None if new_ones else frozenset(self._pairs))

    def heal(self) -> None:
        """What passes from now on passes well; what was frozen is delivered, what was swallowed is lost."""
        self._harming = None

    def _begin(self, client: socket.socket, server: socket.socket) -> None:
        for each in (client, server):
            each.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._count += 1
        pair = self._pairs[self._count] = _Pair(self._count, client, server)
        for way in (THERE, BACK):
            threading.Thread(target=self._pass, args=(pair, way), daemon=True).start()

    def _pass(self, pair: _Pair, way: str) -> None:
        source, sink = pair.ends(way)
        with suppress(OSError):
            while data := source.recv(CHUNK):
                if way == THERE and pair.kind == "G" and len(pair.opening) < _OPENING_SIZE:
                    pair.opening += data[:_OPENING_SIZE]
                    pair.kind = next((_PATHS[path] for path in _PATHS if path in pair.opening), "G")
                self._deliver(pair, way, sink, data)
        self._end(source, sink)
        self._pairs.pop(pair.number, None)

    def _harm_of(self, pair: _Pair, way: str) -> Harm | None:
        harming = self._harming
        if harming is None or way not in harming.ways or pair.kind not in harming.kinds:
            return None
        return harming.harm if harming.present is None or pair.number in harming.present else None

    def _deliver(self, pair: _Pair, way: str, sink: socket.socket, data: bytes) -> None:
        while (harm := self._harm_of(pair, way)) is Harm.FREEZE:
            time.sleep(0.005)
        if harm is Harm.SWALLOW:
            pair.holes.add(way)
        if way in pair.holes:
            return
        if harm is Harm.FLIP and self._rng.randrange(8) == 0:
            self.flips += 1
            place = self._rng.randrange(len(data))
            data = data[:place] + bytes((data[place] ^ 1 << self._rng.randrange(8),)) + data[place + 1 :]
        while data and self._harm_of(pair, way) is Harm.SLOW:
            sink.sendall(data[:10])
            data = data[10:]
            time.sleep(0.01)
        sink.sendall(data)
