"""Cuts a batch into stretches of messages that can be encoded together. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final, NamedTuple

from .message import Message

#: A stretch ends at this many bytes of bodies, so that a long batch waits for room on its way.
_MAX_BYTES: Final = 256 * 1024
_MAX_COUNT: Final = 4096


class Stretch(NamedTuple):
    """Bodies of one size for one topic, of messages that have nothing else."""

    topic: str
    bodies: list[bytes]


def stretches(messages: Iterable[Message]) -> Iterator[Message | Stretch]:
    """Yield the messages in order: those without labels that have equal sizes together, the others one by one."""
    topic, size, room = "", -1, 0
    bodies: list[bytes] = []
    for message in messages:
        body = message.body
        if (
            message.tag
            or message.keys
            or message.properties
            or message.message_group
            or type(body) is not bytes
        ):
            if bodies:
                yield Stretch(topic, bodies)
                bodies, room = [], 0
            yield message
            continue
        if room <= 0 or len(body) != size or message.topic != topic:
            if bodies:
                yield Stretch(topic, bodies)
            topic, size, bodies = message.topic, len(body), []
            room = min(_MAX_COUNT, max(_MAX_BYTES // max(size, 1), 1))
        bodies.append(body)
        room -= 1
    if bodies:
        yield Stretch(topic, bodies)
