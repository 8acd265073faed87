"""`ledgermq cluster forget-group`: a broker group that is lost for good no longer holds the others up."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Coroutine, Iterator
from io import StringIO
from typing import Any

import grpc
import pytest

from ledgermq.client import Admin, BrokerGroupAdmin
from ledgermq.client.cli import run_cli
from ledgermq.client.errors import NameserversDownError, UsageError
from ledgermq.nameserver.service import NameServer, NameServerService, now_ms

from ..fakes import FakeCluster, FakeGroup
from ..served import Served, served


def run(coroutine: Coroutine[Any, Any, None]) -> None:
    asyncio.run(asyncio.wait_for(coroutine, 120))


def groups() -> tuple[FakeGroup, FakeGroup]:
    return FakeGroup("g0", {"orders": 1}), FakeGroup("g1", {"orders": 1, "news": 1})


def two_groups() -> FakeCluster:
    return FakeCluster(*groups())


class TwoNameservers(FakeCluster):
    """The groups are registered at a second nameserver, too."""

    def __init__(self) -> None:
        super().__init__(*groups())
        self.second = NameServer({"default": "127.0.0.1:0"}, 60_000)

    async def __aenter__(self) -> TwoNameservers:
        await self.second.start()
        self.second_address = self.second.addresses["default"]
        await super().__aenter__()
        return self

    async def __aexit__(self, *details: object) -> None:
        await super().__aexit__(*details)
        await self.second.stop(0)

    def register(self, group: FakeGroup) -> None:
        super().register(group)
        leader = self.nodes[group.name, "n1"]
        self.second.table.register("n1", "i1", leader.route(), True, now_ms())

    async def expire(self, group: FakeGroup) -> None:
        await super().expire(group)
        self.second.table.unregister("local", group.name, "n1")

    @property
    def address(self) -> str:
        return f"{super().address},{self.second_address}"


async def test_a_lost_group_is_forgotten_at_every_nameserver_and_the_others_go_on_as_without_it() -> None:
    async with TwoNameservers() as cluster, BrokerGroupAdmin(cluster.address) as admin:
        left, gone = cluster.groups
        await cluster.expire(gone)
        lost = await admin.lost_group("g1")
        assert (lost.gone.topics, lost.alone) == (("news", "orders"), ["news"])
        forgotten = await admin.forget_group("g1")
        assert sorted(forgotten.nameservers) == sorted(cluster.address.split(","))
        assert not forgotten.silent
        for address in cluster.address.split(","):
            async with Admin(address) as one:
                assert await one.gone_groups() == []
                assert [info.name for info in await one.topics()] == ["orders"]
        await admin.delete_topic("orders")
        assert left.topics == {}
        with pytest.raises(UsageError, match='no nameserver remembers a broker group "g1"'):
            await admin.forget_group("g1")


async def test_a_group_comes_back_by_itself_after_it_was_forgotten() -> None:
    async with two_groups() as cluster, BrokerGroupAdmin(cluster.address) as admin:
        await cluster.expire(cluster.groups[1])
        await admin.forget_group("g1")
        await cluster.revive(cluster.groups[1])
        assert [info.name for info in await admin.topics()] == ["news", "orders"]


async def test_the_last_group_is_forgotten_when_no_other_one_is_up() -> None:
    async with two_groups() as cluster, BrokerGroupAdmin(cluster.address) as admin:
        for group in cluster.groups:
            await cluster.expire(group)
        assert (await admin.lost_group("g0")).alone == ["orders"]
        await admin.forget_group("g0")
        with pytest.raises(UsageError, match="Those that are down: g1"):
            await admin.forget_group("g0")


async def test_a_group_of_which_a_node_lives_is_not_forgotten() -> None:
    async with TwoNameservers() as cluster, BrokerGroupAdmin(cluster.address) as admin:
        gone = cluster.groups[1]
        with pytest.raises(UsageError, match=r"is not lost: the nameserver .* lists its nodes n1"):
            await admin.forget_group("g1")
        await FakeCluster.expire(cluster, gone)  # the second one still hears it
        with pytest.raises(UsageError, match=f"the nameserver {cluster.second_address} lists its nodes"):
            await admin.forget_group("g1")
        await cluster.expire(gone)
        node = cluster.node(group="g1")
        await node.start(int(node.address.rpartition(":")[2]))  # and reaches no nameserver
        with pytest.raises(UsageError, match=f"its node n1 answers at {node.address}"):
            await admin.forget_group("g1")
        assert await admin.gone_groups() == ["g1"]


async def test_a_stranger_at_the_address_of_a_lost_group_does_not_keep_it() -> None:
    async with two_groups() as cluster, FakeCluster(FakeGroup("g1x")) as other:
        await cluster.expire(cluster.groups[1])
        stranger = other.node(group="g1x")
        await stranger.stop()
        await stranger.start(int(cluster.node(group="g1").address.rpartition(":")[2]))
        async with BrokerGroupAdmin(cluster.address) as admin:
            assert (await admin.forget_group("g1")).nameservers


async def test_a_node_that_comes_back_in_the_last_moment_keeps_its_group_where_it_is_registered(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with TwoNameservers() as cluster, BrokerGroupAdmin(cluster.address) as admin:
        gone = cluster.groups[1]
        await cluster.expire(gone)
        lost = await admin.lost_group("g1")

        async def looked(name: str) -> Any:
            FakeCluster.register(cluster, gone)
            return lost

        monkeypatch.setattr(admin, "lost_group", looked)
        forgotten = await admin.forget_group("g1")
        assert forgotten.nameservers == [cluster.second_address]
        (refused,) = forgotten.silent.values()
        assert "broker group g1 lives: n1 of it is registered" in str(refused)


async def test_without_a_nameserver_nothing_is_forgotten() -> None:
    async with BrokerGroupAdmin("127.0.0.1:1") as admin:
        with pytest.raises(NameserversDownError):
            await admin.forget_group("g1")


def test_an_older_nameserver_says_how_it_forgets(monkeypatch: pytest.MonkeyPatch) -> None:
    async def unknown(self: NameServerService, request: object, context: Any) -> None:
        await context.abort(grpc.StatusCode.UNIMPLEMENTED, "Method not found!")

    monkeypatch.setattr(NameServerService, "ForgetGroup", unknown)

    async def scenario() -> None:
        async with two_groups() as cluster, BrokerGroupAdmin(cluster.address) as admin:
            await cluster.expire(cluster.groups[1])
            forgotten = await admin.forget_group("g1")
            assert not forgotten.nameservers
            assert "older version" in str(forgotten.silent[cluster.address])
            assert "Start it again" in str(forgotten.silent[cluster.address])

    run(scenario())


# --- the command line ---------------------------------------------------------------------------------------


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> Iterator[Served[TwoNameservers]]:
    with served(TwoNameservers) as running:
        running.run(running.cluster.expire(running.cluster.groups[1]))
        monkeypatch.setenv("LEDGERMQ_NAMESERVER", running.address)
        yield running


def test_it_is_told_what_is_lost_before_the_question(
    cluster: Served[TwoNameservers], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "stdin", StringIO("n\n"))
    assert run_cli(["cluster", "forget-group", "g1"]) == 1
    printed = capsys.readouterr()
    assert "FORGETTING BROKER GROUP g1" in printed.out
    assert "Its nodes (n1) do not answer" in printed.out
    assert "stored there alone, of 2 topics: news, orders" in printed.out
    assert "No other broker group has news" in printed.out
    assert "stopped by the user" in printed.err
    assert [gone.view.group for gone in cluster.cluster.second.table.remembered("local")] == ["g1"]


def test_after_it_the_commands_work_again_without_a_warning(
    cluster: Served[TwoNameservers], capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_cli(["cluster", "forget-group", "g1", "--yes"]) == 0
    assert f"g1 is forgotten at {cluster.address.replace(',', ', ')}" in capsys.readouterr().out
    assert run_cli(["topic", "list"]) == 0
    assert capsys.readouterr().err == ""
    assert run_cli(["topic", "delete", "orders", "--yes"]) == 0


def test_a_nameserver_that_does_not_answer_is_named(
    cluster: Served[TwoNameservers], capsys: pytest.CaptureFixture[str]
) -> None:
    down = cluster.cluster.second_address
    cluster.run(cluster.cluster.second.stop(0))
    assert run_cli(["cluster", "forget-group", "g1", "--yes"]) == 1
    printed = capsys.readouterr()
    assert "g1 is forgotten at " in printed.out and down not in printed.out.splitlines()[-1]
    assert f"not done at the nameserver {down}" in printed.err
    assert "1 of 2 nameservers may still remember g1. It may be repeated" in printed.err
