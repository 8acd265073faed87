"""Which groups of a topic come first."""

from __future__ import annotations

from dataclasses import dataclass
from types import SimpleNamespace
from typing import cast

from hypothesis import given
from hypothesis import strategies as st

from ledgermq.client.message import MessageQueue
from ledgermq.client.produce.encoding import RecordEncoder
from ledgermq.client.produce.latency_fault import CallTimes, LatencyTable
from ledgermq.client.produce.produce_stream import BrokerGroupConnection
from ledgermq.client.produce.send_window import Lane
from ledgermq.client.produce.topic_lanes import TopicLanes

NOW = 1_000_000


@dataclass(frozen=True)
class Shape:
    """A group as the producer may find it. `latency` None: calls are not measured, or there was none."""

    takes: bool = True
    latency: int | None = None
    slow: bool = False
    failed: bool = False

    def connection(self) -> BrokerGroupConnection:
        calls = CallTimes(LatencyTable())
        if self.failed:
            calls.failed("n1", NOW)
        if self.slow:
            calls.sent(NOW - 1500)
            calls.answered("n1", NOW - 1000)
        if self.latency is not None:
            for _ in range(50):
                calls.sent(NOW - self.latency)
                calls.answered("n1", NOW)
        window = SimpleNamespace(avoid_until=0 if self.takes else NOW + 1)
        return cast(BrokerGroupConnection, SimpleNamespace(window=window, calls=calls))


def lanes_of(*shapes: Shape, near: int | None = None, queues: int = 2) -> TopicLanes:
    lanes = TopicLanes(
        RecordEncoder("orders", born_host="h"), near_parts=len(shapes) if near is None else near
    )
    for number, shape in enumerate(shapes):
        names = [MessageQueue("orders", f"g{number}", queue_id) for queue_id in range(queues)]
        lanes.add(shape.connection(), [Lane(queue, 7, 1) for queue in names])
    return lanes


def test_the_quickest_of_those_that_are_well_come_first() -> None:
    slow, failed = Shape(slow=True, latency=1), Shape(failed=True)
    assert lanes_of(slow, failed, Shape(latency=40), Shape(latency=90)).best_broker_groups(NOW) == (2,)
    assert lanes_of(Shape(latency=40), Shape(latency=80), Shape()).best_broker_groups(NOW) == (2,)
    assert lanes_of(Shape(latency=40), Shape(latency=80)).best_broker_groups(NOW) == (0, 1)


def test_with_all_of_them_avoided_the_slow_come_before_those_whose_calls_failed() -> None:
    slow, failed, shut = Shape(slow=True, latency=400), Shape(failed=True), Shape(takes=False)
    assert lanes_of(shut, failed, slow).best_broker_groups(NOW) == (2,)
    assert lanes_of(shut, failed).best_broker_groups(NOW) == (1,)
    assert lanes_of(shut, shut).best_broker_groups(NOW) == (0, 1)


def test_the_near_come_first_while_one_of_them_is_well() -> None:
    well, far = Shape(latency=90), Shape(latency=1)
    assert lanes_of(well, far, near=1).best_broker_groups(NOW) == (0,)
    assert lanes_of(Shape(slow=True), well, far, near=2).best_broker_groups(NOW) == (1,)
    assert lanes_of(Shape(slow=True), Shape(takes=False), far, near=2).best_broker_groups(NOW) == (2,)
    assert lanes_of(Shape(slow=True), Shape(failed=True), near=1).best_broker_groups(NOW) == (0,)


def test_the_selector_is_offered_the_near_queues_and_a_choice_has_the_numbers_among_all() -> None:
    lanes = lanes_of(Shape(), Shape(), Shape(), near=1)
    assert [queue.broker_group for queue in lanes.queues] == ["g0", "g0"]
    choice = lanes.choice((0, 2))
    assert choice.numbers == (0, 1, 4, 5)
    assert [lanes.lanes[number].queue for number in choice.numbers] == list(choice.queues)


def test_only_so_many_choices_are_remembered() -> None:
    lanes = lanes_of(*[Shape()] * 10)
    for bits in range(1, 200):
        groups = tuple(number for number in range(10) if bits >> number & 1)
        assert lanes.choice(groups).numbers == tuple(at for each in groups for at in (2 * each, 2 * each + 1))
    assert len(lanes._choices) <= 64


shapes = st.lists(
    st.builds(
        Shape,
        takes=st.booleans(),
        latency=st.none() | st.integers(0, 400),
        slow=st.booleans(),
        failed=st.booleans(),
    ),
    min_size=1,
    max_size=6,
)


def rank(shape: Shape) -> int:
    """How far down a group stands: the rule, written once more."""
    if not shape.takes:
        return 3
    return 2 if shape.failed else int(shape.slow)


@given(shapes, st.data())
def test_never_none_and_never_one_that_another_comes_before(groups: list[Shape], data: st.DataObject) -> None:
    near = data.draw(st.integers(0, len(groups)))
    lanes = lanes_of(*groups, near=near)
    best = lanes.best_broker_groups(NOW)
    assert best
    highest = min(map(rank, groups))
    assert all(rank(groups[number]) == highest for number in best)
    equals = [number for number, shape in enumerate(groups) if rank(shape) == highest]
    if any(number < near for number in equals):
        assert all(number < near for number in best)
        equals = [number for number in equals if number < near]
    latencies = {number: _latency(lanes, number) for number in equals}
    assert min(latencies, key=lambda number: latencies[number]) in best
    chosen = lanes.choice(best)
    assert {lanes.lanes[number].queue for number in chosen.numbers} == set(chosen.queues)
    assert len(chosen.queues) == 2 * len(best)


def _latency(lanes: TopicLanes, number: int) -> float:
    calls = lanes.broker_groups[number].calls
    return calls.latency(NOW) if calls is not None else 0.0
