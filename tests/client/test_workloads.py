"""The workloads of `ledgermq bench`, short, against a fake cluster; and how figures are folded."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Coroutine
from typing import Any

import pytest

from ledgermq.client.cli import run_cli
from ledgermq.client.errors import RefusedError
from ledgermq.client.workloads import Workloads, summarise
from ledgermq.proto import route_pb2 as pb

from .fakes import FakeCluster, FakeGroup
from .served import served


def run(coroutine: Coroutine[Any, Any, None]) -> None:
    asyncio.run(asyncio.wait_for(coroutine, 30))


def short(cluster: FakeCluster, size: int = 32) -> Workloads:
    return Workloads(cluster.address, "orders", size=size, seconds=0.02, in_flight=8)


def test_latencies_are_folded_into_percentiles_and_a_histogram() -> None:
    figures = summarise("W1", [0.0002, 0.0004, 0.0003, 0.1], 2.0, 100)
    assert (figures.messages, figures.rate) == (4, 2.0)
    assert (figures.p50_ms, figures.p99_ms, figures.max_ms) == pytest.approx((0.4, 100.0, 100.0))
    assert figures.histogram == {"0.25": 1, "0.5": 2, "128": 1}
    assert figures.as_dict()["messages_per_second"] == 2.0


def test_without_latencies_there_is_only_a_rate() -> None:
    figures = summarise("W4", [], 0.0, 100, 7)
    assert (figures.messages, figures.rate, figures.max_ms, figures.histogram) == (7, 0.0, 0.0, {})


@pytest.mark.parametrize("name", ["W1", "W2", "W3"])
def test_producing_counts_what_is_stored(name: str) -> None:
    async def scenario() -> None:
        group = FakeGroup(topics={"orders": 2})
        async with FakeCluster(group) as cluster:
            figures = await short(cluster).run(name)
            assert 0 < figures.messages <= group.stored()
            assert sum(figures.histogram.values()) == figures.messages

    run(scenario())


def test_a_backlog_is_made_when_there_is_none_and_read_back_whole() -> None:
    async def scenario() -> None:
        group = FakeGroup(topics={"orders": 2})
        async with FakeCluster(group) as cluster:
            figures = await short(cluster).run("W4")
            assert figures.messages == group.stored()
            assert sum(group.committed.values()) == group.stored()

    run(scenario())


def test_every_message_sent_at_a_rate_is_received_once() -> None:
    async def scenario() -> None:
        group = FakeGroup(topics={"orders": 2})
        async with FakeCluster(group) as cluster:
            figures = await short(cluster).run("W5")
            assert figures.messages == 10
            assert group.stored() == 11

    run(scenario())


@pytest.mark.parametrize("name", ["W1", "W5"])
def test_a_refused_message_ends_the_workload(name: str) -> None:
    async def scenario() -> None:
        async with FakeCluster(FakeGroup(topics={"orders": 1})) as cluster:
            cluster.node().refusals.extend([pb.Refusal(code=pb.INVALID_ARGUMENT, message="no")] * 50)
            with pytest.raises(RefusedError, match="no"):
                await short(cluster).run(name)

    run(scenario())


def test_the_command_uses_a_topic_of_its_own_and_deletes_it(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    with served(lambda: FakeCluster(FakeGroup())) as running:
        command = ["bench", "-n", running.address, "-w", "w5", "--seconds", "0.5", "--size", "16"]
        assert run_cli(command) == 0
        assert "500/s, send to receive" in capsys.readouterr().out
        assert running.cluster.groups[0].topics == {}
        node = running.cluster.node()
        node.refusals.extend([pb.Refusal(code=pb.INVALID_ARGUMENT, message="no")] * 500)
        assert run_cli([*command, "--json"]) == 1
        assert capsys.readouterr().err == "error: no.\n"
        assert running.cluster.groups[0].topics == {}
        node.refusals.clear()
        running.call(running.cluster.groups[0].create_topic, "kept", 1)
        running.call(running.cluster.register, running.cluster.groups[0])
        assert run_cli([*command, "--json", "--topic", "kept"]) == 0
        assert json.loads(capsys.readouterr().out)[0]["messages"] == 250
        assert "kept" in running.cluster.groups[0].topics


@pytest.mark.parametrize(("names", "words"), [("W9", 'no workload "W9"'), (",", "no workload is named")])
def test_an_unknown_workload_is_an_error_with_the_known_ones(
    names: str, words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_cli(["bench", "-w", names]) == 1
    printed = capsys.readouterr().err
    assert words in printed
    assert "Choose from W1, W2, W3, W4, W5" in printed
