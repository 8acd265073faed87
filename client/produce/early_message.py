"""Early messages: messages that wait for the route of their topic.

They are checked and copied at once, because the caller may change its objects later.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final, cast

from ..arguments import check_name, encode_text
from ..errors import InvalidMessageError, UsageError
from ..message import Message, SendReceipt
from .encoding import check_body, check_labels, check_sizes
from .queue_selection import Selection

_RECORD_ROOM: Final = 256  # bytes of a record besides body and labels, estimated


def message_of(
    topic: str | Message,
    body: bytes | str | None,
    tag: str,
    keys: Sequence[str],
    properties: Mapping[str, str] | None,
    message_group: str,
) -> Message:
    """Build the message from the arguments of a send. `keep` checks its content.

    Raises: UsageError (a Message together with any of its fields as an argument).
    """
    if not isinstance(topic, Message):
        given = {} if properties is None else properties
        return Message(topic, cast("bytes", body), tag, keys, given, message_group)
    if body is not None or any((tag, keys, properties, message_group)):
        raise UsageError(
            "a send was given a Message and a body, tag, keys, properties or message group beside it",
            "A Message has all of these itself; nothing was sent",
            "Put them into the Message, or give the name of the topic instead of it",
        )
    return topic


def keep(message: Message) -> tuple[Message, int]:
    """Return a private copy of a message and the bytes it counts against the bound. Raises: UsageError."""
    check_name("topic", message.topic)
    body = body_bytes(message.body)
    check_body(body)
    given = {} if message.properties is None else message.properties
    check_labels(message.tag, message.keys, given, message.message_group)
    properties = dict(given)
    labels = check_sizes(message.tag, message.keys, properties, message.message_group)
    kept = replace(message, body=body, keys=tuple(message.keys), properties=properties)
    return kept, len(body) + labels + _RECORD_ROOM


def body_bytes(given: object) -> bytes:
    """Convert a body to bytes. A number is refused: `bytes(n)` would make n zero bytes."""
    if isinstance(given, str):
        return encode_text("body", given)
    if given is None or isinstance(given, bytes | bytearray | memoryview):
        return bytes(given or b"")
    raise InvalidMessageError(
        "body", f"{given!r} is of type {type(given).__name__}; bytes or a str are wanted"
    )


@dataclass(frozen=True, slots=True)
class EarlyMessage:
    """A message whose topic has no route yet. `size`: bytes that it counts against `max_pending_bytes`."""

    message: Message
    size: int
    future: asyncio.Future[SendReceipt]
    selection: Selection | None = None

    def follow(self, put: asyncio.Future[SendReceipt]) -> None:
        """The message was put into a lane: pass the result of that put on to the caller."""
        put.add_done_callback(self._pass_on)

    def _pass_on(self, put: asyncio.Future[SendReceipt]) -> None:
        error = put.exception()
        if error is not None:
            self.fail(error)
        elif not self.future.done():
            self.future.set_result(put.result())

    def fail(self, error: BaseException) -> None:
        """The message cannot be sent."""
        if not self.future.done():
            self.future.set_exception(error)
