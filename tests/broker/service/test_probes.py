"""What probes are told of a node that is not ready."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from ledgermq.broker.cluster.known_leader import Leadership
from ledgermq.broker.metrics import Metrics
from ledgermq.broker.ports.http import Routes
from ledgermq.broker.reading.polls import Polls
from ledgermq.broker.service.probes import Probes, starting
from ledgermq.broker.service.shutdown import Shutdown


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


def routes(node: FakeNode, *, stopping: bool = False) -> Routes:
    raft: Any = node
    nothing: Any = None  # it is not used here
    shutdown = Shutdown(Polls())
    if stopping:
        shutdown.begin()
    return Probes(raft, nothing, nothing, Leadership("n1"), shutdown, Metrics()).routes()


@pytest.mark.parametrize(
    ("held_back", "text"),
    [
        (
            "",
            b"no leader is known: waits for a majority: 1 of 3 voters are connected, not n2, n3\n",
        ),
        (
            "new broker group: waits for n3, which has never been reached",
            b"no leader is known: new broker group: waits for n3, which has never been reached\n",
        ),
    ],
)
def test_a_node_without_a_leader_is_not_ready_and_says_what_it_waits_for(held_back: str, text: bytes) -> None:
    status, _, body = routes(FakeNode(held_back))["/readyz"]()
    assert (status, body) == (503, text)


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
