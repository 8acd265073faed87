"""Creates the topic that clients write message traces to, where this broker group keeps them (`trace_topic`).

Users cannot create system topics. So a new leader creates a missing trace topic, and retries until it exists
(a disk may be full, a log behind). It is a topic like any other: it is replicated, any consumer of the log
can read it, and it is deleted with the log or by its own retention.
Owns: nothing. Must not: know what a trace is.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Final

from ..cluster.known_leader import Leadership
from ..leader.pipeline import AppendPipeline, Applied
from ..refusals import REFUSABLE
from ..replica import Replica
from ..state.commands import CreateTopic, MessageType
from ..state.topics import TRACE_TOPIC
from .shutdown import Shutdown

logger = logging.getLogger(__name__)

#: Traces are written in batches and read whole: one queue per broker group is enough.
_QUEUES: Final = 1


#: Pauses between attempts, s: the first one, doubled each time up to the longest.
FIRST_PAUSE_S: Final = 0.5
LONGEST_PAUSE_S: Final = 60.0


class TraceTopic:
    """Keeps the trace topic in existence. `wanted`: this broker group keeps traces.

    Call `on_leadership` after each leadership change.
    """

    def __init__(
        self,
        replica: Replica,
        pipeline: AppendPipeline,
        leadership: Leadership,
        shutdown: Shutdown,
        *,
        wanted: bool,
    ) -> None:
        self._replica = replica
        self._pipeline = pipeline
        self._leadership = leadership
        self._shutdown = shutdown
        self._wanted = wanted
        self._pause_s = FIRST_PAUSE_S
        self._timer: asyncio.TimerHandle | None = None  # of the next attempt
        self._is_creating = False  # a command that creates the topic has been proposed

    def on_leadership(self) -> None:
        """Create a missing trace topic if this node leads and its broker group keeps traces.

        A failed attempt is repeated after a pause.
        """
        if self._timer is not None:
            self._timer.cancel()
        self._pause_s = FIRST_PAUSE_S
        self._create()

    def _create(self) -> None:
        self._timer = None
        if self._is_creating or self._shutdown.begun or self._is_there:
            return
        if not (self._wanted and self._leadership.ready):
            return
        try:
            created = self._pipeline.run(CreateTopic(TRACE_TOPIC, _QUEUES, MessageType.NORMAL))
        except REFUSABLE as error:
            self._try_again(error)
        else:
            self._is_creating = True
            created.add_done_callback(self._on_created)

    @property
    def _is_there(self) -> bool:
        return self._replica.state.topics.find(TRACE_TOPIC) is not None

    def _on_created(self, created: asyncio.Future[Applied]) -> None:
        self._is_creating = False
        if created.cancelled():
            return
        error = created.exception()
        if self._is_there:
            logger.info("trace topic is there topic=%s", TRACE_TOPIC)
        else:
            self._try_again(error or created.result().result)

    def _try_again(self, reason: object) -> None:
        """Retry after a pause. A node that no longer leads by then leaves it to the new leader."""
        logger.warning(
            "trace topic not created topic=%s again_in_s=%.1f reason=%r", TRACE_TOPIC, self._pause_s, reason
        )
        self._timer = asyncio.get_running_loop().call_later(self._pause_s, self._create)
        self._pause_s = min(2 * self._pause_s, LONGEST_PAUSE_S)
