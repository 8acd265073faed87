"""Server behind a front that is slow to accept: connections wait, in order, and not for ever."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from ledgermq.raft.ports import front as port_front
from ledgermq.raft.ports.counts import Refused
from ledgermq.raft.ports.front import FrontLimits, take_port

from .test_port_front_limits import HERE, Caller, Echo, Port

CALLERS = 20
pytestmark = pytest.mark.usefixtures("runner")


class SlowPort(Port):
    """Its server accepts nothing until told to, and the kernel queues one or two connections for it."""

    async def open(self) -> None:
        self.behind = socket.socket(socket.AF_UNIX)
        self.behind.bind(self.front.inner_address.removeprefix("unix:"))
        self.behind.listen(0)
        self.behind.setblocking(False)
        await self.front.listen(take_port(f"{HERE}:{self.number}"))

    async def serve(self) -> None:
        self._server = await asyncio.get_running_loop().create_unix_server(Echo, sock=self.behind)

    @property
    def waiting(self) -> int:
        return sum(door.waiting for door in self.front._doors.values())

    async def crowd(self) -> list[Caller]:
        """Let some connect and send something. Returns when no more of them can be passed on."""
        callers = [await self.call() for _ in range(CALLERS)]
        for number, caller in enumerate(callers):
            caller._writer.write(b"%d" % number)
        await self.until(lambda: self.waiting >= CALLERS - 2 and not self.front._silent)
        return callers


@asynccontextmanager
async def opened() -> AsyncIterator[SlowPort]:
    port = SlowPort(FrontLimits())
    await port.open()
    try:
        yield port
    finally:
        if not hasattr(port, "_server"):
            await port.serve()
        await port.close()


async def test_who_finds_no_room_waits_and_is_served(caplog: pytest.LogCaptureFixture) -> None:
    async with opened() as port:
        callers = await port.crowd()
        callers[5].leave()  # it does not delay the others
        await port.serve()
        for number, caller in enumerate(callers):
            if number != 5:
                assert await caller._reader.read(100) == b"%d" % number
        await port.until(lambda: port.waiting == 0 and port.front._held == 0)
        assert not port.counts.refused

    assert not caplog.messages


async def test_who_waits_for_too_long_is_refused_and_the_log_has_one_line_for_all(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(port_front, "DOOR_TIMEOUT_S", 0.05)

    async with opened() as port:
        callers = [await port.call() for _ in range(CALLERS)]
        for caller in callers:
            caller._writer.write(b"hello")
        await port.until(lambda: port.counts.refused[Refused.BUSY] >= CALLERS - 2)
        await port.until(lambda: port.waiting == 0)
        assert port.counts.refused.total() <= CALLERS - 1, "the kernel kept some"
        await port.serve()
        late = await port.call()
        assert await late.says(b"late") == b"late"
    (line,) = caplog.messages
    assert "connections refused port=port reason=busy count=1" in line
    assert "Resource temporarily unavailable" in line
    assert "more slowly than they come" in line


async def test_a_server_that_is_gone_is_told_from_one_that_is_slow(caplog: pytest.LogCaptureFixture) -> None:
    async with opened() as port:
        await port.serve()
        port._server.close()
        caller = await port.call()
        assert await caller.says(b"hello") == b""
        assert port.counts.refused == {Refused.UNREACHABLE: 1}
    assert "reason=unreachable" in caplog.text
    assert "Connection refused" in caplog.text
