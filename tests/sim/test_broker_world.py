"""Delivery checks of the simulator: correct deliveries pass, and each kind of wrong one is reported."""

from __future__ import annotations

import pytest

from ledgermq.broker.leader.selection import Delivery

from .broker_model import Message, Queue
from .broker_world import BrokerWorld
from .invariants import InvariantError
from .world import World

GROUP, TOPIC, QUEUE = 5, 1, 0
PLACE = (GROUP, TOPIC, QUEUE, 0)
SENT = Delivery(QUEUE, 0, physical_offset=640, size=100, tag_hash=0, attempt=2, lease_id=71)


@pytest.fixture
def world() -> BrokerWorld:
    """One stored message that entry 71 granted for the second time."""
    found = World(1, broker=True).broker
    assert found is not None
    found.model.queues[TOPIC, QUEUE] = Queue(0, [Message(b"id", 640, 100, 0, 0)])
    found.model.granted[71, *PLACE] = 2
    return found


@pytest.mark.parametrize("entry_of_the_reset", [67, 70])
def test_an_acknowledged_message_comes_again_after_a_reset(
    world: BrokerWorld, entry_of_the_reset: int
) -> None:
    """Also if the reset is in the same entry, after the acknowledgement."""
    world.done[PLACE] = 67
    world.model.reset_at[PLACE[:3]] = entry_of_the_reset
    world.on_delivered(GROUP, TOPIC, SENT)
    assert world.delivered_count == 1


def test_a_delivery_that_was_under_way_when_its_message_was_acknowledged_is_right(world: BrokerWorld) -> None:
    world.done[PLACE] = 72
    world.on_delivered(GROUP, TOPIC, SENT)
    assert world.delivered_count == 1


@pytest.mark.parametrize("entry_of_the_reset", [0, 66])
def test_an_acknowledged_message_that_comes_again_by_itself_is_told(
    world: BrokerWorld, entry_of_the_reset: int
) -> None:
    world.done[PLACE] = 67
    world.model.reset_at[PLACE[:3]] = entry_of_the_reset
    with pytest.raises(InvariantError, match="acknowledged at entry 67 and is delivered again"):
        world.on_delivered(GROUP, TOPIC, SENT)


@pytest.mark.parametrize(
    ("attempt", "words"), [(None, "lease 71, which is none"), (1, "as attempt 2, granted was attempt 1")]
)
def test_what_was_not_granted_so_is_told(world: BrokerWorld, attempt: int | None, words: str) -> None:
    del world.model.granted[71, *PLACE]
    if attempt is not None:
        world.model.granted[71, *PLACE] = attempt
    with pytest.raises(InvariantError, match=words):
        world.on_delivered(GROUP, TOPIC, SENT)
