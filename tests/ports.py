"""Ports for servers in tests: free ones of 127.0.0.1, which nobody else on this machine hands out.

They lie below the range that the kernel gives to outgoing connections, so that a node which is killed finds
its ports free when it starts again, and above those of `ledgermq up` and `ledgermq demo`. Each process locks
a block for its life: workers of one run, and runs beside each other, never give the same port. A block goes
round, so that a port comes again only after all others.
"""

from __future__ import annotations

import fcntl
import functools
import itertools
import os
import random
import tempfile
from collections.abc import Iterator
from pathlib import Path

from ledgermq.client.local.ports import is_free

_FIRST = 22_000
_BLOCK_SIZE = 500
_BLOCKS = 20  # the last ends below 32,768, where Linux begins to give ports to connections


def free_ports(count: int) -> list[int]:
    """Return ports that can be bound, all different, also from the last hundreds that were returned."""
    free = (port for port in itertools.islice(_own_ports(), _BLOCK_SIZE) if is_free(port))
    ports = list(itertools.islice(free, count))
    assert len(ports) == count, f"{count} free ports are wanted, {len(ports)} are left of {_BLOCK_SIZE}"
    return ports


def free_port() -> int:
    """Return one such port."""
    return free_ports(1)[0]


@functools.cache
def _own_ports() -> Iterator[int]:
    """Lock a block and go round in it, from any place: what ran before on these ports may be ending yet."""
    folder = Path(tempfile.gettempdir()) / f"ledgermq-test-ports-{os.getuid()}"
    folder.mkdir(mode=0o700, exist_ok=True)
    for block in range(_BLOCKS):
        lock = os.open(folder / str(block), os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)  # held until the process ends, however it ends
        except BlockingIOError:
            os.close(lock)
            continue
        first = _FIRST + block * _BLOCK_SIZE
        begin = random.SystemRandom().randrange(_BLOCK_SIZE)
        return itertools.cycle([first + (begin + step) % _BLOCK_SIZE for step in range(_BLOCK_SIZE)])
    raise AssertionError(
        f"all {_BLOCKS} blocks of ports are in use, see {folder}: too many test runs at once"
    )
