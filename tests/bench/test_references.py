"""The references answer, count what they did, and leave nothing behind."""

from __future__ import annotations

import asyncio
from pathlib import Path

from bench import echo
from bench.disk import append_and_flush


def test_the_echo_server_answers_calls_and_sends_messages_back_and_ends() -> None:
    async def scenario(address: str) -> None:
        calls = await echo.unary(address, callers=4, seconds=0.05)
        assert len(calls.latencies) >= 4 and calls.rate > 0 and calls.client_cpu > 0
        assert all(latency > 0 for latency in calls.latencies)
        trips = await echo.stream(address, seconds=0.05)
        assert trips.latencies
        assert await echo.bandwidth(address, seconds=0.05) > 0

    with echo.EchoServer() as server:
        asyncio.run(scenario(server.address))
        pid = server.pid
    assert not Path(f"/proc/{pid}").exists()


def test_appends_are_timed_one_by_one_and_the_file_is_removed(tmp_path: Path) -> None:
    taken = append_and_flush(tmp_path, 0.02)
    assert taken and all(seconds > 0 for seconds in taken)
    assert list(tmp_path.iterdir()) == []
