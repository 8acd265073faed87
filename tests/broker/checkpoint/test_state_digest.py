"""The digest of a state: equal where checkpoints are, and another one for every change."""

from __future__ import annotations

from ledgermq.broker.checkpoint.layout import VERSION, take_snapshot
from ledgermq.broker.checkpoint.state_digest import state_digest
from ledgermq.broker.state.commands import EndJob

from ..entry_log import Node, checkpoint, restored


def test_nodes_with_one_history_have_one_digest_even_when_one_restarts_and_each_entry_changes_it() -> None:
    node = Node()
    topic = node.topic()
    node.fill(topic, 0, 5)
    made = state_digest(take_snapshot(node.state))
    assert (made.index, made.version, len(made.digest)) == (node.state.applied_index, VERSION, 32)
    assert state_digest(take_snapshot(restored(checkpoint(node.state)))) == made
    node.command(EndJob(bytes(16)))  # changes nothing but the index
    assert state_digest(take_snapshot(node.state)).digest != made.digest
