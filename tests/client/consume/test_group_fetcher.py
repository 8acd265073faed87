"""A fetch stream that cannot be opened, or is moved while it is being opened."""

from __future__ import annotations

import asyncio
import socket
from typing import Self

import pytest

from ledgermq.client import MessageQueue
from ledgermq.client.cluster.channels import Channels
from ledgermq.client.cluster.topic_route import BrokerGroup, Node
from ledgermq.client.consume import fetch_stream as group_fetcher
from ledgermq.client.consume.fetch_buffer import FetchBuffer
from ledgermq.client.consume.fetch_stream import BrokerGroupFetcher
from ledgermq.client.consume.intake import AssignedQueue, Refused
from ledgermq.client.errors import LedgerMQError

from ..fakes import FakeCluster, FakeGroup
from ..reading import fill

QUEUE = MessageQueue("orders", "g0", 0)


class Fetcher(BrokerGroupFetcher[AssignedQueue]):
    """Reads one queue from its beginning."""

    def __init__(self, group: BrokerGroup, channels: Channels) -> None:
        self.buffer = FetchBuffer()
        self.buffer.assign(AssignedQueue(QUEUE, 1, 0, 0))
        self.has_messages = asyncio.Event()
        super().__init__(group, channels, self.buffer, 10_000)

    async def refresh(self) -> None:
        pass

    def arrived(self) -> None:
        self.has_messages.set()

    def fail(self, error: LedgerMQError) -> None:
        raise error

    async def on_refused(self, refused: list[Refused[AssignedQueue]]) -> None:
        raise AssertionError(refused)


class StoppedNode:
    """Listens like a process that was stopped: a connection is accepted, and nothing is said."""

    def __init__(self) -> None:
        self._sockets = [socket.create_server(("127.0.0.1", 0))]
        self._sockets[0].setblocking(False)
        self.address = f"127.0.0.1:{self._sockets[0].getsockname()[1]}"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for each in self._sockets:
            each.close()

    async def connected(self) -> None:
        """Return when a client has connected."""
        connection, _ = await asyncio.get_running_loop().sock_accept(self._sockets[0])
        self._sockets.append(connection)


def group_of(term: int, leader: str, *addresses: str) -> BrokerGroup:
    nodes = tuple(Node(f"n{i + 1}", address, "", alive=True) for i, address in enumerate(addresses))
    return BrokerGroup("local", "g0", term, leader, nodes, writable=True)


async def test_a_leader_that_is_stopped_while_it_is_connected_to_is_left_for_the_next_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(group_fetcher, "GRACE_S", 3600.0)
    async with FakeCluster(FakeGroup(topics={"orders": 1})) as cluster:
        await fill(cluster, [b"a"])
        living, channels = cluster.node().address, Channels()
        with StoppedNode() as stopped:
            fetcher = Fetcher(group_of(1, "n1", stopped.address, living), channels)
            await stopped.connected()
            fetcher.update(group_of(2, "n2", stopped.address, living))
            await fetcher.has_messages.wait()
            assert [message.body for message in fetcher.buffer.take(9)] == [b"a"]
            await fetcher.close()
            await channels.close()


async def test_an_older_route_that_comes_late_moves_no_stream() -> None:
    async with FakeCluster(FakeGroup(topics={"orders": 1}), nodes=2) as cluster:
        await fill(cluster, [b"a"])
        addresses, channels = [cluster.node(name).address for name in ("n1", "n2")], Channels()
        fetcher = Fetcher(group_of(2, "n1", *addresses), channels)
        await fetcher.has_messages.wait()
        fetcher.update(group_of(1, "n2", *addresses))
        fetcher.has_messages.clear()
        await fill(cluster, [b"b"])
        await fetcher.has_messages.wait()
        assert fetcher.source is not None
        assert fetcher.source.node_id == "n1"
        await fetcher.close()
        await channels.close()


async def test_a_suggested_follower_is_read_on_when_another_node_leads() -> None:
    async with FakeCluster(FakeGroup(topics={"orders": 1}), nodes=3) as cluster:
        await fill(cluster, [b"a"])
        nodes, channels = [cluster.node(name) for name in ("n1", "n2", "n3")], Channels()
        nodes[0].suggests = "n2"
        fetcher = Fetcher(group_of(1, "n1", *(node.address for node in nodes)), channels)
        await fetcher.has_messages.wait()
        await nodes[1].polled.wait()
        fetcher.update(group_of(2, "n3", *(node.address for node in nodes)))
        fetcher.has_messages.clear()
        await fill(cluster, [b"b"])
        await fetcher.has_messages.wait()
        assert fetcher.source is not None
        assert fetcher.source.node_id == "n2"
        await fetcher.close()
        await channels.close()
