"""What /readyz says of a node that knows no leader."""

from __future__ import annotations

from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any, cast

import pytest

from ledgermq.broker.context import NodeContext
from ledgermq.broker.leadership import Leadership
from ledgermq.broker.metrics import Metrics
from ledgermq.broker.probes import Probes
from ledgermq.broker.retention_policy import RetentionView


@dataclass
class FakeNode:
    """A node that knows no leader, and what its Raft says of that."""

    held_back: str
    fault: str | None = None

    def status(self) -> Any:
        return SimpleNamespace(held_back=self.held_back)


@dataclass
class FakeContext:
    raft: FakeNode
    leadership: Leadership = field(default_factory=lambda: Leadership("n1"))
    metrics: Metrics = field(default_factory=Metrics)
    retention: RetentionView = field(default_factory=RetentionView)
    keys: Any = None  # metrics ask it, which nobody reads here


@pytest.mark.parametrize(
    ("held_back", "text"),
    [
        ("", b"no leader is known\n"),
        (
            "new group: waits for n3, which has never been reached",
            b"no leader is known: new group: waits for n3, which has never been reached\n",
        ),
    ],
)
def test_a_node_without_a_leader_is_not_ready_and_says_what_it_waits_for(held_back: str, text: bytes) -> None:
    probes = Probes(cast(NodeContext, FakeContext(FakeNode(held_back))))
    status, _, body = probes.routes()["/readyz"]()
    assert (status, body) == (503, text)
