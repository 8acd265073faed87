"""What consumers would miss if a broker group were removed now.

`apply` of SetBrokerGroupMode version 2 decides by it, on every node: with what it says of a state, and so with what
`progress` counts, goes the meaning of a published command. Another rule needs another version. (Parked messages count since
there are some: a build that knows none of them cannot have the state in which they are.) Pure.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from .progress_report import TopicProgress, progress
from .topics import TRACE_TOPIC

if TYPE_CHECKING:
    from .machine import BrokerState


def missed(state: BrokerState, consumers: Iterable[tuple[str, str]]) -> list[TopicProgress]:
    """Return who has not consumed what, or has it parked, and what nobody consumes; traces that nobody reads hold up nothing.

    `consumers`: (consumer group, topic) of other broker groups, which count here although they never came.
    """
    left = [row for row in progress(state, consumers=consumers) if row.behind or row.parked]
    return [row for row in left if row.group or row.topic != TRACE_TOPIC]
