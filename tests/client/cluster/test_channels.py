"""Open calls to a server that has fallen silent: pings find it."""

from __future__ import annotations

import asyncio
from typing import Any

import grpc
import pytest
from grpc import aio

from ledgermq.client.cluster import channels
from ledgermq.client.cluster.channels import Channels

from ..silent_relay import SilentRelay

METHOD = "/test.Silent/Wait"


class Waiting:
    """Takes calls and has nothing to say; `asked` is set when one has come."""

    def __init__(self) -> None:
        self.asked = asyncio.Event()

    def handler(self) -> grpc.GenericRpcHandler[Any, Any]:
        methods = {"Wait": grpc.unary_unary_rpc_method_handler(self._wait)}
        return grpc.method_handlers_generic_handler("test.Silent", methods)

    async def _wait(self, request: bytes, context: Any) -> bytes:
        self.asked.set()
        await asyncio.Event().wait()
        return b""


@pytest.mark.parametrize(("watch", "limit"), [(False, "KEEPALIVE_TIMEOUT_S"), (True, "WATCH_TIMEOUT_S")])
async def test_a_call_fails_when_the_other_side_answers_not_even_pings(
    monkeypatch: pytest.MonkeyPatch, watch: bool, limit: str
) -> None:
    monkeypatch.setattr(channels, "KEEPALIVE_S", 0.2)
    monkeypatch.setattr(channels, limit, 0.2)
    server, waiting, clients = aio.server(), Waiting(), Channels()
    server.add_generic_rpc_handlers((waiting.handler(),))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    try:
        async with SilentRelay(f"127.0.0.1:{port}") as relay:
            call = clients.get(relay.address, watch=watch).unary_unary(METHOD, None, None)(b"", timeout=3600)
            await waiting.asked.wait()
            relay.fall_silent()
            with pytest.raises(aio.AioRpcError) as failed:
                await call
            assert failed.value.code() is grpc.StatusCode.UNAVAILABLE
    finally:
        await clients.close()
        await server.stop(0)
