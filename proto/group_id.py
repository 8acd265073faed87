"""How a call of LogService says which broker group it means: metadata with the group id (log.proto). Pure."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

KEY: Final = "ledgermq-group-id"
_HEX: Final = 16


def group_metadata(group_id: int) -> tuple[tuple[str, str], ...]:
    """Return the metadata of a call to the group of that id; none for 0: whoever is there is meant."""
    return ((KEY, f"{group_id:0{_HEX}x}"),) if group_id else ()


def meant_group(metadata: Iterable[tuple[str, str | bytes]] | None) -> int:
    """Return the id of the group that a call means, 0 when it does not say. Raises: ValueError, it is no id."""
    for key, found in metadata or ():
        if key == KEY:
            text = found if isinstance(found, str) else found.decode("ascii", "replace")
            if len(text) != _HEX:
                raise ValueError(f"the metadata {KEY} is {text!r}; it must be {_HEX} hex digits")
            return int(text, 16)
    return 0
