"""Errors of the binary layouts.

LayoutError              bytes that do not follow the layout
├── CorruptError         a checksum, magic or length does not fit: damaged bytes
└── NewerFormatError     written by a newer LedgerMQ; carries both versions
"""

from __future__ import annotations


class LayoutError(ValueError):
    """Bytes that do not follow the layout they claim to have."""


class CorruptError(LayoutError):
    """Damaged bytes. `position` is the byte offset inside the buffer that was read."""

    def __init__(self, reason: str, position: int) -> None:
        super().__init__(f"{reason} at byte {position}")
        self.reason = reason
        self.position = position


class NewerFormatError(LayoutError):
    """A format version that this build does not know."""

    def __init__(self, what: str, found: int, supported: int) -> None:
        super().__init__(f"{what} has format version {found}; this build reads up to version {supported}")
        self.what = what
        self.found = found
        self.supported = supported
