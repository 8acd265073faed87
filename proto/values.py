"""Values that are built for every entry or request.

A frozen dataclass takes five times as long to build as a plain one, because each field goes through
`object.__setattr__`. Here only the type checker prevents changes.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeVar, dataclass_transform

T = TypeVar("T")


@dataclass_transform(frozen_default=True)
def value(cls: type[T]) -> type[T]:
    """Make a class a slotted, hashable dataclass. Its instances must not be changed."""
    return dataclass(slots=True, unsafe_hash=True)(cls)
