"""What probes are told of a node that is not ready."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from ledgermq.broker.cluster.known_leader import Leadership
from ledgermq.broker.metrics import Metrics
from ledgermq.broker.ports.http import Routes
from ledgermq.broker.service.context import NodeContext
from ledgermq.broker.service.disk_steps import RetentionView
from ledgermq.broker.service.probes import Probes, starting


@dataclass
class FakeNode:
    """A node that knows no leader, and what its Raft says of that."""

    held_back: str
    fault: str | None = None

    connected: bool = False

    def status(self) -> Any:
        peers = [SimpleNamespace(node_id=name, connected=self.connected) for name in ("n2", "n3")]
        reachable = 3 if self.connected else 1
        return SimpleNamespace(
            held_back=self.held_back, node_id="n1", voters=3, voters_reachable=reachable, peers=peers
        )


@dataclass
class FakeContext:
    raft: FakeNode
    leadership: Leadership = field(default_factory=lambda: Leadership("n1"))
    metrics: Metrics = field(default_factory=Metrics)
    stopping: bool = False
    retention: RetentionView = field(default_factory=RetentionView)
    keys: Any = None  # metrics ask it, which nobody reads here


@pytest.mark.parametrize(
    ("held_back", "text"),
    [
        (
            "",
            b"no leader is known: waits for a majority: 1 of 3 voters are connected, not n2, n3\n",
        ),
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


def routes(node: FakeNode, *, stopping: bool = False) -> Routes:
    return Probes(cast(NodeContext, FakeContext(node, stopping=stopping))).routes()


def test_a_node_that_started_is_alive_also_when_it_is_not_ready_and_says_why() -> None:
    for path in ("/livez", "/startupz"):
        status, _, body = routes(FakeNode("", connected=True))[path]()
        assert status == 200 and b"an election is under way" in body
        assert routes(FakeNode("", fault="no disk"))[path]()[:1] == (503,)


def test_a_node_that_stops_is_not_ready() -> None:
    assert routes(FakeNode(""), stopping=True)["/readyz"]()[::2] == (503, b"stopping\n")


def test_the_manifests_ask_for_what_there_is_and_a_start_is_not_judged_by_the_liveness_probe() -> None:
    deploy = Path(__file__).parents[3] / "deploy"
    manifest = (deploy / "kubernetes.yaml").read_text()
    probes = dict(re.findall(r"(\w+)Probe: \{httpGet: \{path: (/\w+)", manifest))
    assert probes == {"startup": "/startupz", "readiness": "/readyz", "liveness": "/livez"}
    for name in ("docker-compose.yml", "docker-compose.g1.yml"):
        assert "'GET', '/readyz'" in (deploy / name).read_text()
    assert set(probes.values()) <= starting("x").keys() == routes(FakeNode("")).keys() - {"/metrics"}
