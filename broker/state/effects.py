"""What applying one entry did: facts for the shell to act on, and results for those who proposed.

`Effects.sections` and `Effects.results` stand in the order in which sections and commands stand in the entry. Every node
gets the same effects; waking long polls is for all nodes, answering callers is for the one that proposed the entry.

Owns: nothing; plain values.   Must not: hold payload views (they end with `apply`).
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from ledgermq.proto.values import value

from .commands import BrokerGroupMode, LogStart
from .consumer_groups import ConsumerGroup
from .topics import Topic


@dataclass(frozen=True, slots=True)
class TopicProgress:
    """A consumer group in a topic; `group` "": nobody has consumed from it, and `behind` is all that it holds."""

    group: str
    topic: str
    queues: int = 0  # with messages that are not finished
    behind: int = 0
    leased: int = 0
    lost: int = 0
    parked: int = 0  # not behind: it gets them no more until they are released


@value
class AppliedSection:
    """A run of records that is visible now. `end`: one past its last queue offset. Topic deleted meanwhile: gone."""

    topic_id: int
    queue_id: int
    base_offset: int
    count: int
    gone: bool = False

    @property
    def end(self) -> int:
        return self.base_offset + self.count


@dataclass(frozen=True, slots=True)
class TopicResult:
    """Of CreateTopic and DeleteTopic: the topic meant, and whether this command changed something."""

    topic: Topic | None
    changed: bool


@dataclass(frozen=True, slots=True)
class GroupResult:
    """Of CreateGroup and DeleteGroup."""

    group: ConsumerGroup | None
    changed: bool


@dataclass(frozen=True, slots=True, eq=False)
class RowsResult:
    """Of commands with rows: one bool per row, in order."""

    accepted: np.ndarray


@dataclass(frozen=True, slots=True, eq=False)
class CommitResult(RowsResult):
    """Of CommitOffsets. `fenced`: one bool per row: not accepted, because the queue is another owner's."""

    fenced: np.ndarray


@dataclass(frozen=True, slots=True, eq=False)
class GrantedQueue:
    """Offsets of one queue that were leased (sorted int64), and for each the delivery attempt (from 1).

    `lost`: messages that retention deleted before the group got here; the queue begins at `begin` since.
    """

    queue_id: int
    offsets: np.ndarray
    attempts: np.ndarray
    lost: int = 0
    begin: int = 0


@dataclass(frozen=True, slots=True, eq=False)
class GrantResult:
    """Of GrantLeases: what was really granted. `lease_id` is the entry's index."""

    lease_id: int
    queues: tuple[GrantedQueue, ...]


@dataclass(frozen=True, slots=True)
class Loss:
    """Messages that retention took from a group before it had consumed them; it goes on at queue offset `begin`."""

    group_id: int
    topic_id: int
    queue_id: int
    count: int
    begin: int


@dataclass(frozen=True, slots=True)
class Parked:
    """Messages that a consumer group gets no more until they are released; `total`: how many it has in that queue."""

    group_id: int
    topic_id: int
    queue_id: int
    count: int
    total: int


@dataclass(frozen=True, slots=True)
class ModeResult:
    """Of SetBrokerGroupMode: the mode now, since when (log time, ms; 0: active), and whether this command changed it.

    With `if_consumed` it may be another one than the command wants: the group takes messages, or `left` is missed by consumers.
    """

    mode: BrokerGroupMode
    since: int
    changed: bool
    left: tuple[TopicProgress, ...] = ()


CommandResult = TopicResult | GroupResult | RowsResult | GrantResult | ModeResult | None


@dataclass(slots=True)
class Effects:
    """All that one entry did. Keys of `released`: (group id, topic id)."""

    index: int
    term: int
    timestamp: int  # log time, ms
    sections: list[AppliedSection] = field(default_factory=list)
    results: list[CommandResult] = field(default_factory=list)
    topics_changed: bool = False  # the route changed: register and push it
    deleted_topics: list[Topic] = field(default_factory=list)  # their queue files can go
    # Something became deliverable again: wake polls
    released: set[tuple[int, int]] = field(default_factory=set)
    log_start: LogStart | None = None  # segments below it can be unlinked
    trimmed: list[tuple[int, int]] = field(default_factory=list)  # (topic id, queue id) with a new begin
    losses: list[Loss] = field(default_factory=list)
    parked: list[Parked] = field(default_factory=list)
    members_changed: set[int] = field(default_factory=set)  # groups with other members, owners or epochs
