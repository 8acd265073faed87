"""Cuts a batch into stretches of messages that can be encoded together. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final, NamedTuple

from ..message import Message
from .encoding import alike_sizes

#: A stretch ends at about this many bytes of bodies, so that a long batch waits for room on its way.
_MAX_BYTES: Final = 256 * 1024
_LEAST: Final = 64  # what a small body counts, so that a stretch has no more than 4,096 messages


class Stretch(NamedTuple):
    """Bodies for one topic, of messages that have nothing else; sizes are alike (see `alike_sizes`)."""

    topic: str
    bodies: list[bytes]


def stretches(messages: Iterable[Message], largest: int) -> Iterator[Message | Stretch]:
    """Yield the messages in order: neighbours without labels together, others, and bodies above `largest`, alone."""
    topic, low, high, room = "", 1, 0, 0
    bodies: list[bytes] = []
    for message in messages:
        body = message.body
        labelled = message.tag or message.keys or message.properties or message.message_group
        if labelled or type(body) is not bytes or not 0 < len(body) <= largest:
            if bodies:
                yield Stretch(topic, bodies)
                bodies, high = [], 0
            yield message
            continue
        size = len(body)
        if size > room or not low <= size <= high or message.topic != topic:
            if bodies:
                yield Stretch(topic, bodies)
            topic, bodies, room = message.topic, [], _MAX_BYTES
            low, high = alike_sizes(size)
        bodies.append(body)
        room -= max(size, _LEAST)
    if bodies:
        yield Stretch(topic, bodies)
