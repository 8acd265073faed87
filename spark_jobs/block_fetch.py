"""Fetching single blocks of running nodes' logs into their digest dumps, for the driver of a check.

Owns: finding the nodes that the dumps are of. Must not: run on executors, or interpret what it fetches.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path

from ledgermq.client.admin.cluster_status import known_nodes
from ledgermq.client.admin.dump import fetch_ranges
from ledgermq.client.errors import LedgerMQError

from .digest_compare import Fetch
from .dump_folder import NodeDump
from .errors import SparkJobError


def fetcher(nameserver: str) -> Fetch:
    """Return a function that fetches from the nodes that a nameserver knows."""

    def fetch(dump: NodeDump, ranges: list[tuple[int, int]]) -> None:
        try:
            asyncio.run(_fetch(nameserver, dump, ranges))
        except LedgerMQError as error:
            raise SparkJobError(str(error)) from None

    return fetch


async def _fetch(nameserver: str, dump: NodeDump, ranges: Sequence[tuple[int, int]]) -> None:
    nodes = await known_nodes(nameserver, [])
    address = next(
        (each.address for each in nodes if (each.group, each.node_id) == (dump.group, dump.node)), ""
    )
    if not address:
        raise SparkJobError(f"{nameserver} knows no address of it")
    await fetch_ranges(dump.node, address, Path(dump.folder).parent, ranges)
