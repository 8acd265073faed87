"""After a reset a new node takes the place of the old one in the same process (`python -m ledgermq.broker`)."""

from __future__ import annotations

import asyncio
import os
import signal
from typing import Any, ClassVar

import pytest

from ledgermq.broker import __main__ as main
from ledgermq.broker import promotion, server
from ledgermq.broker.config import BrokerConfig, load
from ledgermq.broker.listeners import PortError

PLAN = object()


class FakeNode:
    """Notes its life; the first of a test is reset, the next one is stopped by SIGTERM."""

    made: ClassVar[list[FakeNode]] = []
    refusals = 0  # starts that find a port taken, from the second node on
    fault_at_stop: str | None = None
    is_promoted = False  # what ends the first is a promotion

    def __init__(self, config: BrokerConfig, *, files: Any = None) -> None:
        self.config = config
        self.node_id = config.node_id
        self.life: list[str] = []
        self.fault: str | None = None
        self.made.append(self)

    async def start(self) -> None:
        assert all("stop" in other.life for other in self.made[:-1]), "one at a time has the folder"
        if len(self.made) > 1 and FakeNode.refusals:
            FakeNode.refusals -= 1
            raise PortError("messaging_bind", "h:1", "another process uses it")
        self.life.append("start")

    async def stop(self) -> None:
        self.life.append("stop")
        self.fault = FakeNode.fault_at_stop

    def ready_line(self) -> str:
        return "ready"

    @property
    def promotion_plan(self) -> object:
        return PLAN if FakeNode.is_promoted and self.made[0] is self else None

    async def wait_promotion(self) -> None:
        if not FakeNode.is_promoted or len(self.made) > 1:
            await asyncio.Event().wait()

    async def wait_reset(self) -> None:
        if FakeNode.is_promoted and len(self.made) == 1:
            await asyncio.Event().wait()
        if len(self.made) > 1:
            os.kill(os.getpid(), signal.SIGTERM)
            await asyncio.Event().wait()

    async def wait_fatal(self) -> str:
        await asyncio.Event().wait()
        raise AssertionError


@pytest.fixture(autouse=True)
def _fake(monkeypatch: pytest.MonkeyPatch) -> None:
    FakeNode.made, FakeNode.refusals, FakeNode.fault_at_stop = [], 0, None
    FakeNode.is_promoted = False
    monkeypatch.setattr(server, "BrokerNode", FakeNode)
    monkeypatch.setattr(main, "_settle_memory", lambda: None)


def config(tmp_path: Any) -> BrokerConfig:
    return load(None, {"node_id": "n1", "data_dir": str(tmp_path), "peers": "n1=127.0.0.1:1", "rejoin": True})


def test_a_reset_node_is_replaced_without_the_flag_that_would_give_its_folder_up(
    tmp_path: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    assert asyncio.run(main.run(config(tmp_path))) == 0
    assert [node.life for node in FakeNode.made] == [["start", "stop"]] * 2
    assert [node.config.rejoin for node in FakeNode.made] == [True, False]
    assert capsys.readouterr().out == "ready\n", "whoever started the process waits for one line"


def test_a_promoted_node_is_replaced_when_its_folder_has_begun_a_new_generation(
    tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    FakeNode.is_promoted = True
    promoted = []

    def promote(data: Any, files: Any, plan: object) -> None:
        assert [node.life for node in FakeNode.made] == [["start", "stop"]], "its folder is free"
        promoted.append((data, plan))

    monkeypatch.setattr(promotion, "promote", promote)
    assert asyncio.run(main.run(config(tmp_path))) == 0
    assert promoted == [(tmp_path, PLAN)]
    assert [node.life for node in FakeNode.made] == [["start", "stop"]] * 2


def test_a_port_that_is_taken_for_a_moment_is_waited_for(tmp_path: Any) -> None:
    FakeNode.refusals = 2
    assert asyncio.run(main.run(config(tmp_path))) == 0
    assert [node.life for node in FakeNode.made] == [["start", "stop"], ["stop"], ["stop"], ["start", "stop"]]


def test_a_port_that_stays_taken_ends_the_process(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    FakeNode.refusals = 99
    monkeypatch.setattr(main, "PORT_PATIENCE", 0.3)
    with pytest.raises(PortError):
        asyncio.run(main.run(config(tmp_path)))
    assert all(node.life[-1] == "stop" for node in FakeNode.made)


def test_a_fault_that_shows_while_the_node_stops_is_no_clean_end(
    tmp_path: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    FakeNode.fault_at_stop = "flushing failed"
    assert asyncio.run(main.run(config(tmp_path))) == main.EXIT_FAULT
    assert "n1 stops: flushing failed" in capsys.readouterr().err
