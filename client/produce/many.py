"""Input of `produce_many`: iterables of any length, asynchronous ones, and Arrow tables, cut into parts.

A part is what is read before it is sent: bounded in messages and in bytes of bodies, apart from its last
message. Pure; nothing is imported for Arrow: anything with its methods will do.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterable, Iterable, Iterator
from typing import Any, Final

from ..arguments import a_function, check_name, wrong
from ..errors import UsageError
from ..message import Message
from .early_message import body_bytes

PART_MESSAGES: Final = 4096
PART_BYTES: Final = 512 * 1024
_ROWS: Final = 4096  # of an Arrow table, converted together
_COLUMNS: Final = ("body", "tag", "keys", "key", "message_group")

#: A message, or its body.
Item = Message | bytes | str
Part = list[Message] | list[bytes]


def check_many(topic: str, on_stored: object) -> None:
    """Check what `produce_many` gets besides the iterable. Raises: UsageError."""
    if topic != "":
        check_name("topic", topic)
    if on_stored is not None:
        a_function("on_stored", on_stored)


class PartBuilder:
    """Collects items until a part is complete: messages, or bodies for one topic."""

    def __init__(self, topic: str) -> None:
        """`topic`: of the items that are bodies; "": all are messages."""
        self._topic = topic
        self._messages: list[Message] = []
        self._bodies: list[bytes] = []
        self._room = PART_BYTES

    def add(self, item: Item) -> Part | None:
        """Take an item; return the part that it completes. Raises: UsageError."""
        if isinstance(item, Message):
            self._as_messages().append(item)
            self._room -= len(item.body) if isinstance(item.body, bytes | bytearray | memoryview | str) else 0
        else:
            body = item if type(item) is bytes and self._topic else self._body(item)
            self._room -= len(body)
            if self._messages:
                self._messages.append(Message(self._topic, body))
            else:
                self._bodies.append(body)
        if self._room <= 0 or len(self._bodies) + len(self._messages) >= PART_MESSAGES:
            return self.rest()
        return None

    def rest(self) -> Part:
        """Return what is collected."""
        part: Part = self._bodies or self._messages
        self._messages, self._bodies, self._room = [], [], PART_BYTES
        return part

    def _as_messages(self) -> list[Message]:
        if self._bodies:
            self._messages = [Message(self._topic, body) for body in self._bodies]
            self._bodies = []
        return self._messages

    def _body(self, item: object) -> bytes:
        if not self._topic:
            raise wrong("messages", item, "Message objects, or bodies together with a topic")
        return body_bytes(item)


def items_of(messages: Any, topic: str) -> Iterable[Item]:
    """Return what to iterate over: the rows of an Arrow Table or RecordBatch, or the iterable itself.

    Raises: UsageError (columns that have no meaning here, or no topic for the rows).
    """
    if hasattr(messages, "to_batches"):  # a Table
        return (item for rows in messages.to_batches() for item in items_of(rows, topic))
    if hasattr(messages, "schema") and hasattr(messages, "num_rows"):  # a RecordBatch
        return _rows(messages, topic)
    if not isinstance(messages, Iterable) or isinstance(messages, str | bytes | bytearray | Message):
        raise wrong("messages", messages, "an iterable of messages, or an Arrow table")
    return messages


def _rows(batch: Any, topic: str) -> Iterator[Item]:
    """Yield the rows of a RecordBatch: bodies if it has no other column, else messages."""
    names = list(batch.schema.names)
    if "body" not in names or not set(names) <= set(_COLUMNS):
        raise UsageError(
            f"the table has the columns {', '.join(names)}",
            f"A message is made of these: {', '.join(_COLUMNS)}; body is needed",
            "Select and rename its columns first",
        )
    if not topic:
        raise UsageError("the rows of a table were given without a topic", "", "Give topic=, the name of one")
    for start in range(0, batch.num_rows, _ROWS):
        rows = batch.slice(start, _ROWS)
        columns = {name: rows.column(names.index(name)).to_pylist() for name in names}
        if names == ["body"]:
            yield from columns["body"]
            continue
        for values in zip(*columns.values(), strict=True):
            row = dict(zip(names, values, strict=True))
            keys = row.get("keys") or [key for key in (row.get("key"),) if key]
            yield Message(
                topic, body_bytes(row["body"]), row.get("tag") or "", keys,
                message_group=row.get("message_group") or "",
            )  # fmt: skip


def parts_of(messages: Any, topic: str) -> Iterator[Part]:
    """Yield the parts of an iterable or a table. Raises: UsageError, and what the iterable raises."""
    builder = PartBuilder(topic)
    try:
        for item in items_of(messages, topic):
            if (part := builder.add(item)) is not None:
                yield part
    except Exception:  # what was read before is still sent
        if part := builder.rest():
            yield part
        raise
    if part := builder.rest():
        yield part


async def async_parts_of(messages: AsyncIterable[Item], topic: str) -> AsyncGenerator[Part, None]:
    """Yield the parts of an asynchronous iterable. Raises: as `parts_of`."""
    builder = PartBuilder(topic)
    try:
        async for item in messages:
            if (part := builder.add(item)) is not None:
                yield part
    except Exception:
        if part := builder.rest():
            yield part
        raise
    if part := builder.rest():
        yield part
