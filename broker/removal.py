"""What consumers would miss if a broker group were removed now.

`apply` of SetBrokerGroupMode version 2 decides by it, on every node: with what it says of a state, and so with what
`progress` counts, goes the meaning of a published command. Another rule needs another version. Pure.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from .progress_report import TopicProgress, progress, unfinished
from .topics import TRACE_TOPIC

if TYPE_CHECKING:
    from .state import BrokerState


def missed(state: BrokerState, consumers: Iterable[tuple[str, str]]) -> list[TopicProgress]:
    """Return who has not consumed what, and what nobody consumes; traces that nobody reads hold up nothing.

    `consumers`: (consumer group, topic) of other broker groups, which count here although they never came.
    """
    left = unfinished(progress(state, consumers=consumers))
    return [row for row in left if row.group or row.topic != TRACE_TOPIC]
