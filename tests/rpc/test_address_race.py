"""Which of several addresses a connection opens to, and what becomes of the other attempts."""

from __future__ import annotations

import asyncio

import pytest

from ledgermq.rpc import address_race
from ledgermq.rpc.address_race import addresses_of, first_open


class Attempts:
    """Attempts by address: what was tried, cancelled and dropped."""

    def __init__(self) -> None:
        self.tried: list[str] = []
        self.begun = asyncio.Event()
        self.cancelled: list[str] = []
        self.dropped: list[str] = []

    async def connect(self, address: str) -> str:
        """Open at once, fail ("bad") or wait for ever ("silent")."""
        self.tried.append(address)
        self.begun.set()
        if address.startswith("bad"):
            raise ConnectionRefusedError(address)
        if address.startswith("silent"):
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                self.cancelled.append(address)
                raise
        return address


@pytest.fixture
def attempts(monkeypatch: pytest.MonkeyPatch) -> Attempts:
    """No attempts yet, and a short head start."""
    monkeypatch.setattr(address_race, "HEAD_START_S", 0.01)
    return Attempts()


@pytest.mark.parametrize(
    ("addresses", "opened", "cancelled"),
    [
        (["good", "never"], "good", []),
        (["bad1", "good", "never"], "good", []),
        (["silent", "bad1", "good"], "good", ["silent"]),
    ],
)
async def test_the_first_address_that_answers_is_taken(
    attempts: Attempts, addresses: list[str], opened: str, cancelled: list[str]
) -> None:
    assert await first_open(addresses, attempts.connect, attempts.dropped.append) == opened
    assert attempts.cancelled == cancelled
    assert "never" not in attempts.tried


async def test_the_last_error_is_raised_when_no_address_answers(attempts: Attempts) -> None:
    with pytest.raises(ConnectionRefusedError, match="bad2"):
        await first_open(["bad1", "bad2"], attempts.connect, attempts.dropped.append)
    with pytest.raises(OSError, match="no address"):
        await first_open([], attempts.connect, attempts.dropped.append)


async def test_what_opens_too_late_is_dropped(attempts: Attempts) -> None:
    begun = asyncio.Event()

    async def connect(address: str) -> str:
        if address == "late":
            begun.set()
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                return address  # it was open already
        await begun.wait()
        return address

    assert await first_open(["late", "good"], connect, attempts.dropped.append) == "good"
    assert attempts.dropped == ["late"]


async def test_a_race_that_is_cancelled_leaves_no_attempt(attempts: Attempts) -> None:
    race = asyncio.ensure_future(first_open(["silent1"], attempts.connect, attempts.dropped.append))
    await attempts.begun.wait()
    race.cancel()
    with pytest.raises(asyncio.CancelledError):
        await race
    assert attempts.cancelled == ["silent1"]


@pytest.mark.parametrize("address", ["127.0.0.1", "::1", "fe80::1%eth0"])
async def test_an_address_is_not_looked_up(address: str) -> None:
    assert await addresses_of(address, 80) == [address]


async def test_a_name_has_each_of_its_addresses_once() -> None:
    found = await addresses_of("localhost", 80)
    assert set(found) <= {"127.0.0.1", "::1"}
    assert len(set(found)) == len(found) > 0
