"""Makes the topic that clients write message traces to, where this group keeps them (`trace_topic`).

Users cannot create system topics, so the leader does it, when it begins to lead and the topic is not there. It is a topic like
any other: replicated, read by any consumer of the log, deleted with the log or by its own retention.
Owns: nothing. Must not: know what a trace is.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Final

from .commands import CreateTopic, MessageType
from .context import NodeContext
from .produce import Applied
from .refusals import REFUSABLE
from .topics import TRACE_TOPIC

logger = logging.getLogger(__name__)

#: Traces are written in batches and read whole: one queue per group is enough.
_QUEUES: Final = 1


class TraceTopic:
    """Call `on_leadership` after each change of the leadership."""

    def __init__(self, context: NodeContext) -> None:
        self._context = context

    def on_leadership(self) -> None:
        """Create the topic if this node leads, is set up to keep traces, and has no such topic."""
        context = self._context
        if not (context.config.trace_topic and context.leadership.ready):
            return
        if context.replica.state.topics.find(TRACE_TOPIC) is not None:
            return
        try:
            created = context.pipeline.run(CreateTopic(TRACE_TOPIC, _QUEUES, MessageType.NORMAL))
        except REFUSABLE as error:
            _not_created(error)
        else:
            created.add_done_callback(_on_created)


def _on_created(created: asyncio.Future[Applied]) -> None:
    if created.cancelled():
        return
    error = created.exception()
    if error is not None:  # the next leader creates it
        _not_created(error)
    else:
        logger.info("trace topic is there topic=%s", TRACE_TOPIC)


def _not_created(error: BaseException) -> None:
    logger.warning("trace topic not created, the next leader does it topic=%s reason=%s", TRACE_TOPIC, error)
