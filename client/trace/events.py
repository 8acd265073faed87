"""Trace events, and their format in the trace topic. Pure.

A trace message holds events of one client. Its keys are the ids of the messages that the events are about,
and the keys of these messages as far as there is room. Its body is JSON (UTF-8), compressed like any other
body:

    {"version": 1,
     "source": {"client": "producer" | "push" | "simple" | "pull", "group": …, "client_id": …, "host": …,
                "process": …},
     "events": [{"kind": "send" | "receive" | "consume", "message_id": …, "topic": …, "begin_ms": …,
                 "result": …, …}]}

Fields of an event with their default value are omitted. Readers ignore unknown fields, and skip bodies of a
newer version. `cost_ms` is the duration. Times are ms since the epoch, by the clock of the client.
Owns: the format. Must not: do I/O, read clocks.
"""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Sequence
from typing import Any, Final, NamedTuple

TRACE_TOPIC: Final = "RMQ_SYS_TRACE_TOPIC"
VERSION: Final = 1
#: Maximum of events per trace message, and of bytes of its keys.
BATCH: Final = 100
_KEYS_BYTES: Final = 8 * 1024
MAX_ERROR: Final = 300  # characters
#: Bounds of event fields: times that calendars can represent, texts that are still readable.
_KINDS: Final = ("send", "receive", "consume")
_MAX_MS: Final = 1 << 47
_MAX_TEXT: Final = 16 * 1024
_BOUNDS: Final = {
    "begin_ms": (0, _MAX_MS),
    "cost_ms": (0, _MAX_MS),
    "stored_ms": (0, _MAX_MS),
    "queue_id": (-1, (1 << 31) - 1),
    "queue_offset": (-1, (1 << 63) - 1),
    "attempt": (0, (1 << 31) - 1),
    "process": (0, (1 << 63) - 1),
}


class TraceSource(NamedTuple):
    """The client that traces."""

    client: str  # producer, push, simple, pull
    group: str
    client_id: str
    host: str
    process: int


class TraceEvent(NamedTuple):
    """One step of a message. Values of `result`:

    send     "stored", "duplicate" (a retry met the first copy), "refused" (not stored),
             "unknown" (may be stored)
    receive  "delivered": the program has it
    consume  "consumed", "failed" (delivered again), "skipped" (after the last attempt), "given back",
             "lease moved", "late" (the lease was over: the message is or was delivered again)
    """

    kind: str
    message_id: str
    topic: str
    begin_ms: int
    result: str
    cost_ms: int = 0
    broker_group: str = ""
    queue_id: int = -1
    queue_offset: int = -1
    tag: str = ""
    keys: tuple[str, ...] = ()
    stored_ms: int = 0  # by the broker's clock; 0: unknown to a producer
    attempt: int = 0
    error: str = ""


class TraceBatch(NamedTuple):
    """Content of one trace message."""

    source: TraceSource
    events: list[TraceEvent]


_DEFAULTS: Final = TraceEvent._field_defaults


def take_batch(waiting: deque[TraceEvent]) -> tuple[list[TraceEvent], list[str]]:
    """Remove the events of the next trace message; return them with its keys."""
    events: list[TraceEvent] = []
    keys: dict[str, None] = {}
    room = _KEYS_BYTES
    while waiting and len(events) < BATCH:
        event = waiting[0]
        sizes = {key: len(key.encode()) for key in (event.message_id, *event.keys) if key not in keys}
        if events and sum(sizes.values()) > room:
            break
        events.append(waiting.popleft())
        for key, size in sizes.items():
            if key and size <= room:  # skip keys that exceed the room
                keys[key] = None
                room -= size
    return events, list(keys)


def encode_batch(source: TraceSource, events: Sequence[TraceEvent]) -> bytes:
    """Return the body of a trace message."""
    content = {
        "version": VERSION,
        "source": source._asdict(),
        "events": [_as_dict(event) for event in events],
    }
    return json.dumps(content, ensure_ascii=False, separators=(",", ":")).encode()


def _as_dict(event: TraceEvent) -> dict[str, Any]:
    found = {name: value for name, value in event._asdict().items() if value != _DEFAULTS.get(name)}
    if event.error:
        found["error"] = event.error[:MAX_ERROR]
    return found


def decode_batch(body: bytes) -> TraceBatch | None:
    """Decode a trace message. None: it has a newer version, or is not a trace."""
    try:
        content = json.loads(body)
        if content["version"] > VERSION:
            return None
        source = TraceSource(**{name: content["source"][name] for name in TraceSource._fields})
        _check(source._asdict())
        return TraceBatch(source, [_event(each) for each in content["events"]])
    except (ValueError, TypeError, KeyError, RecursionError):
        return None


def _event(found: dict[str, Any]) -> TraceEvent:
    known = {name: found[name] for name in TraceEvent._fields if name in found}
    event = TraceEvent(**known)
    event = event._replace(keys=tuple(map(str, event.keys)))
    if event.kind not in _KINDS:
        raise ValueError(f"kind is {event.kind!r}")
    values = event._asdict()
    del values["keys"]
    _check(values)
    for key in event.keys:
        _check({"key": key})
    return event


def _check(values: dict[str, Any]) -> None:
    """Refuse impossible values: anyone may write to the topic. Raises: TypeError, ValueError."""
    for name, value in values.items():
        if name in _BOUNDS:
            least, most = _BOUNDS[name]
            if type(value) is not int or not least <= value <= most:
                raise ValueError(f"{name} is {value!r}")
        elif (
            not isinstance(value, str) or len(value.encode()) > _MAX_TEXT
        ):  # nor are halves of characters texts
            raise TypeError(f"{name} is {type(value).__name__}, or too long")
