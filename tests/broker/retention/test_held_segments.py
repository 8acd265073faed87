"""What retention keeps for holds, and the limits at which it no longer does. The node is a fake."""

from __future__ import annotations

import logging
from types import SimpleNamespace
from typing import Any, cast

import pytest

from ledgermq.broker.refusals import RefusedError
from ledgermq.broker.retention.protection import held_offsets
from ledgermq.broker.state.commands import LogStart, ReleaseHold, SetHold, hold_rows, position_rows
from ledgermq.proto import admin_pb2

from ..entry_log import Node
from .test_retention import HOUR_MS, SIZE, FakeNode

AGES = (100.0,) * 19 + (0.0,)  # hours; all but the newest segment have expired


class Held:
    """A leader with six messages in a topic, and a hold; `at(i)`: the segment of message i, from 0."""

    def __init__(self, offset: int, *ages: float, set_at: int = 900 * HOUR_MS, **config: Any) -> None:
        self.log = Node()
        self.log.log.now = set_at
        self.topic = self.log.topic("orders", queues=1)
        for _ in range(6):
            self.log.fill(self.topic, 0, 1, size=80)
        self.hold(offset)
        self.node = FakeNode(*(ages or AGES), **{"others": -1900, **config})  # the disk is nearly empty
        self.node.state = self.log.state

    def hold(self, offset: int, name: str = "lake") -> None:
        self.log.command(SetHold(self.topic, name, hold_rows([(0, offset)])))

    def at(self, offset: int) -> int:
        unit: Any = self.log.state.queues.lookup(self.topic, 0, offset, 1)
        return int(unit["physical_offset"][0]) // SIZE

    async def decide(self, *, due: bool = True) -> int | None:
        """Decide once; return the first segment that stays (None: nothing was deleted)."""
        proposed = await self.node.decide(due=due)
        self.node.work._unlink()
        return (proposed[-1] - 1) // 10 if proposed else None


async def test_expired_segments_wait_for_the_lowest_offset_that_a_hold_names() -> None:
    held = Held(2, delete_segments_per_second=100)
    assert 1 < held.at(2) < held.at(3) < held.at(5) < 19, "the test means something"
    assert await held.decide() == held.at(2)
    assert await held.decide() is None
    view = held.node.work.view
    assert "are kept for hold lake of topic orders (ledgermq topic describe orders)" in view.protection
    assert view.held_bytes == view.protected_bytes == SIZE * (19 - held.at(2))
    held.hold(4)
    held.hold(3, name="other")
    assert await held.decide() == held.at(3), "the lower one counts"
    held.log.command(ReleaseHold(held.topic, "other"))
    assert await held.decide() == held.at(4)
    held.hold(6)
    assert await held.decide() == 19, "nothing of what is stored is needed"
    assert view.held_bytes == 0 and view.protection == ""


async def test_a_hold_needs_no_more_than_is_stored() -> None:
    held = Held(0)
    held.log.trim((held.topic, 0, 3))
    assert held_offsets(held.log.state, 0)[held.topic, 0].offset == 3
    assert await held.decide() == held.at(3)
    held.log.trim((held.topic, 0, 6))
    assert held_offsets(held.log.state, 0) == {}


async def test_a_hold_no_longer_counts_when_its_holder_is_silent() -> None:
    held = Held(2, set_at=831 * HOUR_MS)  # it is hour 1,000, and 168 are the default
    assert await held.decide() == 19
    held = Held(2, set_at=833 * HOUR_MS)
    assert await held.decide() == held.at(2)
    held = Held(2, set_at=990 * HOUR_MS, hold_expires_hours=9)
    assert await held.decide() == 19


async def test_holds_keep_no_more_than_the_setting_allows_and_the_oldest_goes_first() -> None:
    held = Held(1, hold_max_bytes=3 * SIZE, delete_segments_per_second=100)
    assert held.at(1) < 15
    assert await held.decide() == 16, "three expired segments, and the newest, which always stays"
    assert held.node.work.view.held_bytes == 3 * SIZE
    assert await held.decide() is None
    held = Held(5, hold_max_bytes=100 * SIZE)
    assert await held.decide() == held.at(5), "it needs less than that"


async def test_above_85_percent_holds_keep_nothing_whichever_node_is_so_full() -> None:
    held = Held(2, others=-1100)  # 90 %
    assert await held.decide(due=False) == 19

    class Peer:
        node_id, connected, disk_used_ratio = "n2", True, 0.86

    held = Held(2)
    held.node.peers = [Peer()]
    assert await held.decide(due=False) == 19, "one follower"
    held = Held(2)
    Peer.disk_used_ratio = 0.84
    held.node.peers = [Peer()]
    assert await held.decide(due=False) == held.at(2)


async def test_unexpired_segments_go_on_a_full_disk_whoever_holds_them() -> None:
    held = Held(0, *[1.0] * 20, others=-1120)  # 88 %
    assert await held.decide(due=False) == 1, "one is enough"


async def test_a_clean_by_hand_spares_what_is_held_unless_it_is_to_delete_everything() -> None:
    held = Held(2)
    done = await held.node.work.clean(admin_pb2.CleanRequest())
    assert len(done.segments) == held.at(2) and "hold lake of topic orders" in done.note
    done = await held.node.work.clean(admin_pb2.CleanRequest(even_unexpired=True))
    assert done.log_start_index == 191
    await held.node.work.stop()


async def test_a_hold_that_is_set_while_the_checkpoint_is_written_counts() -> None:
    held = Held(6)

    async def checkpoint() -> int:
        held.hold(1, name="late")
        return held.node.applied_index

    held.node.work._checkpoints = cast(Any, SimpleNamespace(write_now=checkpoint, floor=1 << 40))
    with pytest.raises(RefusedError, match="messages came to be needed") as refused:
        await held.decide()
    assert refused.value.refusal.retryable and not held.node.proposed
    assert await held.decide() == held.at(1)


async def test_an_overridden_hold_is_logged_once_until_it_advances_and_each_message_counts(
    caplog: pytest.LogCaptureFixture,
) -> None:
    held = Held(2)

    def delete(begin: int) -> None:
        rows = position_rows([(held.topic, 0, begin)])
        held.node.work.on_effects(held.log.command(LogStart(2, 100, rows)))

    def told() -> list[str]:
        return [each.message for each in caplog.records if "although a hold" in each.message]

    caplog.set_level(logging.WARNING)
    delete(2)
    assert told() == []
    delete(3)
    delete(4)
    text = "messages deleted although a hold waited for them hold=lake topic=orders count=1"
    assert told() == [text]
    held.hold(5)
    delete(6)
    assert told() == [text] * 2
    assert "ledgermq_retention_held_messages_total 3.0" in held.node.work._metrics.render().decode()
