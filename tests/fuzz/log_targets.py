"""Decoders of `proto` and `raft`: entries, sections, records, frames between nodes, data folder files."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

from crc32c import crc32c
from google.protobuf.message import DecodeError

from ledgermq.broker.ports.http import HttpServer
from ledgermq.proto.call_metadata import GROUP_ID, group_metadata, meant_group
from ledgermq.proto.digest_file import decode_digests, encode_digests
from ledgermq.proto.entry import HEADER_SIZE, MAGIC_WORD, EntryHeader, EntryKind
from ledgermq.proto.errors import CorruptError, LayoutError, NewerFormatError
from ledgermq.proto.foreign_text import safe_text
from ledgermq.proto.record import (
    SECTION_HEADER_SIZE,
    RecordFlags,
    SectionKind,
    decode_record,
    decode_section,
    encode_record,
    encode_section,
    hash_text,
    pack_message_id,
    record_flags,
    record_headers,
    record_positions,
    seal_section,
    verify_section,
    walk_commands,
    walk_sections,
)
from ledgermq.proto.varint import read_varint, varint
from ledgermq.raft.core.messages import AppendEntries, Heartbeat, RequestVote
from ledgermq.raft.core.reign import Reign
from ledgermq.raft.damage import Before, RepairNote
from ledgermq.raft.errors import DamagedFolderError, DamagedFrameError, InvalidWireError, NewerFolderError
from ledgermq.raft.log.digest_store import read_digests
from ledgermq.raft.log.entry_index import decode_index, encode_index, read_index, read_index_nowait
from ledgermq.raft.log.hard_state import DurableState, decode_state, encode_state
from ledgermq.raft.log.identity import (
    Identity,
    Manifest,
    read_identity,
    read_manifest,
    write_identity,
    write_manifest,
)
from ledgermq.raft.log.repair_note import read_note_of, write_note
from ledgermq.raft.log.segment import FlushMark, Segment, encode_mark, read_marks
from ledgermq.raft.log.segment_scan import scan_segment
from ledgermq.raft.log.wire_batch import check_wire, last_index_of
from ledgermq.raft.ports.tls_records import ClientRecords, NoHelloError
from ledgermq.raft.transport.checked_frame import read_header
from ledgermq.raft.transport.hello import (
    Hello,
    Standing,
    claim_beside,
    encode_arrived,
    encode_first_answer,
    encode_first_frame,
    encode_greeting,
    read_arrived,
    read_first_answer,
    read_first_frame,
    read_greeting,
    read_reply,
    refusal_of,
    reply_of,
)
from ledgermq.raft.transport.seal import seal_of, unsealed
from ledgermq.raft.transport.wire import decode, encode_append, encode_control
from ledgermq.raft.types import HardState, LogIndex, NodeId, Term
from tests.broker.entry_log import EntryLog, records, section
from tests.proto.test_digest_file import made
from tests.raft.simulated_disk import SimulatedDisk

from .files import one_file
from .fuzzer import Target

_SEGMENT: Final = 1 << 16
_N1, _N2 = NodeId("n1"), NodeId("n2")


def put_crc(data: bytearray, at: int, start: int) -> bytes:
    """Set the checksum over everything from `start` on."""
    if len(data) >= max(start, at + 4):
        struct.pack_into("<I", data, at, crc32c(bytes(data[start:])))
    return bytes(data)


# --- sections and records -----------------------------------------------------------------------------------
def message_section() -> bytearray:
    """Return a sealed section of three messages, with keys."""
    parts, distance = [], SECTION_HEADER_SIZE
    for number in range(3):
        raw, flags = pack_message_id(f"01{number:032X}")
        system = b"\x0a\x01t\x12\x01k\x1a\x221" + b"0" * 33
        rest = b"\x0a\x04\x12\x02to\x22\x05hello"
        parts.append(
            encode_record(
                system, rest, section_distance=distance, body_offset_in_rest=8, body_size=5, message_id=raw,
                born_timestamp=1_700_000_000_000, tag_hash=hash_text("t"), key_hashes=(hash_text("k"),
                ) * number,
                flags=int(flags | RecordFlags.FIFO),
            )
        )  # fmt: skip
        distance += len(parts[-1])
    made = encode_section(SectionKind.RECORDS, parts, 3, topic_id=1, queue_id=2, producer_id=9)
    seal_section(made, base_queue_offset=7, entry_distance=64)
    return made


def _sections(data: bytes) -> None:
    count, payload = data[0] if data else 0, data[1:]
    pack_message_id(safe_text(payload, 40))
    for position, header in walk_sections(payload, count):
        verify_section(payload, position, header)
        start = position + SECTION_HEADER_SIZE
        body = payload[start : start + header.size]
        if header.kind is SectionKind.COMMANDS:
            assert len(list(walk_commands(body, header.count))) == header.count
            continue
        positions = record_positions(body, header.count)
        record_flags(body, positions), record_headers(body, positions)
        for at in positions.tolist():
            view = decode_record(body, at)
            assert len(view.body) == view.body_size and len(view.key_hashes) == view.key_count
            assert len(view.system_run) == view.system_size and len(view.rest_run) == view.rest_size


def seal_sections(data: bytearray, start: int) -> bytes:
    """Fix the checksums of adjacent sections."""
    at = start
    while at + SECTION_HEADER_SIZE <= len(data):
        size = struct.unpack_from("<I", data, at + 20)[0]
        body = data[at + SECTION_HEADER_SIZE : at + SECTION_HEADER_SIZE + size]
        struct.pack_into("<I", data, at + 24, crc32c(bytes(body)))
        at += SECTION_HEADER_SIZE + size
    return bytes(data)


def _section_seeds() -> list[bytes]:
    commands = encode_section(SectionKind.COMMANDS, [bytes(8)] * 3, 3)
    many = section(1, 0, records(9, size=8))
    uneven = section(1, 0, records(9, size=(3, 40)))
    return [
        b"\1" + bytes(message_section()),
        b"\2" + bytes(many) + bytes(uneven),
        b"\1" + bytes(commands),
        b"\0",
    ]


# --- entries ------------------------------------------------------------------------------------------------
def entries() -> bytes:
    """Return a log of four entries."""
    log = EntryLog()
    log.add([], EntryKind.NOOP)
    for count in (1, 3):
        log.add([section(1, 0, records(count, size=20))])
    log.add([bytes(message_section())])
    return b"".join(log.raw)


def entries_far_apart() -> bytes:
    """Return that log with timestamps more than 63 bits apart: the second entry is the older one."""
    data = bytearray(entries())
    (size,) = struct.unpack_from("<I", data, 8)
    struct.pack_into("<Q", data, 40, (1 << 63) - 1)
    struct.pack_into("<Q", data, size + 40, 1 << 63)
    return seal_entries(data)


def seal_entries(data: bytearray) -> bytes:
    """Fix chain and checksums of entries, as far as sizes lead from one to the next."""
    at, before = 0, None
    while at + HEADER_SIZE <= len(data) and struct.unpack_from("<I", data, at)[0] == MAGIC_WORD:
        size, kind = struct.unpack_from("<IB", data, at + 8)
        end = at + (HEADER_SIZE if kind == EntryKind.FILLER else size)
        if before is not None:
            struct.pack_into("<I", data, at + 48, before)
        before = crc32c(bytes(data[at + 8 : end]))
        struct.pack_into("<I", data, at + 4, before)
        if end <= at:
            break
        at = end
    return bytes(data)


def _wire(data: bytes) -> None:
    last_index_of(data)
    batch = check_wire(data, _SEGMENT)
    assert batch.term_runs()[0][0] == batch.first_index <= batch.last_index


def _scan(data: bytes) -> None:
    before = Before(LogIndex(0), Term(0), 0, 0)
    found = scan_segment(one_file(data.ljust(_SEGMENT, b"\0")), 0, _SEGMENT, before, chunk=4096)
    assert 0 <= found.end <= _SEGMENT


# --- frames between nodes -----------------------------------------------------------------------------------
def _hello(**changes: Any) -> Hello:
    values: dict[str, Any] = {
        "cluster_id": "c", "group": "g", "node_id": _N1, "incarnation": 7, "segment_size": _SEGMENT,
        "standing": Standing.VOTER, "term": Term(3), "to_node_id": "n2", "group_id": 9,
        "known_incarnations": {_N2: 5}, "reign": Reign(master=_N1, generation=1, began_after=LogIndex(4),
        former_group_ids=(5, 6)),
    }  # fmt: skip
    return Hello(**values | changes)


def _frame(data: bytes) -> None:
    messages, hello, _entries = decode(data, _N1, _N2)
    for message in messages:
        assert message.from_ == _N1
    if hello is not None:
        mine = _hello(node_id=_N2, to_node_id="")
        refusal_of(mine, hello, frozenset((_N1, _N2)))
        claim_beside(mine, hello)


def _frame_seeds() -> list[bytes]:
    append = AppendEntries(
        Term(3), _N1, _N2, LogIndex(1), Term(1), LogIndex(2), LogIndex(4), LogIndex(1),
        ((LogIndex(2), Term(1)),),
    )  # fmt: skip
    control = (
        Heartbeat(Term(3), _N1, _N2, LogIndex(4), 5, 6),
        RequestVote(Term(3), _N1, _N2, LogIndex(4), Term(2)),
    )
    return [
        b"".join(encode_append(append, entries())),
        encode_control(control, _hello()),
        encode_control(control),
    ]


def _greeting(data: bytes) -> None:
    """A greeting, its reply, and the header of a frame after them, of the version before."""
    for read in (read_header_of, read_reply):
        with suppress(DamagedFrameError, DecodeError):
            read(data)
    refusal_of(_hello(node_id=_N2, to_node_id=""), read_greeting(data), frozenset((_N1, _N2)))


def read_header_of(data: bytes) -> None:
    read_header(data.ljust(64, b"\0"), 0)


def _message(data: bytes) -> None:
    """A sealed message of a call: a greeting, its answer, a report, or a frame."""
    message = unsealed(data)
    for read in (read_first_answer, read_arrived):
        with suppress(ValueError, DecodeError):
            read(message)
    with suppress(CorruptError):
        _frame(bytes(message))
    refusal_of(_hello(node_id=_N2, to_node_id=""), read_first_frame(message), frozenset((_N1, _N2)))


def _message_seeds() -> list[bytes]:
    answer, report = encode_first_answer(reply_of(_hello(), None)), encode_arrived(300)
    first = encode_first_frame(_hello())
    assert read_first_answer(answer).hello.node_id == _N1 and read_arrived(report) == 300
    return [first + seal_of(first)]


def _seal_greeting(data: bytearray) -> bytes:
    return bytes(data[:-4]) + crc32c(bytes(data[:-4])).to_bytes(4, "little")


# --- files --------------------------------------------------------------------------------------------------
_ERRORS: Final = (CorruptError, NewerFormatError)
_FOLDER_ERRORS: Final = (DamagedFolderError, NewerFolderError)
_PATH: Final = Path("/data/file")


def _written(write: Any, value: Any) -> bytes:
    disk = SimulatedDisk()
    disk.make_directory(_PATH.parent)
    write(disk, value)
    (name,) = disk.list_directory(_PATH.parent)
    file = disk.open(_PATH.parent / name)
    return file.pread(file.size(), 0)


def _record_seal(data: bytearray) -> bytes:
    head, newline, body = bytes(data).partition(b"\n")
    return head[: head.rfind(b" ") + 1] + b"%08x" % crc32c(body) + newline + body


def _identity() -> bytes:
    identity = Identity(
        cluster_id="c", group="g", node_id=_N1, incarnation=7, segment_size=_SEGMENT, feature_level=1,
        members={_N1: 7, _N2: 8}, complete=True, group_id=9, reign=Reign(master=_N1, generation=1,
        began_after=LogIndex(4), former_group_ids=(5, 6)),
    )  # fmt: skip
    return _written(lambda disk, value: write_identity(disk, _PATH, value), identity)


def _manifest() -> bytes:
    manifest = Manifest(
        first_index=LogIndex(5), first_offset=4096, prev_term=Term(2), prev_crc=77, prev_timestamp=9
    )
    return _written(lambda disk, value: write_manifest(disk, _PATH, value), manifest)


def _hard_state() -> bytes:
    return encode_state(DurableState(hard=HardState(Term(3), _N2, LogIndex(4), True), incarnation=7), 5)


def _seal_hard_state(data: bytearray) -> bytes:
    if len(data) >= 512:
        crc = crc32c(bytes(data[12:512]), crc32c(bytes(data[:8])))
        struct.pack_into("<I", data, 8, crc)
    return bytes(data)


def _index() -> bytes:
    made, log = Segment(0, LogIndex(1)), EntryLog()
    for _ in range(4):
        made.add(_header(log.add([section(1, 0, records(1))])))
    return encode_index(made)


def _header(entry: tuple[EntryHeader, memoryview]) -> EntryHeader:
    return entry[0]


def _read_index(data: bytes) -> None:
    decode_index(data)
    read_index_nowait(one_file(data))
    read_index(one_file(data), Path("/data"), 0)


def _digests(data: bytes) -> None:
    digests = decode_digests(data)
    assert len(digests.ends()) == len(digests.rows)
    read_digests(one_file(data), Path("/data"), 0)


def _marks(data: bytes) -> None:
    read_marks(one_file(data), 0)


def _tls(data: bytes) -> None:
    records_ = ClientRecords()
    records_.is_answered = bool(data[:1] == b"\1")
    for at in range(1, len(data), 700):
        records_.feed(data[at : at + 700])


def _meant(data: bytes) -> None:
    meant_group([(GROUP_ID, safe_text(data)), (GROUP_ID, data)])


_http: Final = HttpServer(lambda: {"/livez": lambda: (200, "text/plain", b"ok")})


LOG_TARGETS: Final[Sequence[Target]] = (
    Target("section", _sections, (LayoutError,), _section_seeds, lambda data: seal_sections(data, 1)),
    Target("section_header", decode_section, (LayoutError,), lambda: [bytes(message_section())]),
    Target("varint", lambda data: read_varint(data, 0), (CorruptError,), lambda: [varint(n) for n in (0, 300,
    2**64 - 1)]),
    Target("wire_entries", _wire, (InvalidWireError,), lambda: [entries()], seal_entries),
    Target("segment", _scan, (NewerFormatError,), lambda: [entries()], seal_entries),
    Target("raft_frame", _frame, (CorruptError,), _frame_seeds),
    Target("raft_greeting", _greeting, (ValueError, DecodeError, DamagedFrameError),
    lambda: [encode_greeting(_hello())], _seal_greeting),
    Target("raft_message", _message, (ValueError, DecodeError, DamagedFrameError), _message_seeds,
    _seal_greeting),
    Target("identity", lambda d: read_identity(one_file(d), _PATH, "n1"), _FOLDER_ERRORS,
    lambda: [_identity()], _record_seal),
    Target("manifest", lambda d: read_manifest(one_file(d), _PATH, "n1"), _FOLDER_ERRORS,
    lambda: [_manifest()], _record_seal),
    Target(
        "repair_note", lambda d: read_note_of("n1", one_file(d), _PATH), _FOLDER_ERRORS,
        lambda: [_written(lambda disk, value: write_note(disk, _PATH.parent, value), RepairNote(9, 4,
        False))], _record_seal,
    ),
    Target("hard_state", decode_state, _ERRORS, lambda: [_hard_state()], _seal_hard_state),
    Target("entry_index", _read_index, _ERRORS, lambda: [_index()], lambda data: put_crc(data, 8, 12)),
    Target("block_digests", _digests, (CorruptError, NewerFormatError), lambda: [encode_digests(made(6))],
    lambda data: put_crc(data, 8, 12)),
    Target("flush_marks", _marks, (NewerFormatError,), lambda: [encode_mark(FlushMark(3, 0, 4096))],
    lambda data: put_crc(data, 8, 12)),
    Target("tls_hello", _tls, (NoHelloError,),
    lambda: [b"\1\x16\x03\x01\x00\x08\x01\x00\x00\x04abcd\x17\x03\x03\x00\x01x"]),
    Target("http_head", _http.answer, (), lambda: [b"GET /livez?x=1 HTTP/1.1\r\nHost: h\r\n\r\n"]),
    Target("group_id_metadata", _meant, (ValueError,), lambda: [group_metadata(7)[0][1].encode()]),
)  # fmt: skip
