"""Synchronous bulk reader: fetches ahead on the loop thread while its caller decodes.

Owns: the one answer that is fetched ahead. Must not: decode records.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from typing import Any

from ..consume.bulk_reader import BulkReader as AsyncBulkReader
from ..consume.bulk_reader import Fetched, QueueRange
from .loop_thread import Closing, awaited


class BulkReader(Closing):
    """The asyncio BulkReader for callers without an event loop, such as Spark's workers."""

    _twin: AsyncBulkReader

    def __init__(self, nameservers: str | Sequence[str] = "127.0.0.1:9876", **options: Any) -> None:
        """`options`: those of the asyncio BulkReader."""
        super().__init__()
        self._build(lambda: AsyncBulkReader(nameservers, **options))

    route = awaited(AsyncBulkReader.route)
    gone_groups = awaited(AsyncBulkReader.gone_groups)
    bounds = awaited(AsyncBulkReader.bounds)
    commit = awaited(AsyncBulkReader.commit)

    def answers(self, wanted: QueueRange) -> Iterator[Fetched]:
        """Yield the answers for a range in order; the one after each is being fetched meanwhile.

        After an answer with `begin`, reading goes on there. Raises: as the twin's `fetch`.
        """
        ahead = self._ask(wanted, wanted.start)
        while ahead is not None:
            fetched = ahead.result()
            ahead = self._ask(wanted, max(fetched.next_offset, fetched.begin))
            yield fetched

    def _ask(self, wanted: QueueRange, offset: int) -> Future[Fetched] | None:
        self._check_open()
        return self._thread.submit(self._twin.fetch(wanted, offset)) if offset < wanted.end else None
