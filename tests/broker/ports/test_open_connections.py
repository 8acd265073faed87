"""Counting connections by asking the kernel, and the line in the log of a port that is full."""

from __future__ import annotations

import asyncio
import errno
import logging
import socket

import pytest

from ledgermq.broker.ports import open_connections
from ledgermq.broker.ports.open_connections import ConnectionWatch, count_connections
from ledgermq.raft.ports.counts import PortCounts


@pytest.mark.parametrize("host", ["127.0.0.1", "::1"])
def test_the_kernel_knows_the_connections_of_a_port(host: str) -> None:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        server = socket.create_server((host, 0), family=family, backlog=512)
    except OSError:
        pytest.skip(f"this machine has no {host}")
    with server:
        port = server.getsockname()[1]
        assert count_connections(port) == 0, "one that listens is none"
        callers = [socket.create_connection((host, port)) for _ in range(300)]
        assert count_connections(port) == 300, "the calling ends have other ports"
        for caller in callers:
            caller.close()


def test_a_port_that_is_full_is_told_once_and_once_when_it_has_room(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    found: list[int] = [1]
    monkeypatch.setattr(open_connections, "count_connections", lambda port: found[0])
    counts = PortCounts("log", "default", limit=100)
    watch = ConnectionWatch({8082: counts})
    with caplog.at_level(logging.INFO):
        for found[0] in (10, 99, 100, 95, 89, 50):
            assert asyncio.run(watch.look())
            assert counts.open == found[0]
    assert [line.partition(":")[0] for line in caplog.messages] == [
        "connections refused port=log/default reason=limit open=99 limit=100",
        "connections taken again port=log/default open=89 limit=100",
    ]


def test_a_count_that_fails_in_a_storm_is_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    answers: list[int | OSError] = [5, OSError(errno.EMFILE, "Too many open files"), TimeoutError(), 7]

    def count(port: int) -> int:
        answer = answers.pop(0)
        if isinstance(answer, OSError):
            raise answer
        return answer

    monkeypatch.setattr(open_connections, "count_connections", count)
    counts = PortCounts("log", limit=100)
    watch = ConnectionWatch({8082: counts})
    seen = []
    while answers:
        assert asyncio.run(watch.look())
        seen.append(counts.open)
    assert seen == [5, 5, 5, 7]


async def test_where_the_kernel_does_not_tell_nobody_asks_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(open_connections, "count_connections", lambda port: None)
    counts = PortCounts("log", limit=1)

    watch = ConnectionWatch({8082: counts})
    watch.start()
    assert watch._task is not None
    await asyncio.wait_for(watch._task, 20)
    await watch.stop()
    assert counts.open == 0
