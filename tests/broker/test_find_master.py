"""A slave that looks for its master is alive, and not ready."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from ledgermq.broker import __main__ as main
from ledgermq.broker import find_master
from ledgermq.broker.config import BrokerConfig, load
from ledgermq.broker.listeners import PortError, check_port
from tests.ports import free_port


def config(tmp_path: Path, **settings: str) -> BrokerConfig:
    return load(
        None,
        {
            "node_id": "n2",
            "data_dir": str(tmp_path / "n2"),
            "peers": "n1=127.0.0.1:1,n2=127.0.0.1:2",
            "replication": "async_master",
            "nameservers": f"127.0.0.1:{free_port()}",
            "http_bind": f"127.0.0.1:{free_port()}",
            **settings,
        },
    )


async def get(address: str, path: str) -> str:
    """Return what a probe gets, as soon as anybody listens."""
    host, _, port = address.rpartition(":")
    async with asyncio.timeout(30):
        while True:
            try:
                reader, writer = await asyncio.open_connection(host, int(port))
                break
            except ConnectionRefusedError:
                await asyncio.sleep(0)
    writer.write(f"GET {path} HTTP/1.1\r\n\r\n".encode())
    answer = await reader.read()
    writer.close()
    return answer.decode()


def test_probes_are_answered_while_no_nameserver_knows_the_master(tmp_path: Path) -> None:
    async def scenario() -> None:
        settings, stop = config(tmp_path), asyncio.Event()
        looking = asyncio.create_task(main._with_master(settings, stop))
        assert (await get(settings.http_bind, "/livez")).startswith("HTTP/1.1 200 ")
        for path in ("/readyz", "/healthz"):
            answer = await get(settings.http_bind, path)
            assert answer.startswith("HTTP/1.1 503 ") and "looks for the master of group g0" in answer
        assert not looking.done()
        stop.set()
        assert await looking is None
        check_port("http_bind", settings.http_bind)  # it is free

    asyncio.run(scenario())


def test_the_port_is_the_nodes_when_the_master_was_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def ask(_address: str, settings: BrokerConfig) -> str:
        assert (await get(settings.http_bind, "/livez")).startswith("HTTP/1.1 200 ")
        return "n1"

    async def scenario() -> None:
        settings = config(tmp_path)
        known = await main._with_master(settings, asyncio.Event())
        assert known is not None and known.master == "n1"
        check_port("http_bind", settings.http_bind)

    monkeypatch.setattr(find_master, "_ask", ask)
    asyncio.run(scenario())


def test_a_port_that_is_taken_is_told_at_once(tmp_path: Path) -> None:
    async def scenario() -> None:
        server = await asyncio.start_server(lambda *_: None, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        with pytest.raises(PortError, match="http_bind"):
            await main._with_master(config(tmp_path, http_bind=f"127.0.0.1:{port}"), asyncio.Event())
        server.close()

    asyncio.run(scenario())
