"""Metadata of LogService calls: the broker group that is addressed, the consumer group of a stream. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

#: Id of the broker group that the call addresses (log.proto).
GROUP_ID: Final = "ledgermq-group-id"
#: On a fetch stream: the consumer group that it reads for.
CONSUMER_GROUP: Final = "x-ledgermq-consumer-group"
_HEX: Final = 16


def group_metadata(group_id: int) -> tuple[tuple[str, str], ...]:
    """Return the metadata of a call to the broker group with that id; none for 0, which addresses any."""
    return ((GROUP_ID, f"{group_id:0{_HEX}x}"),) if group_id else ()


def meant_group(metadata: Iterable[tuple[str, str | bytes]] | None) -> int:
    """Return the id of the broker group that a call addresses; 0 if it names none.

    Raises: ValueError (not an id).
    """
    for key, found in metadata or ():
        if key == GROUP_ID:
            text = found if isinstance(found, str) else found.decode("ascii", "replace")
            if len(text) != _HEX:
                raise ValueError(f"the metadata {GROUP_ID} is {text!r}; it must be {_HEX} hex digits")
            return int(text, 16)
    return 0
