"""What tests of all parts of the client share."""

from __future__ import annotations

import asyncio
from collections import Counter
from types import SimpleNamespace
from typing import Any

import pytest

from ledgermq.client.cluster import calls, routes
from ledgermq.client.cluster.leader_tracker import LeaderTracker

_ROUNDS = 3
_LONGER_THAN_ANY_CALL_S = 1_000


@pytest.fixture(autouse=True)
def _patience_with_nameservers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a nameserver take its time: it shares its process, and a busy machine, with the client."""
    monkeypatch.setattr(routes, "ASK_TIMEOUT_S", 60.0)


@pytest.fixture
def few_rounds(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let calls to broker groups give up after so many rounds without an answer.

    With a short deadline instead, a busy machine would end calls that are to succeed.
    """
    passed_s: Counter[asyncio.Task[Any] | None] = Counter()

    class FewRounds(LeaderTracker):
        def next(self) -> tuple[str, int]:
            address, pause_ms = super().next()
            if pause_ms and self._rounds == _ROUNDS:
                passed_s[asyncio.current_task()] += _LONGER_THAN_ANY_CALL_S
            return address, pause_ms

    clock = SimpleNamespace(monotonic=lambda: passed_s[asyncio.current_task()])
    monkeypatch.setattr(calls, "time", clock)
    monkeypatch.setattr(calls, "LeaderTracker", FewRounds)
    assert calls.call_broker_group.__kwdefaults__
    monkeypatch.setitem(calls.call_broker_group.__kwdefaults__, "attempt_s", 60.0)
