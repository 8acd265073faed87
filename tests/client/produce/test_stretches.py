"""How a batch is cut into what can be encoded together."""

from __future__ import annotations

from typing import cast

from hypothesis import given
from hypothesis import strategies as st

from ledgermq.client.message import Message
from ledgermq.client.produce.plain_run import Stretch, stretches
from ledgermq.proto.varint import varint

messages = st.builds(
    Message,
    topic=st.sampled_from(["orders", "bills"]),
    body=st.sampled_from([b"", b"a", b"bb", b"c" * 127, b"d" * 128, b"e" * 4096, b"f" * 4097]),
    tag=st.sampled_from(["", "", "", "t"]),
)


@given(st.lists(messages, max_size=30))
def test_every_message_comes_once_and_in_order(batch: list[Message]) -> None:
    seen: list[Message] = []
    for part in stretches(batch, 4096):
        if isinstance(part, Stretch):
            assert len({len(varint(len(body))) for body in part.bodies}) == 1
            sizes = {len(body) for body in part.bodies}
            assert 1 <= part.smallest == min(sizes) <= max(sizes) == part.largest <= 4096
            seen += [Message(part.topic, body) for body in part.bodies]
        else:
            assert part.tag or not 1 <= len(part.body) <= 4096
            seen.append(part)
    assert seen == batch


def test_neighbours_of_one_topic_stay_together() -> None:
    batch = [Message("orders", bytes(1 + number % 127)) for number in range(500)]
    assert list(stretches(batch, 4096)) == [Stretch("orders", [message.body for message in batch], 1, 127)]


def test_what_has_labels_or_could_still_change_goes_alone() -> None:
    alone = [
        Message("orders", b"x", tag="t"),
        Message("orders", b"x", keys=["k"]),
        Message("orders", b"x", properties={"a": "b"}),
        Message("orders", b"x", message_group="g"),
        Message("orders", cast("bytes", bytearray(b"x"))),
    ]
    assert list(stretches(alone, 4096)) == alone


def test_a_stretch_is_bounded_in_bytes() -> None:
    batch = [Message("orders", bytes(1 << 20)) for _ in range(3)]
    assert [len(part.bodies) for part in stretches(batch, 1 << 20) if isinstance(part, Stretch)] == [1, 1, 1]
    small = [Message("orders", bytes(1024)) for _ in range(1000)]
    assert [len(part.bodies) for part in stretches(small, 4096) if isinstance(part, Stretch)] == [
        256,
        256,
        256,
        232,
    ]
