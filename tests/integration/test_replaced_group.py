"""Two real broker groups of one name: the second is kept out; clients of the first never send to it by id."""

from __future__ import annotations

import asyncio
import shutil
from pathlib import Path

import pytest

from ledgermq.client import Admin, Message, Producer, PullConsumer
from ledgermq.client.cli import run_cli
from ledgermq.client.errors import OtherBrokerGroupError, OutcomeUnknownError

from .cluster import Cluster, wait_until
from .group_load import run


def status(cluster: Cluster, capsys: pytest.CaptureFixture[str]) -> tuple[int, str]:
    """Return exit code and text of `ledgermq cluster status`."""
    code = run_cli(["cluster", "status", "--nameserver", cluster.nameserver])
    return code, capsys.readouterr().out


def stored(cluster: Cluster, topic: str) -> list[bytes]:
    """Return the bodies of a topic."""

    async def read() -> list[bytes]:
        async with PullConsumer(cluster.nameserver) as consumer:
            await consumer.subscribe(topic)
            return [message.body for message in await consumer.poll(100, timeout_ms=5_000)]

    return asyncio.run(read())


async def send_until_stored(producer: Producer, message: Message) -> None:
    """Send a message until it is stored: the new broker group refuses messages meant for the former one."""
    while True:
        try:
            await producer.send(message)
        except (OtherBrokerGroupError, OutcomeUnknownError):
            continue
        return


def test_a_second_group_of_a_name_is_kept_out_while_the_first_is_there(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also when its node has the name of a node of the first."""
    monkeypatch.setenv("COLUMNS", "300")
    with Cluster(tmp_path / "first", nodes=1) as first:
        wait_until(lambda: status(first, capsys)[0] == 0, "the first group is listed")
        address = {"nameservers": first.nameserver}
        with Cluster(tmp_path / "second", nodes=1, nameservers=0, settings=address) as second:
            where = second.address("n1")
            _, text = wait_until(
                lambda: next((each for each in [status(first, capsys)] if each[0] == 1), None),
                "the second is seen",
            )
            assert f"n1 at {where}. No client is sent to them" in text
            assert first.address("n1", "messaging") in text and second.address("n1", "messaging") not in text
            assert "nameserver refuses this node" in second.nodes["n1"].log()
            assert first.terminate("n1") == 0
            wait_until(
                lambda: second.address("n1", "messaging") in status(first, capsys)[1],
                "the second is listed when the first is gone",
            )
            assert "nameserver lists this node" in second.nodes["n1"].log()


def test_clients_of_a_group_that_is_made_anew_carry_nothing_over_and_use_the_topics_that_it_has_now(
    tmp_path: Path,
) -> None:
    """Its folder is deleted. In the new one "payments" has the id that "orders" had."""
    with Cluster(tmp_path, nodes=1, settings={"auto-create-topics": "false"}) as cluster:
        address = cluster.nameserver

        async def make(*topics: str) -> None:
            async with Admin(address) as admin:
                for topic in topics:
                    await admin.create_topic(topic, 1)

        async def scenario() -> None:
            await make("orders", "payments")
            async with (
                Producer(address, timeout_ms=60_000) as producer,
                PullConsumer(address) as consumer,
            ):
                for topic in ("orders", "payments"):
                    await producer.send(topic, b"before")
                await consumer.subscribe("orders")
                assert [each.body for each in await consumer.poll(9, timeout_ms=20_000)] == [b"before"]
                await asyncio.to_thread(cluster.terminate, "n1")
                await asyncio.to_thread(shutil.rmtree, tmp_path / "n1")
                await asyncio.to_thread(cluster.restart, "n1")
                await make("payments", "orders")
                sends = [Message(topic, topic.encode()) for topic in ("orders", "payments", "payments")]
                await asyncio.gather(*(send_until_stored(producer, each) for each in sends))
                with pytest.raises(OtherBrokerGroupError, match="was replaced by another one of its name"):
                    await consumer.poll(9, timeout_ms=20_000)
                await consumer.subscribe("orders")
                assert [each.body for each in await consumer.poll(9, timeout_ms=20_000)] == [b"orders"]

        run(scenario())
        assert stored(cluster, "payments") == [b"payments"] * 2
        assert stored(cluster, "orders") == [b"orders"]
