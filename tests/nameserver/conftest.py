"""A nameserver with one listener, and a stub for it."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest
from grpc import aio

from ledgermq.nameserver.service import NameServer
from ledgermq.proto import nameserver_pb2_grpc


@pytest.fixture
def server(runner: asyncio.Runner) -> Iterator[NameServer]:
    made = NameServer({"default": "127.0.0.1:0"}, 10_000)
    runner.run(made.start())
    yield made
    runner.run(made.stop(0))


@pytest.fixture
def stub(runner: asyncio.Runner, server: NameServer) -> Iterator[Any]:
    async def open_channel() -> aio.Channel:
        return aio.insecure_channel(server.addresses["default"])

    channel = runner.run(open_channel())
    yield nameserver_pb2_grpc.NameServerServiceStub(channel)
    runner.run(channel.close(None))
