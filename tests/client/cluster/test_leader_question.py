"""Who leads, as the nodes that answer know it."""

from __future__ import annotations

import pytest

from ledgermq.client.cluster import leader_question
from ledgermq.client.cluster.channels import Channels
from ledgermq.client.cluster.leader_question import who_leads
from tests.ports import free_ports

from ..fakes import FakeCluster, FakeGroup


@pytest.fixture(autouse=True)
def patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """A slow machine must not decide."""
    monkeypatch.setattr(leader_question, "LEADER_PATIENCE_S", 20.0)


async def test_the_newest_term_counts_and_a_node_that_is_gone_does_not() -> None:
    old, new = FakeGroup("old"), FakeGroup("new")
    channels = Channels()
    async with FakeCluster(old, new) as cluster:
        old.leader, old.term = "n1", 4
        new.leader, new.term = "n2", 5
        nodes = [cluster.node(group=name).address for name in ("old", "new")]
        gone = f"127.0.0.1:{free_ports(1)[0]}"
        assert await who_leads(channels, [*nodes, gone]) == (5, "n2")
        assert await who_leads(channels, nodes[:1]) == (4, "n1")
    await channels.close()


async def test_an_answer_from_far_away_is_waited_for_as_long_as_there_is_no_other(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Else a consumer with a long way to its brokers takes them all for lost."""
    monkeypatch.setattr(leader_question, "LEADER_PATIENCE_S", 0.0)
    monkeypatch.setattr(leader_question, "LEADER_TIMEOUT_S", 20.0)
    group = FakeGroup()
    channels = Channels()
    async with FakeCluster(group) as cluster:
        gone = f"127.0.0.1:{free_ports(1)[0]}"
        assert await who_leads(channels, [gone, cluster.node().address]) == (1, "n1")
    await channels.close()


async def test_without_an_answer_nothing_is_known() -> None:
    channels = Channels()
    assert await who_leads(channels, [f"127.0.0.1:{free_ports(1)[0]}"]) == (0, "")
    assert await who_leads(channels, []) == (0, "")
    await channels.close()
