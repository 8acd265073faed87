"""Send trace: one event per message of a section, once its result is known. Not run while tracing is off.

A message that was given up before its first send has no id yet, unless it had labels. It leaves no trace.
"""

from __future__ import annotations

import struct
import time
from collections.abc import Iterator
from typing import Final

from ..message import MessageView
from ..trace.events import TRACE_TOPIC, TraceEvent
from ..trace.tracer import Tracer
from .plain_run import PlainRun
from .send_window import Section

_SIZE: Final = struct.Struct("<I")  # the first field of a record: its size


def trace_section(
    tracer: Tracer, section: Section, result: str, *, base_offset: int = -1, error: str = ""
) -> None:
    """Trace the messages of a section. `base_offset` -1: no offsets."""
    queue = section.lane.queue
    if queue.topic == TRACE_TOPIC:
        return
    room = tracer.room
    tracer.drop(section.count - room)
    now_ms = time.time_ns() // 1_000_000
    for number, message in enumerate(_messages(section)):
        if number >= room:
            return
        born_ms = message.born_timestamp
        tracer.add(
            TraceEvent(
                "send",
                message.message_id,
                queue.topic,
                born_ms,
                result,
                max(now_ms - born_ms, 0),
                queue.broker_group,
                queue.queue_id,
                base_offset + number if base_offset >= 0 else -1,
                message.tag,
                message.keys,
                error=error,
            )
        )


def _messages(section: Section) -> Iterator[MessageView]:
    """Yield the messages that are already encoded."""
    for part in section.records:
        if isinstance(part, PlainRun):
            continue
        at = 0
        while at < len(part):
            yield MessageView(part, at, section.lane.queue, -1, 0)
            at += _SIZE.unpack_from(part, at)[0]
