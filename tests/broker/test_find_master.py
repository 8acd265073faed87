"""A slave that looks for its master is alive, and not ready."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from ledgermq.broker import __main__ as main
from ledgermq.broker import find_master
from ledgermq.broker.config import BrokerConfig, load
from ledgermq.broker.service.probes import ProcessProbes
from tests.ports import free_port


def config(tmp_path: Path) -> BrokerConfig:
    return load(
        None,
        {
            "node_id": "n2",
            "data_dir": str(tmp_path / "n2"),
            "peers": "n1=127.0.0.1:1,n2=127.0.0.1:2",
            "replication": "async_master",
            "nameservers": f"127.0.0.1:{free_port()}",
        },
    )


async def test_who_looks_for_the_master_says_so_and_can_be_stopped(tmp_path: Path) -> None:
    settings, stop, probed = config(tmp_path), asyncio.Event(), ProcessProbes()
    looking = asyncio.create_task(main._with_master(settings, stop, probed))
    await asyncio.sleep(0)
    status, _, said = probed.http.answer(b"GET /readyz HTTP/1.1\r\n")
    assert status == 503 and b"looks for the master of broker group g0" in said
    assert probed.http.answer(b"GET /livez HTTP/1.1\r\n")[0] == 200
    assert not looking.done()
    stop.set()
    assert await looking is None


def test_the_master_that_a_nameserver_names_is_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def ask(_address: str, _settings: BrokerConfig) -> str:
        return "n1"

    monkeypatch.setattr(find_master, "_ask", ask)
    known = asyncio.run(main._with_master(config(tmp_path), asyncio.Event(), ProcessProbes()))
    assert known is not None and known.master == "n1"
