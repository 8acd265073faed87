"""How many connections the client ports take: what is configured, and what the process has file descriptors for.

Everything that a node needs besides its clients, such as its log, its peers and the Raft port, is set aside first; so a
storm of clients ends in refused clients, and never in a node that cannot open the next segment of its log.
"""

from __future__ import annotations

import logging
import resource
from typing import Final

logger = logging.getLogger(__name__)

#: Descriptors for all that is not a client connection, where the limit of the process has room for so many.
RESERVE: Final = 1_200
#: A client of the messaging port: its own connection, and both ends of the one to the gRPC server behind the front.
_PER_SPLICE: Final = 3
_PER_CONNECTION: Final = 1


def raise_descriptor_limit() -> int:
    """Raise this process's own limit of open files as far as it may; return it."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
            soft = hard
        except (OSError, ValueError) as error:
            logger.warning("the limit of open files stays at %d reason=%s", soft, error)
    return soft if soft != resource.RLIM_INFINITY else 1 << 20


def connections_per_port(wanted: int, descriptors: int, listeners: int, *, front: bool) -> int:
    """Return how many connections each client port takes: `wanted`, or what there are descriptors for."""
    free = descriptors - min(RESERVE, descriptors // 2)
    each = listeners * (_PER_CONNECTION + (_PER_SPLICE if front else _PER_CONNECTION))
    return max(min(wanted, free // each), 1)


def port_limit(wanted: int, listeners: int, *, front: bool, chosen: bool) -> int:
    """Return the limit of each client port, and say so when it is less than was wanted; `chosen`: by a person."""
    descriptors = raise_descriptor_limit()
    limit = connections_per_port(wanted, descriptors, listeners, front=front)
    if limit < wanted:
        logger.log(
            logging.WARNING if chosen else logging.INFO,
            "each client port takes %d connections instead of %d: this process may open %d files; raise that limit "
            "(ulimit -n, LimitNOFILE) for more",
            limit, wanted, descriptors,
        )  # fmt: skip
    return limit
