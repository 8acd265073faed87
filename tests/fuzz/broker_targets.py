"""Decoders of `broker`: requests, checkpoints, commands, receipt handles, the key index, peer messages."""

from __future__ import annotations

import base64
import struct
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Final

import numpy as np
from crc32c import crc32c

from ledgermq.broker.admin import promotion_claims
from ledgermq.broker.backup.dump_files import _Notes
from ledgermq.broker.checkpoint.layout import Snapshot, decode_snapshot, encode_snapshot, take_snapshot
from ledgermq.broker.checkpoint.transfer import _LEADING, _runs
from ledgermq.broker.cluster.forwarding import answer_of
from ledgermq.broker.cluster.lane import ForwardError
from ledgermq.broker.cluster.lane_server import ForwardedContext
from ledgermq.broker.cluster.leader_calls import Call
from ledgermq.broker.errors import CheckpointError, InvalidReceiptHandleError, UnknownCommandError
from ledgermq.broker.native.membership import check_request
from ledgermq.broker.official.give_backs import deliveries_of_peer, release_of_peer
from ledgermq.broker.official.messaging_service import _parsed
from ledgermq.broker.reading.key_hashes import ItemForm, id_hash, items_of
from ledgermq.broker.reading.key_run import KeyRun, RunRange, RunReader, merged, open_run, write_run
from ledgermq.broker.refusals import RefusedError
from ledgermq.broker.service.answers import parsed
from ledgermq.broker.service.sessions import session_of
from ledgermq.broker.service.telemetry import check_settings, settings_command
from ledgermq.broker.state.codecs import decode as decode_command
from ledgermq.broker.state.codecs import encode
from ledgermq.broker.state.commands import BeginBatch, JoinConsumerGroup, SetHold, hold_rows
from ledgermq.broker.state.consume_queue import record_starts, units_of
from ledgermq.broker.state.effects import BatchResult
from ledgermq.broker.state.machine import message_ids
from ledgermq.broker.wire import native as log_wire
from ledgermq.broker.wire import official as messaging_wire
from ledgermq.broker.wire import validation as messaging_validation
from ledgermq.broker.wire.receipt_handle import ReceiptHandle, parse_handle
from ledgermq.broker.wire.status import StatusError
from ledgermq.proto import admin_pb2, log_pb2, peer_pb2
from ledgermq.proto import rocketmq_v2_pb2 as v2
from ledgermq.proto.entry import EntryKind
from ledgermq.proto.errors import CorruptError, LayoutError, NewerFormatError
from ledgermq.proto.foreign_text import safe_text
from ledgermq.proto.record import (
    SECTION_HEADER_SIZE,
    SectionKind,
    decode_record,
    encode_record,
    encode_section,
    record_positions,
    walk_commands,
)
from tests.broker.entry_log import EntryLog, Node, records, section
from tests.broker.state.test_commands import EXAMPLES
from tests.raft.simulated_disk import SimulatedDisk

from .files import one_file
from .fuzzer import Target
from .log_targets import message_section, put_crc, seal_sections

_PATH: Final = Path("/data/file")


# --- requests -----------------------------------------------------------------------------------------------
def _produce(data: bytes) -> None:
    request_id, sections, count = log_wire.split_produce_request(data)
    log_pb2.ProduceResponse(request_id=request_id)
    for each in log_wire.checked_sections(request_id, sections, count):
        starts = record_starts(each.body, each.header.count)
        assert len(units_of(each.body, starts, 64)) == each.header.count
        message_ids(each.body, starts)


def _produce_seeds() -> list[bytes]:
    many = bytes(section(1, 0, records(9, size=8), producer_id=3)) + bytes(message_section())
    lone = bytes(section(1, 1, records(1, size=8)))
    return [
        log_pb2.ProduceRequest(request_id=300, sections=many, section_count=2).SerializeToString(),
        log_pb2.ProduceRequest(request_id=1, sections=lone, section_count=1).SerializeToString(),
    ]


def _seal_request(data: bytearray) -> bytes:
    return seal_sections(data, data.find(b"\x01\x01") if data.find(b"\x01\x01") >= 0 else len(data))


def message() -> v2.Message:
    """Return a message as an official client sends it, with every field set."""
    made = v2.Message(topic=v2.Resource(name="orders"), body=b"hello")
    made.user_properties["a"] = "b"
    system = made.system_properties
    system.message_id, system.tag, system.message_group = "01" + "AB" * 16, "t", "g"
    system.keys.extend(("k", "l"))
    system.born_timestamp.FromMilliseconds(1_700_000_000_000)
    system.delivery_timestamp.FromMilliseconds(1_700_000_000_000)
    system.body_digest.checksum = "AB"
    return made


def _send(data: bytes) -> None:
    """Like a SendMessage: check, decode, deliver."""
    request = _parsed(v2.SendMessageRequest, data)
    messaging_validation.check_messages(request.messages)
    for each in request.messages:
        made = messaging_wire.outgoing_record(each)
        record = decode_record(made.encode(SECTION_HEADER_SIZE))
        _hand_out(record)
        messaging_wire.queue_of_group(safe_text(data, 40), 4)


def _hand_out(record: Any) -> None:
    """Whatever was stored, a consumer gets a message that its own decoder reads."""
    delivery = messaging_wire.OutgoingDelivery(1, 2, 1_700_000_000_000, "h:1", "handle", 1, "orders")
    found = v2.Message.FromString(messaging_wire.delivered_message(record, delivery))
    assert found.system_properties.receipt_handle == "handle"


def _stored(data: bytes) -> None:
    """Like a record that a producer made by hand: its runs need not be protobuf."""
    count, body = data[0] if data else 0, data[1:]
    for at in record_positions(body, count).tolist():
        record = decode_record(body, at)
        _hand_out(record)
        with suppress(ValueError):
            messaging_wire.present_fields(record.system_run)
        id_hash(record.message_id)


def _checked(kind: Any, check: Callable[[Any], object]) -> Callable[[bytes], object]:
    return lambda data: check(_parsed(kind, data))


def _receive(request: v2.ReceiveMessageRequest) -> None:
    messaging_validation.check_consumer_group(request.group.name)
    messaging_validation.check_topic(request.message_queue.topic.name)
    messaging_validation.invisible_ms(request, 10_000)


def _receive_seed() -> bytes:
    request = v2.ReceiveMessageRequest(batch_size=4)
    request.group.name, request.message_queue.topic.name = "g", "orders"
    request.invisible_duration.FromSeconds(30)
    return request.SerializeToString()


def _settings(settings: v2.Settings) -> None:
    check_settings(settings)
    settings_command(settings, fifo=True, max_attempts=3, language="JAVA")


def _settings_seeds() -> list[bytes]:
    publishing, subscription = v2.Settings(), v2.Settings()
    publishing.publishing.topics.add(name="orders")
    publishing.backoff_policy.max_attempts = 3
    subscription.subscription.group.name = "g"
    subscription.subscription.subscriptions.add(topic=v2.Resource(name="orders"))
    subscription.subscription.long_polling_timeout.FromSeconds(30)
    return [each.SerializeToString() for each in (publishing, subscription)]


def _membership(data: bytes) -> None:
    check_request(parsed(log_pb2.MembershipRequest, data), first=data[:1] != b"\x12")


# --- nodes of the broker group ------------------------------------------------------------------------------
def _forwarded(data: bytes) -> None:
    calls: peer_pb2.ForwardedCalls = answer_of("n2", peer_pb2.ForwardedCalls, data)
    for each in calls.calls:
        call = Call.of(ForwardedContext(each), "")
        session_of(call.client_id)
        if not messaging_validation.id_problem("client id", call.client_id):
            assert call.client_id.isprintable()


def _granted(data: bytes) -> None:
    answer: peer_pb2.GrantAnswer = answer_of("n2", peer_pb2.GrantAnswer, data)
    deliveries_of_peer(answer.granted), release_of_peer(answer.granted)


def _forwarded_seed() -> bytes:
    call = peer_pb2.ForwardedCall(
        call_id=1, method="/a/b", request=b"x", timeout_ms=5,
        metadata=["x-mq-client-id", "c", "x-ledgermq-forwarded-by", "n2", "x-ledgermq-perhaps-done", "1"],
    )  # fmt: skip
    return peer_pb2.ForwardedCalls(calls=[call, call], ended=[1]).SerializeToString()


def _granted_seed() -> bytes:
    granted = peer_pb2.GrantedMessages(group_id=1, topic_id=2)
    granted.messages.add(queue_id=1, queue_offset=2, lease_id=3, physical_offset=64, size=80, attempt=1)
    return peer_pb2.GrantAnswer(granted=granted).SerializeToString()


def _claim(data: bytes) -> None:
    promotion_claims.from_proto(parsed(admin_pb2.NoteClaimRequest, data).claim)


def _claim_seed() -> bytes:
    claim = admin_pb2.GenerationClaim(
        master="n1", generation=2, group_id=9, began_after=4, former_group_ids=[5]
    )
    return admin_pb2.NoteClaimRequest(claim=claim).SerializeToString()


def _handle_of(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


def _handle(data: bytes) -> None:
    """Once as the received text, once as the bytes that a text of the right alphabet encodes."""
    with suppress(InvalidReceiptHandleError):
        parse_handle(data.decode("utf-8", "replace"))
    parse_handle(_handle_of(data))


def _handle_seed() -> bytes:
    text = ReceiptHandle("g0", 1, 2, 3, 4, 5, 6).encode()
    return base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))


def _seal_end(data: bytearray) -> bytes:
    """Set a checksum in the last four bytes."""
    return bytes(data[:-4]) + crc32c(bytes(data[:-4])).to_bytes(4, "little")


# --- state --------------------------------------------------------------------------------------------------
def _commands(data: bytes) -> None:
    count, body = data[0] if data else 0, data[1:]
    for each in walk_commands(body, count):
        decode_command(*each, 7)


def _command_seeds() -> list[bytes]:
    return [b"\1" + encode(command) for command in EXAMPLES]


def _snapshot() -> Snapshot:
    node = Node()
    topic = node.topic()
    group = node.group()
    turn = node.view.open_turn()
    turn.add_records(section(topic, 0, records(5), producer_id=9, producer_epoch=1, base_sequence=0))
    turn.add_records(section(topic, 1, records(3)))
    node.commit(turn)
    node.command(JoinConsumerGroup(group, "worker", ("orders",), "average", "z", "*", 3000, 1000))
    begun = node.command(BeginBatch(bytes(16), 9, topic, 0)).results[0]
    assert isinstance(begun, BatchResult)
    turn = node.view.open_turn()
    turn.add_records(section(topic, 1, records(2), producer_id=9, producer_epoch=begun.epoch))
    node.commit(turn)
    node.command(SetHold(topic, "lake", hold_rows([(0, 3), (1, 0)])))
    return take_snapshot(node.state)


def _seal_checkpoint(data: bytearray) -> bytes:
    """Fix the checksums of the shards, then that of their table."""
    if len(data) < 48:
        return bytes(data)
    (count,) = struct.unpack_from("<I", data, len(data) - 16)
    start = len(data) - 16 - 24 * count
    if start < 32:
        return bytes(data)
    for at in range(start, len(data) - 16, 24):
        _, _, position, size = struct.unpack_from("<IIQQ", data, at)
        struct.pack_into("<I", data, at + 4, crc32c(bytes(data[position : position + size])))
    struct.pack_into("<I", data, len(data) - 12, crc32c(bytes(data[start:-16]), crc32c(bytes(data[:32]))))
    return bytes(data)


def _leading(data: bytes) -> None:
    snapshot: Any = SimpleNamespace(topics=[SimpleNamespace(topic_id=1, folder="a@1")])
    file: Any = one_file(data[1:])
    list(_runs(file, "staged", 0, data[0] if data else 0, snapshot))


def _key_run(data: bytes) -> None:
    files: Any = one_file(data)
    run = open_run(files, _PATH)
    RunReader(files).find(run, 1 << 40, 0, 1 << 20, 10)
    for stretch in merged(files, [run], np.empty(0, np.uint64)):
        assert len(stretch) <= run.count


def _key_run_seed() -> bytes:
    disk, form = SimulatedDisk(), ItemForm.of(1 << 16)
    items = np.sort(np.arange(1, 60, dtype=np.uint64) << np.uint64(40))
    taken = RunRange(0, 1, 9, 7, 4096)
    run: KeyRun = write_run(disk, _PATH, taken, form, len(items), [items], lambda size: None)
    file = disk.open(run.path)
    return file.pread(file.size(), 0)


def _seal_run(data: bytearray) -> bytes:
    """Fix the checksums of the table and of the header."""
    if len(data) < 80:
        return bytes(data)
    (count,) = struct.unpack_from("<Q", data, 48)
    struct.pack_into("<I", data, 12, crc32c(bytes(data[80 : 80 + 12 * -(-count // 2048)])))
    return put_crc(data[:80], 8, 12) + bytes(data[80:])


def _keys(data: bytes) -> None:
    """Only committed sections come here, whose structure was checked."""
    sections = log_wire.checked_sections(1, memoryview(data), 1)
    log = EntryLog()
    entry = log.add([bytes(sections[0].header_bytes) + bytes(sections[0].body)], EntryKind.RECORDS)
    items_of([entry], 0, ItemForm.of(1 << 20))


def _many_messages() -> bytes:
    """More than are processed one by one; each with a key, where a body would be."""
    parts = [
        encode_record(
            b"", b"x" * 8, section_distance=SECTION_HEADER_SIZE + 80 * number, body_offset_in_rest=0,
            body_size=8,
            message_id=number.to_bytes(16, "little"), born_timestamp=0, key_hashes=(number,),
        )
        for number in range(30)
    ]  # fmt: skip
    return bytes(encode_section(SectionKind.RECORDS, parts, 30, topic_id=1))


def _dump_notes(data: bytes) -> None:
    notes = _Notes.__new__(_Notes)
    notes.next_header, notes._carry, notes.points = 0, b"", []
    for at in range(0, len(data), 100):
        notes._follow_sizes(at, data[at : at + 100])


BROKER_TARGETS: Final[Sequence[Target]] = (
    Target("produce_request", _produce, (log_wire.BadProduceRequestError,), _produce_seeds, _seal_request),
    Target(
        "send_message", _send, (StatusError,),
        lambda: [v2.SendMessageRequest(messages=[message()] * 2).SerializeToString()],
    ),
    Target("stored_record", _stored, (LayoutError,),
    lambda: [b"\3" + bytes(message_section()[SECTION_HEADER_SIZE:])]),
    Target("receive_message", _checked(v2.ReceiveMessageRequest, _receive), (StatusError,),
    lambda: [_receive_seed()]),
    Target("telemetry_settings", _checked(v2.Settings, _settings), (StatusError,), _settings_seeds),
    Target(
        "membership", _membership, (RefusedError,),
        lambda: [log_pb2.MembershipRequest(group="g", member_id="m", topics=["a"],
        zone="z").SerializeToString()],
    ),
    Target("forwarded_calls", _forwarded, (ForwardError,), lambda: [_forwarded_seed()]),
    Target("grant_answer", _granted, (ForwardError,), lambda: [_granted_seed()]),
    Target("generation_claim", _claim, (RefusedError,), lambda: [_claim_seed()]),
    Target("receipt_handle", _handle, (InvalidReceiptHandleError,), lambda: [_handle_seed()], _seal_end),
    Target("commands", _commands, (CorruptError, UnknownCommandError), _command_seeds),
    Target(
        "checkpoint", lambda data: decode_snapshot(data, "file"), (CheckpointError,),
        lambda: [b"".join(encode_snapshot(_snapshot()))], _seal_checkpoint,
    ),
    Target(
        "queue_units_of_a_reset", _leading, (CheckpointError,),
        lambda: [b"\1" + _LEADING.pack(1, 0, 0, 2, 0) + bytes(40)],
    ),
    Target(
        "key_run", _key_run, (CorruptError, NewerFormatError), lambda: [_key_run_seed()], _seal_run,
    ),
    Target("keys_of_records", _keys, (log_wire.BadProduceRequestError,), lambda: [bytes(message_section()),
    _many_messages()], lambda data: seal_sections(data, 0)),
    Target("dump_notes", _dump_notes, (), lambda: [bytes(64) * 4]),
)  # fmt: skip
