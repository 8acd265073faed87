"""Beginning against rivals, and waiting for one. The rest needs brokers: integration/test_batches.py."""

from __future__ import annotations

from typing import Any

import pytest

from ledgermq.client.batches import part_writer
from ledgermq.client.batches.part_writer import BatchClient, WrittenPart
from ledgermq.client.errors import AttemptEndedError, RowsDifferError

PLACE: dict[str, Any] = {"job": "j", "batch": 0, "partition": 0}


async def test_an_attempt_that_ended_waits_as_long_as_its_rival_stores_something(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    looks = 0

    async def look(attempt: Any) -> list[tuple[int, int]]:
        nonlocal looks
        looks += 1
        return [(7, min(looks, 20))]

    monkeypatch.setattr(part_writer._Attempt, "look", look)
    async with BatchClient("127.0.0.1:1") as client:
        await client.outlast(["orders"], **PLACE, rival_s=0.05)
    assert looks > 20, "it went on until the rival stored nothing more"


@pytest.mark.parametrize(("collisions", "begins"), [(0, True), (4, True), (5, False)])
async def test_rivals_that_begin_at_the_same_time_try_again(
    collisions: int, begins: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    tries = 0
    part: Any = type("Part", (), {"close": staticmethod(_nothing)})()

    async def begin(attempt: Any, **options: bool) -> Any:
        nonlocal tries
        tries += 1
        if tries <= collisions:
            raise AttemptEndedError("a rival")
        return part

    monkeypatch.setattr(part_writer._Attempt, "begin", begin)
    monkeypatch.setattr(part_writer, "_PAUSE_S", 0.001)
    async with BatchClient("127.0.0.1:1") as client:
        if begins:
            assert await client.begin("orders", **PLACE) is part
        else:
            with pytest.raises(AttemptEndedError):
                await client.begin("orders", **PLACE)
    assert tries == collisions + begins


async def _nothing() -> None:
    """Close nothing."""


async def test_parts_that_differ_are_not_declared_complete() -> None:
    async with BatchClient("127.0.0.1:1") as client:
        with pytest.raises(RowsDifferError, match="different messages to: a, b") as refused:
            await client.finish([WrittenPart(name, 1, 1, differ=name != "c") for name in "bac"])
        await client.finish([WrittenPart("complete before", 1, 0, differ=False)])
    assert not refused.value.retryable
