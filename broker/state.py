"""The replicated state machine: the meaning of committed entries (D12).

(interface first; the bodies follow)
"""

from __future__ import annotations

from ledgermq.proto.entry import EntryHeader

from .effects import Effects
from .groups import GroupTable
from .topics import TopicTable


class BrokerState:
    """Everything that survives a failover. Same entries, same state, on every node."""

    topics: TopicTable
    groups: GroupTable
    applied_index: int
    applied_term: int
    timestamp: int  # log time (ms) of the last applied entry
    log_start_index: int
    feature_level: int

    def apply(self, header: EntryHeader, payload: memoryview) -> Effects:
        """Apply the next committed entry. Raises: StateError (the node must stop), CorruptError."""
        raise NotImplementedError

    def queue_begin(self, topic_id: int, queue_id: int) -> int:
        """First queue offset that is still stored. Raises: QueueNotFoundError."""
        raise NotImplementedError

    def queue_end(self, topic_id: int, queue_id: int) -> int:
        """One past the last visible queue offset. Raises: QueueNotFoundError."""
        raise NotImplementedError

    def committed_offset(self, group_id: int, topic_id: int, queue_id: int) -> int | None:
        """Next offset the group has not finished; None: it never consumed from the queue."""
        raise NotImplementedError

    def leased_count(self, group_id: int, topic_id: int, queue_id: int) -> int:
        """Messages delivered and not acknowledged."""
        raise NotImplementedError

    def consumed_topics(self, group_id: int) -> list[int]:
        """Topic ids in which the group has a position."""
        raise NotImplementedError
