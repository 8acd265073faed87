"""One-way sends: counts lost messages and logs them.

Owns: the counts. Must not: keep the messages. Losses are combined into one log line, at most every 10 s, and
a last one at close.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import logging
import threading
from collections.abc import Callable

from ..errors import BufferFullError
from ..message import SendReceipt
from ..pauses import REPORT_S

logger = logging.getLogger(__name__)

Receipt = asyncio.Future[SendReceipt] | concurrent.futures.Future[SendReceipt]


class OneWay:
    """Call `send` from any thread, but `report` only on the producer's loop."""

    def __init__(self, producer_group: str) -> None:
        self.stored = 0
        self.failed = 0  # accepted, then not stored, or with unknown outcome
        self.dropped = 0  # not accepted: the buffer was full
        self._producer_group = producer_group
        self._lock = threading.Lock()
        self._reported = (0, 0)  # failed and dropped, as last logged
        self._next_report = 0
        self._reason = ""

    def send(self, queue: Callable[[], Receipt]) -> bool:
        """Queue a message and count its outcome. Return whether it was accepted.

        Raises: whatever `queue` raises, except BufferFullError.
        """
        try:
            future = queue()
        except BufferFullError:
            with self._lock:
                self.dropped += 1
            return False
        future.add_done_callback(self._done)
        return True

    def _done(self, future: Receipt) -> None:
        error = None if future.cancelled() else future.exception()
        with self._lock:
            if error is None and not future.cancelled():
                self.stored += 1
            else:
                self.failed += 1
                self._reason = str(error or "the producer was closed")

    def report(self, now: int, *, last: bool = False) -> None:
        """Log the losses since the last line, if a line is due. `now`: ms of any monotonic clock."""
        lost = (self.failed, self.dropped)
        if lost == self._reported or (now < self._next_report and not last):
            return
        failed, dropped = (new - old for new, old in zip(lost, self._reported, strict=True))
        logger.warning(
            "one-way messages lost group=%s failed=%d reason=%s dropped=%d "
            "(no room: send slower, or raise max_pending_bytes)",
            self._producer_group, failed, self._reason if failed else "", dropped,
        )  # fmt: skip
        self._reported, self._next_report = lost, now + int(1000 * REPORT_S)
