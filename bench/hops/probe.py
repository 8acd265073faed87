"""Time stamps of what a process reads from and writes to sockets, and of its flushes.

Owns: the wrappers, which add about a microsecond each and change nothing else. Must not: know about messages.
CLOCK_MONOTONIC is one clock for all processes of a machine, so their stamps can be put in order.
"""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

from ledgermq.raft.log.writer import LogWriter
from ledgermq.rpc.http2_connection import Http2Connection
from ledgermq.rpc.http2_output import Http2Output

#: (ns, what, own port, port of the peer); ports are 0 for "flush" and "flushed".
Event = tuple[int, str, int, int]


class _StampedTransport:
    """A transport that stamps its writes."""

    def __init__(self, transport: Any, events: list[Event]) -> None:
        self._transport, self._events = transport, events
        self._ports = (
            transport.get_extra_info("sockname")[1],
            transport.get_extra_info("peername")[1],
        )

    def write(self, data: Any) -> None:
        self._transport.write(data)
        self._events.append((time.monotonic_ns(), "out", *self._ports))

    def writelines(self, parts: Any) -> None:
        self._transport.writelines(parts)
        self._events.append((time.monotonic_ns(), "out", *self._ports))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)


def install() -> list[Event]:
    """Stamp everything from now on; return the list that the stamps go to."""
    events: list[Event] = []
    begin, updated, run = Http2Output.begin, Http2Connection.buffer_updated, LogWriter.run

    def stamped_begin(self: Http2Output, transport: Any, *callbacks: Any) -> None:
        begin(self, _StampedTransport(transport, events), *callbacks)  # type: ignore[arg-type]

    def stamped_updated(self: Http2Connection, nbytes: int) -> None:
        now = time.monotonic_ns()
        own, peer = (int(address.rpartition(":")[2]) for address in (self.address, self.peer))
        events.append((now, "in", own, peer))
        updated(self, nbytes)

    def stamped_run(self: LogWriter, *arguments: Any, **named: Any) -> None:
        events.append((time.monotonic_ns(), "flush", 0, 0))
        run(self, *arguments, **named)
        events.append((time.monotonic_ns(), "flushed", 0, 0))

    Http2Output.begin = stamped_begin  # type: ignore[assignment,method-assign]
    Http2Connection.buffer_updated = stamped_updated  # type: ignore[method-assign]
    LogWriter.run = stamped_run  # type: ignore[method-assign]
    return events


def store(events: list[Event], path: Path) -> None:
    """Write the stamps of a process."""
    path.write_text(json.dumps(events))


def load(path: Path) -> list[Event]:
    """Return the stamps of a process, in order."""
    return sorted(tuple(each) for each in json.loads(path.read_text()))
