"""What calls of LogService say beside their requests: which broker group they mean, and for whom a stream reads. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

#: The group id of the broker group that is meant (log.proto).
GROUP_ID: Final = "ledgermq-group-id"
#: Of a fetch stream: the consumer group that it reads for.
CONSUMER_GROUP: Final = "x-ledgermq-consumer-group"
_HEX: Final = 16


def group_metadata(group_id: int) -> tuple[tuple[str, str], ...]:
    """Return the metadata of a call to the group of that id; none for 0: whoever is there is meant."""
    return ((GROUP_ID, f"{group_id:0{_HEX}x}"),) if group_id else ()


def meant_group(metadata: Iterable[tuple[str, str | bytes]] | None) -> int:
    """Return the id of the group that a call means, 0 when it does not say. Raises: ValueError, it is no id."""
    for key, found in metadata or ():
        if key == GROUP_ID:
            text = found if isinstance(found, str) else found.decode("ascii", "replace")
            if len(text) != _HEX:
                raise ValueError(f"the metadata {GROUP_ID} is {text!r}; it must be {_HEX} hex digits")
            return int(text, 16)
    return 0
