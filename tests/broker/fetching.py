"""Fetches of a node that a test plays: its replica, log and leadership; no Raft, no disk, no gRPC."""

from __future__ import annotations

from typing import Any

from ledgermq.broker.cluster.known_leader import Leadership
from ledgermq.broker.metrics import Metrics
from ledgermq.broker.native.fetch import Fetches, SectionReads, Suggestions
from ledgermq.broker.reading.log_reader import QueueReader
from ledgermq.broker.reading.polls import CommitWatch, Polls
from ledgermq.broker.reading.read_advice import ReadAdvice
from ledgermq.broker.service.shutdown import Shutdown


def fetches(
    raft: Any, replica: Any, reader: Any, leadership: Leadership, advice: ReadAdvice, metrics: Metrics
) -> Fetches:
    """Return the Fetch calls of a node."""
    polls = Polls()
    return Fetches(
        SectionReads(replica, QueueReader(replica, reader), raft, leadership, metrics),
        Suggestions(advice, raft, replica, leadership, metrics),
        raft,
        leadership,
        polls,
        CommitWatch(raft),
        Shutdown(polls),
    )
