"""After a reset a new node replaces the old one in the same process (`python -m ledgermq.broker`)."""

from __future__ import annotations

import asyncio
import errno
import os
import signal
import socket
from typing import Any, ClassVar

import pytest

from ledgermq.broker import __main__ as main
from ledgermq.broker import node as server
from ledgermq.broker.admin import promotion
from ledgermq.broker.config import BrokerConfig, load
from ledgermq.broker.ports.http import Routes
from ledgermq.broker.ports.listeners import PortError, check_port
from ledgermq.broker.service.probes import starting
from tests.ports import free_port

PLAN = object()


class FakeNode:
    """Notes its life; the first of a test is reset, the next one is stopped by SIGTERM."""

    made: ClassVar[list[FakeNode]] = []
    refusals = 0  # starts that find a port taken, from the second node on
    fault_at_stop: str | None = None
    is_promoted = False  # what ends the first is a promotion
    probes: ClassVar[list[str]] = []  # what they heard while nodes were being started

    def __init__(self, config: BrokerConfig, *, files: Any = None, http: Any = None) -> None:
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
        self.probes.append(await probe(self.config.http_bind, "/livez"))
        self.probes.append(await probe(self.config.http_bind, "/startupz"))
        self.life.append("start")

    def routes(self) -> Routes:
        return starting("repairs its log")

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
    FakeNode.is_promoted, FakeNode.probes = False, []
    monkeypatch.setattr(server, "BrokerNode", FakeNode)
    monkeypatch.setattr(main, "_settle_memory", lambda: None)


def config(tmp_path: Any) -> BrokerConfig:
    settings = {"node_id": "n1", "data_dir": str(tmp_path), "peers": "n1=127.0.0.1:1", "rejoin": True}
    return load(None, settings | {"http_bind": f"127.0.0.1:{free_port()}"})


async def probe(address: str, path: str) -> str:
    host, _, port = address.rpartition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    writer.write(f"GET {path} HTTP/1.1\r\n\r\n".encode())
    answer = (await reader.read()).decode()
    writer.close()
    return f"{answer.split()[1]} {answer.splitlines()[-1]}"


def test_the_http_port_is_open_while_a_node_starts_and_says_what_it_does(tmp_path: Any) -> None:
    """A probe without an answer would end a node that repairs its log, which begins again then."""
    assert asyncio.run(main.run(config(tmp_path))) == 0
    assert FakeNode.probes == ["200 starting: repairs its log", "503 starting: repairs its log"] * 2


def test_an_http_port_that_is_taken_is_told_before_anything_is_opened(tmp_path: Any) -> None:
    settings = config(tmp_path)
    host, _, port = settings.http_bind.rpartition(":")
    with socket.create_server((host, int(port))), pytest.raises(PortError, match="http_bind"):
        asyncio.run(main.run(settings))
    assert not FakeNode.made


@pytest.mark.parametrize("host", ["192.0.2.1", "nowhere.invalid"])
def test_an_address_of_another_machine_is_told_from_a_port_that_is_taken(host: str) -> None:
    with pytest.raises(PortError, match=f"{host} is no address of this machine. Set log_bind to an") as error:
        check_port("log_bind", f"{host}:8082")
    assert "Free the port" not in str(error.value)


def test_what_stands_between_the_nodes_of_a_process_is_told(
    tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    FakeNode.is_promoted = True
    settings, heard = config(tmp_path), list[str]()

    def promote(data: Any, files: Any, plan: object) -> None:
        heard.append(asyncio.run(probe(settings.http_bind, "/livez")))

    monkeypatch.setattr(promotion, "promote", promote)
    assert asyncio.run(main.run(settings)) == 0
    assert heard == ["200 starting: begins a new generation as the master"]


def test_a_reset_node_is_replaced_without_the_flag_that_would_give_its_folder_up(
    tmp_path: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    assert asyncio.run(main.run(config(tmp_path))) == 0
    assert [node.life for node in FakeNode.made] == [["start", "stop"]] * 2
    assert [node.config.rejoin for node in FakeNode.made] == [True, False]
    assert capsys.readouterr().out == "ready\n", "the parent process waits for one line"


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


@pytest.mark.parametrize(
    ("number", "advice"),
    [
        (errno.EACCES, "chown"), (errno.ENOTDIR, "move that file away"), (errno.ENOENT, "--rejoin"),
        (errno.EISDIR, "move that folder away"), (errno.EIO, "dmesg"), (errno.EROFS, "read-only"),
        (errno.ENOSPC, "disk is full"), (errno.ELOOP, "See what this file is"),
    ],
)  # fmt: skip
def test_a_file_that_keeps_a_node_from_starting_is_named_with_what_to_do_about_it(
    number: int, advice: str
) -> None:
    error = OSError(number, os.strerror(number), "/data/n1/checkpoint")
    text = main._file_error(error, load(None, {"node_id": "n1"}))
    assert text.startswith(f"/data/n1/checkpoint: {os.strerror(number)}. ") and advice in text
    assert ("user" in text) == (number == errno.EACCES), (
        "the user's rights are blamed where they are to blame"
    )
