"""Decoders of `client`, `nameserver` and `spark_jobs`: messages, client files, dumps, registrations."""

from __future__ import annotations

import atexit
import gzip
import json
import tempfile
import zlib
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

from crc32c import crc32c
from google.protobuf.message import DecodeError

from ledgermq.client.cli.line_source import LineCutter
from ledgermq.client.consume.fetched_records import open_section, tag_hashes
from ledgermq.client.demo.ledger import number_of
from ledgermq.client.durations import parse_duration
from ledgermq.client.errors import CorruptMessageError, OffsetsFileError, UsageError
from ledgermq.client.local.plan import LocalPlan, read_plan
from ledgermq.client.local.ports import NodePorts
from ledgermq.client.message import MessageQueue, UnpackError, unpack_body
from ledgermq.client.produce.message_ids import time_of
from ledgermq.client.push.offsets_file import OffsetsFile
from ledgermq.client.trace.events import TraceEvent, TraceSource, decode_batch, encode_batch
from ledgermq.nameserver.registrations import problem_of
from ledgermq.nameserver.route_table import RouteTable
from ledgermq.proto import log_pb2
from ledgermq.proto import nameserver_pb2 as ns
from ledgermq.proto.dump_manifest import FORMAT, FORMAT_VERSION, MANIFEST
from ledgermq.proto.errors import LayoutError
from ledgermq.proto.record import decode_section, verify_section
from ledgermq.spark_jobs.dump_folder import read_dump
from ledgermq.spark_jobs.entry_checks import Where, check_entries
from ledgermq.spark_jobs.entry_table import read_entries
from ledgermq.spark_jobs.errors import SparkJobError
from ledgermq.spark_jobs.lake.compaction_plan import compactions
from ledgermq.spark_jobs.lake.lake_state import (
    LakeCommit,
    LakeFile,
    LakeGap,
    LakeRange,
    LakeState,
    decode_commit,
    encode_commit,
)
from ledgermq.spark_jobs.section_checks import check_sections
from ledgermq.spark_jobs.topics.stream_offsets import PartPositions

from .fuzzer import Target
from .log_targets import entries, entries_far_apart, message_section, seal_entries, seal_sections

_QUEUE: Final = MessageQueue("orders", "g0", 2)
_folder: Final = tempfile.TemporaryDirectory(prefix="ledgermq-fuzz-")
atexit.register(_folder.cleanup)


def _in_folder(name: str, data: bytes) -> Path:
    path = Path(_folder.name, name)
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(data)
    return path


# --- messages -----------------------------------------------------------------------------------------------
def _fetched(data: bytes) -> None:
    found = open_section(_QUEUE, log_pb2.FetchedSection(section=data), 7, tag_hashes("t || u"))
    found = open_section(_QUEUE, log_pb2.FetchedSection(section=data, store_timestamp=5), 0)
    for view in found.take(_QUEUE, 100) if found is not None else ():
        for read in _ATTRIBUTES:
            with suppress(CorruptMessageError):
                read(view)


_ATTRIBUTES: Final[tuple[Callable[[Any], object], ...]] = (
    repr,
    lambda view: view.system_properties,
    lambda view: view.read_body(),
    lambda view: view.message_id,
    lambda view: (view.born_timestamp, view.tag, view.keys, view.message_group),
    lambda view: view.properties,
)


def _columns(data: bytes) -> None:
    """A section as the Spark source reads it, twice, so that sections are joined."""
    import pyarrow as pa  # of the extra [spark]

    from ledgermq.spark_jobs.topics.message_columns import COLUMNS, message_batch, record_table

    try:
        header = decode_section(data)
        verify_section(data, 0, header)
    except LayoutError as error:
        raise CorruptMessageError("orders", 0, str(error)) from error
    raw = data[: header.total_size]
    table = record_table(_QUEUE, [raw, raw], [header, header], [5, 6])
    types = {
        "int": pa.int32(), "bigint": pa.int64(), "binary": pa.binary(), "string": pa.string(),
        "timestamp": pa.timestamp("us", "UTC"), "array<string>": pa.list_(pa.string()),
        "map<string,string>": pa.map_(pa.string(), pa.string()),
    }  # fmt: skip
    schema = pa.schema([(name, types[kind]) for name, kind in COLUMNS.items()])
    for lenient in (True, False):
        message_batch(table, schema, lenient=lenient)


def _body(data: bytes) -> None:
    assert len(unpack_body(data, True, 1 << 20)) <= 1 << 20


def _trace(data: bytes) -> None:
    batch = decode_batch(data)
    if batch is not None:
        encode_batch(batch.source, batch.events)


def _trace_seed() -> bytes:
    source = TraceSource("producer", "g", "c", "h", 7)
    event = TraceEvent("send", "01AB", "orders", 5, "stored", keys=("k",), error="e")
    return encode_batch(source, [event, event])


def _words(data: bytes) -> None:
    text = data.decode("utf-8", "replace")
    time_of(text)
    with suppress(UsageError):
        parse_duration(text)
    with suppress(ValueError):
        number_of(data)


def _lines(data: bytes) -> None:
    cutter = LineCutter(1000)
    for at in range(0, len(data), 300):
        list(cutter.feed(data[at : at + 300]))
    list(cutter.feed(b""))


# --- files --------------------------------------------------------------------------------------------------
def _offsets(data: bytes) -> None:
    file = OffsetsFile(_in_folder("offsets", data), "g")
    file.open()
    try:
        rows = [(place, offset + 1) for place, offset in file._offsets.items()]
        file._encode(dict(rows))
    finally:
        file.close()


def _offsets_seed() -> bytes:
    file = OffsetsFile(Path(_folder.name, "made"), "g")
    file._ids["g0"] = (7, 6)
    return file._encode({(_QUEUE, 3): 41})


def _seal_offsets(data: bytearray) -> bytes:
    with suppress(ValueError, TypeError, KeyError, RecursionError):
        content = json.loads(bytes(data))
        content["crc32c"] = crc32c(json.dumps(content["offsets"], sort_keys=True).encode())
        return json.dumps(content).encode()
    return bytes(data)


def _plan(data: bytes) -> None:
    read_plan(_in_folder("cluster.json", data))


def _plan_seed() -> bytes:
    ports = {"n1": NodePorts(1, 2, 3, 4), "n2": NodePorts(5, 6, 7, 8)}
    return LocalPlan(9876, {"g0": ports}).to_json().encode()


def _manifest(data: bytes) -> None:
    read_dump(_in_folder(f"dump/{MANIFEST}", data).parent)


def _manifest_seed() -> bytes:
    fields = {
        "format": FORMAT, "format_version": FORMAT_VERSION, "cluster": "c", "group": "g", "node": "n1",
        "incarnation": "07", "voters": ["n1"], "segment_size": 65536, "first": {"index": 1, "offset": 0},
        "commit": {"index": 4, "end_offset": 900, "term": 2, "crc": 7}, "end_offset": 900,
        "consume_queues": "complete",
        "queues": [["orders", 1, 0, 0, 5]], "index_points": [[1, 0]], "checksums": [[0, 900, 7]],
        "files": [{"path": "commitlog/0", "size": 900}], "log_time_ms": 5, "software": "0.1.0",
        "group_id": "09",
        "former_group_ids": ["08"], "state_digest": {"index": 4, "version": 7, "digest": "0a"},
    }  # fmt: skip
    return json.dumps(fields).encode()


def _lake_commit(data: bytes) -> None:
    """A manifest of a lake, and what is made of its contents."""
    commit = decode_commit(data, "7.json")
    state = LakeState(commit)
    for topic in state.topics:
        for file in state.files_of(topic):
            _ = file.count, file.folder
    compactions(state.files.values())
    decode_commit(encode_commit(state.snapshot()), "8.json")


def _lake_seed() -> bytes:
    ranges = (LakeRange("g0", 0, 3, 9, 5), LakeRange("g0", 1, 0, 2, 1 << 63))
    files = tuple(
        LakeFile(f"topic=t/{n}.parquet", "t", 500_000 + n, 900, ranges, "s/x.part") for n in range(2)
    )
    positions = {("t", "g0"): PartPositions(7, 1, {0: 9, 1: 2})}
    gaps = (LakeGap("t", "g0", 0, 0, 3),)
    return encode_commit(LakeCommit(4, "snapshot", "ab", 5, positions, files, (), gaps))


def _seal_lake(data: bytearray) -> bytes:
    line = bytes(data).partition(b"\n")[0]
    return line + f"\n{crc32c(line):08x}\n".encode()


class _Source:
    def __init__(self, data: bytes) -> None:
        self._data, self.size = data, len(data)

    def read(self, offset: int, size: int) -> bytes:
        return self._data[offset : offset + size]


def _table(data: bytes) -> None:
    """A slice of a segment as a Spark task reads it. Whatever it holds becomes a finding."""
    where = Where("n1", "commitlog/0", -1, 0)
    for start, at_boundary in ((0, True), (64, False)):
        table = read_entries(
            _Source(data), 0, start, max(len(data), start), segment_end=1 << 16, at_boundary=at_boundary
        )
        check_entries(table, where)
        check_sections(table, where, with_units=True)


# --- nameserver ---------------------------------------------------------------------------------------------
def _register(data: bytes) -> None:
    request = ns.RegisterRequest.FromString(data)
    if problem := problem_of(request):
        assert problem.isprintable()
        return
    table = RouteTable(10_000)
    if not table.rivals(request.route):
        table.register(request.node_id, request.incarnation, request.route, request.is_leader, 0)
    table.broker_groups(request.route.cluster), table.similar_topics(request.route.cluster, "a")
    table.expire(20_000)


def _register_seed() -> bytes:
    request = ns.RegisterRequest(node_id="n1", incarnation="07", is_leader=True)
    route = request.route
    route.cluster, route.group, route.term, route.leader_id, route.group_id = "c", "g", 3, "n1", 9
    node = route.nodes.add(node_id="n1", zone="z")
    node.listeners.add(name="default", messaging_address="h:8081", log_address="h:8082")
    route.topics.add(name="orders", queue_count=4, topic_id=1)
    return request.SerializeToString()


CLIENT_TARGETS: Final[Sequence[Target]] = (
    Target("fetched_section", _fetched, (CorruptMessageError,), lambda: [bytes(message_section())],
    lambda data: seal_sections(data, 0)),
    Target("message_columns", _columns, (CorruptMessageError,), lambda: [bytes(message_section())],
    lambda data: seal_sections(data, 0)),
    Target("message_body", _body, (UnpackError, zlib.error), lambda: [zlib.compress(b"a" * 99),
    gzip.compress(b"b" * 99, mtime=0)]),
    Target("trace_batch", _trace, (), lambda: [_trace_seed()]),
    Target("words", _words, (), lambda: [b"01" + b"AB" * 16, b"1.5s", b"\0" * 8]),
    Target("lines", _lines, (UsageError,), lambda: [b"a\n\nb\nc"]),
    Target("offsets_file", _offsets, (OffsetsFileError,), lambda: [_offsets_seed()], _seal_offsets),
    Target("local_plan", _plan, (UsageError,), lambda: [_plan_seed()]),
    Target("dump_manifest", _manifest, (SparkJobError,), lambda: [_manifest_seed()]),
    Target("lake_commit", _lake_commit, (SparkJobError,), lambda: [_lake_seed()], _seal_lake),
    Target("dump_slice", _table, (), lambda: [entries(), entries_far_apart()], seal_entries),
    Target("registration", _register, (DecodeError,), lambda: [_register_seed()]),
)  # fmt: skip
