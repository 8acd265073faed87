"""Retention hold: brokers keep messages until they are in the lake. On the driver.

Owns: the one place where the lake speaks with the holds of topics. Must not: end a job that archives: a hold
that cannot be advanced keeps more than is needed, and brokers limit it.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from typing import Any, Final

from ledgermq.client.errors import LedgerMQError
from ledgermq.client.message import MessageQueue
from ledgermq.client.sync import Admin

from ..topics.stream_offsets import Positions

logger = logging.getLogger(__name__)

#: A hold whose holder is silent expires, so it is repeated although nothing changed, s.
REPEAT_S: Final = 300.0


class RetentionHold:
    """A hold of one name on the topics of a lake. Offsets never move back, so threads may race."""

    def __init__(self, nameservers: str, name: str, connect: Callable[[str], Any] = Admin) -> None:
        self._nameservers = nameservers
        self._name = name
        self._connect = connect
        self._last: Positions = {}
        self._advanced_s = 0.0
        self._lost: dict[MessageQueue, int] = {}

    def begin(self, positions: Positions) -> None:
        """Set the hold. Raises: LedgerMQError."""
        self._set(positions)

    def advance(self, positions: Positions) -> None:
        """Let messages before these positions go."""
        try:
            self._set(positions)
        except LedgerMQError as error:
            logger.warning("hold %s is not advanced: %s", self._name, error)

    def repeat(self) -> None:
        """Let the brokers know now and then that the job is there."""
        if time.monotonic() - self._advanced_s > REPEAT_S:
            self.advance(self._last)

    def _set(self, positions: Positions) -> None:
        self._last = dict(positions)
        self._advanced_s = time.monotonic()
        with self._connect(self._nameservers) as admin:
            for topic, offsets in _by_topic(positions).items():
                for hold in admin.hold(topic, self._name, offsets):
                    if hold.overridden and self._lost.get(hold.queue) != hold.offset:
                        self._lost[hold.queue] = hold.offset
                        logger.warning("retention did not wait for hold %s in %s", self._name, hold.queue)


def _by_topic(positions: Positions) -> Mapping[str, dict[MessageQueue, int]]:
    found: dict[str, dict[MessageQueue, int]] = {}
    for (topic, group), part in positions.items():
        for queue, offset in part.queues.items():
            found.setdefault(topic, {})[MessageQueue(topic, group, queue)] = offset
    return found
