"""The HTTP port's answers."""

from __future__ import annotations

from ledgermq.broker.http import TEXT, HttpServer, render


def server() -> HttpServer:
    return HttpServer(
        {"/livez": lambda: (200, TEXT, b"ok\n"), "/readyz": lambda: (503, TEXT, b"no leader\n")}
    )


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
