"""State commands as bytes."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from ledgermq.broker.state import codecs as codecs
from ledgermq.broker.state import commands as c
from ledgermq.proto.errors import CorruptError
from ledgermq.proto.record import walk_commands

EXAMPLES: list[c.Command] = [
    c.CreateTopic("orders-ü", 4, c.MessageType.FIFO),
    c.CreateTopic("orders", 4, retention_ms=5),
    c.CreateTopic("orders", 4, retention_ms=5, keep_unread=True),
    c.DeleteTopic(9),
    c.CreateConsumerGroup("billing", c.StartPosition(1_234), 3, True),
    c.DeleteConsumerGroup(8),
    c.CommitOffsets(1, c.position_rows([(2, 3, 4), (2, 4, 1 << 40)]), True),
    c.SetPositions(1, c.position_rows([])),
    c.GrantLeases(
        1,
        2,
        3,
        (c.QueueGrant(1, 2, 5, np.array([0, 3, 4])), c.QueueGrant(2, 0, 9, np.array([], np.int64))),
        7,
    ),
    c.Ack(1, 2, c.lease_rows([(1, 2, 3)]), True),
    c.ChangeInvisible(1, 2, c.change_rows([(1, 2, 3, 4)])),
    c.ReleaseLeases(1, 2, c.lease_rows([(1, 2, 3)])),
    c.SessionLost(1 << 63, 5),
    c.EvictDedup(1, 2),
    c.LogStart(3, 4, c.position_rows([(1, 0, 5)])),
    c.FeatureLevel(2),
    c.CreateTopic("short-lived", 1, c.MessageType.NORMAL, 3_600_000),
    c.SetTopicRetention(7, 1 << 40),
    c.CreateTopic("kept-ü", 2, c.MessageType.FIFO, 5, True),
    c.SetTopicKeepUnread(7, True),
    c.SetTopicKeepUnread(7, False),
    c.TrimQueues(c.position_rows([(1, 0, 5), (1, 1, 1 << 40)])),
    c.CommitOffsets(1, c.position_rows([(2, 3, 4), (2, 4, 5)]), False, np.array([7, 1 << 50], np.uint64)),
    c.JoinConsumerGroup(3, "worker-ü", ("orders", "paid"), "average", "z1", "a || b", 3000, 1000),
    c.LeaveConsumerGroup(3, ("worker-1", "worker-2")),
    c.AssignQueues(3, ("worker-1",), c.assignment_rows([(1, 0, 77, 0), (1, 1, 78, c.NO_OWNER)])),
    c.ParkMessages(1, 2, c.park_rows([(1, 2, 3, 17)]), c.ParkReason.FORWARDED),
    c.ReleaseParked(1, c.position_rows([(2, 3, 4)])),
    c.BeginBatch(bytes(range(16)), 1 << 63, 2, 1 << 40, True),
    c.BeginBatch(bytes(16), 5, 2, 0),
    c.FinishBatch(1 << 63, 2, 1 << 31, 1 << 40),
    c.ForgetBatches(1 << 40),
    c.SetHold(7, "lake-ü", c.hold_rows([(0, 1 << 40), (3, 0)])),
    c.ReleaseHold(7, "lake-ü"),
    c.SetBrokerGroupMode(c.BrokerGroupMode.REMOVED, True, (("billing-ü", "orders"), ("late", "orders"))),
    c.SetBrokerGroupMode(c.BrokerGroupMode.REMOVED, True),
    c.SetBrokerGroupMode(c.BrokerGroupMode.DRAINING),
]


def plain(value: object) -> object:
    """A command as nested tuples, so that arrays can be compared."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return tuple(plain(getattr(value, field.name)) for field in dataclasses.fields(value))
    if isinstance(value, tuple):
        return tuple(map(plain, value))
    return value.tolist() if isinstance(value, np.ndarray) else value


def test_every_command_is_read_as_it_was_written() -> None:
    body = b"".join(map(codecs.encode, EXAMPLES))
    found = [codecs.decode(*raw, 1) for raw in walk_commands(body, len(EXAMPLES))]
    assert [plain(command) for command in found] == [plain(command) for command in EXAMPLES]
    assert {type(command) for command in found} == {codec.kind for codec in codecs._CODECS}


@pytest.mark.parametrize(
    ("command", "version"),
    [
        (c.CreateTopic("a", 1), 1),
        (c.CreateTopic("a", 1, retention_ms=5), 2),
        (c.CreateTopic("a", 1, keep_unread=True), 3),
        (c.CommitOffsets(1, c.position_rows([(1, 0, 5)])), 1),
        (c.CommitOffsets(1, c.position_rows([(1, 0, 5)]), epochs=np.array([9], np.uint64)), 2),
        (c.SetBrokerGroupMode(c.BrokerGroupMode.REMOVED), 1),
        (c.SetBrokerGroupMode(c.BrokerGroupMode.REMOVED, True), 2),
    ],
)
def test_a_command_is_written_in_the_lowest_version_that_can_represent_it(
    command: c.Command, version: int
) -> None:
    ((_, found, _),) = walk_commands(codecs.encode(command), 1)
    assert found == version


def test_a_command_cut_short_is_damage() -> None:
    (raw,) = walk_commands(codecs.encode(EXAMPLES[6]), 1)
    with pytest.raises(CorruptError):
        codecs.decode(raw[0], raw[1], raw[2][:-3], 1)


def test_a_mode_that_this_build_does_not_know_is_damage() -> None:
    ((number, version, payload),) = walk_commands(codecs.encode(EXAMPLES[-1]), 1)
    assert (number, version, bytes(payload)) == (20, 1, b"\1")
    with pytest.raises(CorruptError):
        codecs.decode(number, version, memoryview(b"\7"), 1)


def test_a_start_position_is_read_from_words_and_times() -> None:
    for text, expected in [("", "earliest"), ("Latest", "latest"), ("1700", "1700")]:
        assert str(c.StartPosition.parse(text)) == expected
    for text in ("soon", "9" * 40):  # the time would not fit the command
        with pytest.raises(ValueError, match="use earliest, latest or a time"):
            c.StartPosition.parse(text)
