"""A log made of entries in memory: what the tests of the state machine feed it with."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeVar

from ledgermq.broker.checkpoint.layout import decode_snapshot, encode_snapshot, restore_state, take_snapshot
from ledgermq.broker.leader.leader_view import LeaderView, Turn
from ledgermq.broker.leader.pipeline import Applied
from ledgermq.broker.state.codecs import encode
from ledgermq.broker.state.commands import (
    Command,
    CommitOffsets,
    CreateConsumerGroup,
    CreateTopic,
    TrimQueues,
    position_rows,
)
from ledgermq.broker.state.effects import ConsumerGroupResult, Effects, TopicResult
from ledgermq.broker.state.machine import BrokerState
from ledgermq.proto.entry import HEADER_SIZE, Buffer, EntryHeader, EntryKind, decode_header, encode_entry
from ledgermq.proto.record import (
    SECTION_HEADER_SIZE,
    SectionKind,
    encode_record,
    encode_section,
    seal_section,
)

START_MS = 1_700_000_000_000
_Result = TypeVar("_Result")


def records(
    count: int,
    *,
    size: int | Sequence[int] = 100,
    tags: Sequence[int] = (0,),
    first_id: int = 0,
    flags: int = 0,
) -> list[bytes]:
    """Return `count` records; sizes and tag hashes repeat, ids count from `first_id`."""
    sizes = [size] if isinstance(size, int) else size
    made: list[bytes] = []
    distance = SECTION_HEADER_SIZE
    for i in range(count):
        body = bytes([i % 251]) * sizes[i % len(sizes)]
        made.append(
            encode_record(
                b"sys",
                body,
                section_distance=distance,
                body_offset_in_rest=0,
                body_size=len(body),
                message_id=(first_id + i).to_bytes(16, "little"),
                born_timestamp=START_MS,
                tag_hash=tags[i % len(tags)],
                flags=flags,
            )
        )
        distance += len(made[-1])
    return made


def section(
    topic_id: int, queue_id: int, parts: Sequence[bytes], *, base: int = -1, **producer: Any
) -> bytearray:
    """Return a section of records. `producer`: producer_id, producer_epoch, base_sequence."""
    return encode_section(
        SectionKind.RECORDS,
        parts,
        len(parts),
        topic_id=topic_id,
        queue_id=queue_id,
        base_queue_offset=base,
        **producer,
    )


def command_section(*commands: Command) -> bytearray:
    made = [encode(command) for command in commands]
    return encode_section(SectionKind.COMMANDS, made, len(made))


class EntryLog:
    """Entries one behind the other, from index 1, log time in ms under the test's control."""

    def __init__(self) -> None:
        self.raw: list[bytes] = []
        self.now = START_MS
        self.end = 0
        self.crc = 0

    def add(
        self, parts: Sequence[Buffer], kind: EntryKind = EntryKind.RECORDS
    ) -> tuple[EntryHeader, memoryview]:
        """Append an entry and return it as `apply` takes it."""
        entry = encode_entry(
            kind,
            list(parts),
            section_count=len(parts) if kind is EntryKind.RECORDS else 0,
            index=len(self.raw) + 1,
            term=1,
            physical_offset=self.end,
            timestamp=self.now,
            prev_crc=self.crc,
        )
        self.raw.append(bytes(entry))
        self.end += len(entry)
        header, payload = self.entry(len(self.raw))
        self.crc = header.crc
        return header, payload

    def entry(self, index: int) -> tuple[EntryHeader, memoryview]:
        raw = self.raw[index - 1]
        header = decode_header(raw)
        return header, memoryview(raw)[HEADER_SIZE : HEADER_SIZE + header.payload_size]


class Node:
    """A state with its log, and a leader's view when asked for."""

    def __init__(self, state: BrokerState | None = None) -> None:
        self.log = EntryLog()
        self.state = state or BrokerState()
        self.view = LeaderView(self.state, 1, START_MS)

    def apply(self, *parts: Buffer, kind: EntryKind = EntryKind.RECORDS) -> Effects:
        """Append an entry of these sections and apply it."""
        return self._apply(*self.log.add(parts, kind))

    def _apply(self, header: EntryHeader, payload: memoryview) -> Effects:
        effects = self.state.apply(header, payload)
        self.view.on_applied(header.index)
        return effects

    def command(self, *commands: Command) -> Effects:
        return self.apply(command_section(*commands))

    async def run(self, command: Command) -> Applied:
        """Do what AppendPipeline.run does: apply a command, at once."""
        effects = self.command(command)
        return Applied(effects.results[0], effects.index)

    def propose(self, turn: Turn) -> tuple[EntryHeader, memoryview]:
        """Propose a turn without applying it."""
        parts, _ = turn.close()
        header, payload = self.log.add(parts)
        turn.bind(header.index)
        return header, payload

    def commit(self, turn: Turn) -> Effects:
        """Propose a turn and apply it."""
        return self._apply(*self.propose(turn))

    def commit_proposed(self, entry: tuple[EntryHeader, memoryview]) -> Effects:
        return self._apply(*entry)

    def topic(self, name: str = "orders", queues: int = 2) -> int:
        result = result_of(self.command(CreateTopic(name, queues)), TopicResult)
        assert result.topic is not None
        return result.topic.topic_id

    def group(self, name: str = "billing", **options: Any) -> int:
        result = result_of(self.command(CreateConsumerGroup(name, **options)), ConsumerGroupResult)
        assert result.group is not None
        return result.group.group_id

    def commit_offsets(self, group_id: int, *rows: tuple[int, int, int], reset: bool = False) -> Effects:
        """Commit offsets of a consumer group. Rows: topic id, queue id, offset."""
        return self.command(CommitOffsets(group_id, position_rows(rows), reset))

    def trim(self, *rows: tuple[int, int, int]) -> Effects:
        """Move the begin of queues. Rows: topic id, queue id, begin."""
        return self.command(TrimQueues(position_rows(rows)))

    def fill(self, topic_id: int, queue_id: int, count: int, **options: Any) -> None:
        """Store messages in a queue."""
        base = self.state.queue_end(topic_id, queue_id)
        made = section(topic_id, queue_id, records(count, **options), base=base, producer_id=0)
        seal_section(made, base_queue_offset=base, entry_distance=HEADER_SIZE)
        self.apply(made)


def filled(messages: int = 0, *, queues: int = 1, **group: Any) -> tuple[Node, int, int]:
    """Return a node, its topic with so many messages in queue 0, and its consumer group."""
    node = Node()
    topic, consumer_group = node.topic(queues=queues), node.group(**group)
    if messages:
        node.fill(topic, 0, messages)
    return node, topic, consumer_group


def checkpoint(state: BrokerState) -> bytes:
    return b"".join(encode_snapshot(take_snapshot(state)))


def restored(raw: bytes) -> BrokerState:
    return restore_state(decode_snapshot(raw, "checkpoint"))


def result_of(effects: Effects, kind: type[_Result], place: int = 0) -> _Result:
    """Return the result of a command, which must be of a kind."""
    found = effects.results[place]
    assert isinstance(found, kind)
    return found
