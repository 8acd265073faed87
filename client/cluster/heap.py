"""How the C library's allocator treats the large blocks that sections and requests pass through."""

from __future__ import annotations

from typing import Final

_KEPT_BYTES: Final = 8 * 1024 * 1024


def keep_freed_blocks() -> None:
    """Let malloc keep freed blocks of some MiB for the next request instead of giving them back to the kernel.

    Fresh pages cost more than what is copied into them: half a page fault per message of 1 KiB was a quarter of a
    producer's CPU. glibc raises its limits to the size of a large block when it sees it freed, and from then on keeps up to
    twice as much free memory. Other allocators are not affected. Nothing is written, so this costs no memory by itself.
    """
    bytearray(_KEPT_BYTES)
