"""The HTTP port's answers."""

from __future__ import annotations

import asyncio
from contextlib import suppress

import pytest

from ledgermq.broker.ports import http
from ledgermq.broker.ports.http import TEXT, HttpServer, Routes, render
from ledgermq.broker.ports.tls_judge import HTTP_WITHOUT_TLS, ONLY_HTTP
from ledgermq.broker.service.probes import starting
from ledgermq.raft.ports.counts import Ended, Refused
from ledgermq.rpc import http2_frames as h2


def server() -> HttpServer:
    return HttpServer(
        lambda: {"/livez": lambda: (200, TEXT, b"ok\n"), "/readyz": lambda: (503, TEXT, b"no leader\n")}
    )


def test_what_is_answered_may_change_while_the_port_stays_open() -> None:
    node: list[Routes] = [starting("verifies its log: segment 3 of 40")]
    serving = HttpServer(lambda: node[-1])
    said = b"starting: verifies its log: segment 3 of 40\n"
    assert serving.answer(b"GET /livez HTTP/1.1\r\n") == (200, TEXT, said), "a restart would begin it again"
    for path in ("/startupz", "/readyz", "/healthz"):
        assert serving.answer(f"GET {path} HTTP/1.1\r\n".encode()) == (503, TEXT, said)
    node.append({"/livez": lambda: (200, TEXT, b"ok\n")})
    assert serving.answer(b"GET /livez HTTP/1.1\r\n") == (200, TEXT, b"ok\n")


def test_known_paths_are_answered_and_others_are_404() -> None:
    assert server().answer(b"GET /livez?x=1 HTTP/1.1\r\nHost: a\r\n\r\n") == (200, TEXT, b"ok\n")
    assert server().answer(b"GET /readyz HTTP/1.1\r\n\r\n")[0] == 503
    assert server().answer(b"GET /nothing HTTP/1.1\r\n\r\n")[0] == 404


def test_only_reading_is_allowed() -> None:
    assert server().answer(b"POST /livez HTTP/1.1\r\n\r\n")[0] == 405
    assert server().answer(b"HEAD /livez HTTP/1.1\r\n\r\n") == (200, TEXT, b"")
    assert server().answer(b"\xff\xfe")[0] == 405


def test_an_answer_is_http() -> None:
    assert render((200, TEXT, b"ok\n")).startswith(b"HTTP/1.1 200 OK\r\nContent-Type: text/plain")


async def test_a_probe_is_answered_however_many_are_connected_and_say_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(http, "MAX_CONNECTIONS", 2)
    monkeypatch.setattr(http, "_READ_TIMEOUT", 1.0)
    serving = HttpServer(lambda: {"/livez": lambda: (200, TEXT, b"ok\n")})
    counts = serving.counts
    port = await serving.start("127.0.0.1:0")

    async def ask(text: bytes) -> bytes:
        with suppress(ConnectionError):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(text)
            try:
                return await reader.read()
            finally:
                writer.close()
        return b""

    silent = [asyncio.create_task(ask(b"GET /li")) for _ in range(2)]
    while counts.open < 2:  # noqa: ASYNC110
        await asyncio.sleep(0)
    assert (await ask(b"GET /livez HTTP/1.1\r\n\r\n")).endswith(b"ok\n")
    assert counts.ended == {Ended.MADE_ROOM: 1}
    late = asyncio.create_task(ask(b""))
    await asyncio.wait([*silent, late], return_when=asyncio.ALL_COMPLETED)
    assert counts.ended == {Ended.MADE_ROOM: 1, Ended.SILENT: 2} and not counts.refused
    assert (await ask(b"GET /livez HTTP/1.1\r\n\r\n")).endswith(b"ok\n")
    await serving.stop()


@pytest.mark.parametrize(
    ("sent", "kind", "advice"),
    [
        (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", "tls hello", HTTP_WITHOUT_TLS),
        (b"\x16", "tls hello", HTTP_WITHOUT_TLS),
        (bytes(100_000), "foreign bytes", ONLY_HTTP),
        (b"GETS", "foreign bytes", ONLY_HTTP),
        (h2.PREFACE, "foreign bytes", ONLY_HTTP),
        (b"LMQR\x01A", "foreign bytes", ONLY_HTTP),
    ],
)
async def test_what_is_no_request_is_closed_at_once_and_the_log_says_once_what_to_switch(
    sent: bytes, kind: str, advice: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(http, "_READ_TIMEOUT", 600.0)
    serving = server()
    port = await serving.start("127.0.0.1:0")
    for _ in range(3):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(sent)
        with suppress(ConnectionError):
            assert await reader.read() == b""
        writer.close()
    assert caplog.messages == [f"{kind} refused port=http peer=127.0.0.1: {advice}"]
    assert not serving.counts.open
    await serving.stop()


async def test_a_request_may_come_byte_by_byte() -> None:
    serving = server()
    port = await serving.start("127.0.0.1:0")
    for method in (b"GET", b"OPTIONS"):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        for byte in method + b" /livez HTTP/1.1\r\n\r\n":
            writer.write(bytes([byte]))
            await writer.drain()
            await asyncio.sleep(0)
        answer = await reader.read()
        assert answer.startswith(b"HTTP/1.1 200" if method == b"GET" else b"HTTP/1.1 405"), answer
        writer.close()
    await serving.stop()


async def test_no_more_are_served_at_once_than_the_port_takes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http, "MAX_CONNECTIONS", 1)
    large = bytes(64 << 20)  # more than a socket takes before its other end has read

    serving = HttpServer(lambda: {"/metrics": lambda: (200, TEXT, large)})
    port = await serving.start("127.0.0.1:0")
    reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=1024)
    writer.write(b"GET /metrics HTTP/1.1\r\n\r\n")
    await reader.readexactly(16)
    second, second_writer = await asyncio.open_connection("127.0.0.1", port)
    with suppress(ConnectionError):
        assert await second.read() == b""
    second_writer.close()
    assert serving.counts.refused == {Refused.LIMIT: 1}
    writer.transport.abort()
    while serving.counts.open:  # noqa: ASYNC110
        await asyncio.sleep(0.01)
    await serving.stop()
