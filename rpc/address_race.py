"""Addresses of a host name, and the first of them to which a connection opens (RFC 8305).

Owns: the order of attempts, and when the next one begins. Must not: know what a connection is.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Awaitable, Callable, Sequence
from typing import Final, TypeVar

T = TypeVar("T")

#: Time in seconds that an address has for itself, before the next one is tried as well.
HEAD_START_S: Final = 0.25


async def addresses_of(host: str, port: int) -> list[str]:
    """Return the addresses of a host in the order in which they should be tried.

    Raises: OSError, UnicodeError (a name that cannot exist).
    """
    if "%" in host:  # an IPv6 address with a zone; a look-up of it would drop the zone
        return [host]
    for family in (socket.AF_INET, socket.AF_INET6):
        with contextlib.suppress(OSError):
            socket.inet_pton(family, host)
            return [host]
    found = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return list(dict.fromkeys(str(address[0]) for *_, address in found))


async def first_open(
    addresses: Sequence[str], connect: Callable[[str], Awaitable[T]], drop: Callable[[T], None]
) -> T:
    """Connect to one address after the other, and to the next one also when an attempt takes long.

    `drop(connection)` is called with what was opened too late. Raises: the error of the last attempt to fail.
    """
    left = list(addresses)
    running: set[asyncio.Future[T]] = set()
    error: BaseException = OSError("the name has no address")
    try:
        while left or running:
            if left:
                running.add(asyncio.ensure_future(connect(left.pop(0))))
            pause_s = HEAD_START_S if left else None
            done, _ = await asyncio.wait(running, timeout=pause_s, return_when=asyncio.FIRST_COMPLETED)
            for each in done:
                running.discard(each)
                failure = each.exception()
                if failure is None:
                    running |= done - {each}
                    return each.result()
                error = failure
        raise error
    finally:
        for each in running:
            each.cancel()
        for late in await asyncio.gather(*running, return_exceptions=True):
            if not isinstance(late, BaseException):
                drop(late)
