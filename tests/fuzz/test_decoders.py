"""Every decoder of external bytes raises only its declared errors, within bounds of memory and time."""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest

from . import fuzzer
from .fuzzer import FuzzFailure, Target, run
from .targets import TARGETS

#: For each target in `make test`. `make fuzz` runs for any time.
SECONDS: Final = 5
ROOT: Final = Path(__file__).resolve().parent.parent.parent
PACKAGES: Final = ("proto", "rpc", "raft", "broker", "nameserver", "client", "spark_jobs")
#: A caller of one of these reads bytes.
READING: Final = frozenset(
    [
        "FromString",
        "ParseFromString",
        "loads",
        "unpack",
        "unpack_from",
        "iter_unpack",
        "frombuffer",
        "frombytes",
        "from_bytes",
        "fromhex",
        "b64decode",
        "urlsafe_b64decode",
        "read_varint",
    ]
)
#: Functions that read bytes without a target, and why none is needed.
EXEMPT: Final = {
    # Made by this process itself.
    "raft/folder/bootstrap.py group_id_of": "a digest",
    "broker/leader/allocation.py _place": "a digest",
    "broker/native/batches.py writer_id": "a digest",
    "broker/service/sessions.py session_of": "a digest",
    "broker/state/dedup.py Stream.find": (
        "batches that `with_batch` packed, or a checkpoint whose checksum was right"
    ),
    "client/produce/plain_run.py PlainRun._write_equal": "a producer's own records",
    "client/produce/plain_run.py PlainRun._write_different": "a producer's own records",
    "client/produce/send_trace.py _messages": "a producer's own records",
    "client/bench/workloads.py _receive": "the benchmark's own messages",
    "client/demo/checks.py check": "the report that the demonstration's own check wrote",
    "spark_jobs/agreement.py Comparison.scan": "rows that the scan wrote",
    "spark_jobs/topics/row_columns.py bodies_of": "columns that Spark passes within a process",
    "spark_jobs/agreement.py Comparison.fetched": "rows that the scan wrote",
    "spark_jobs/lake/row_checksums.py _crcs": "columns that pyarrow made within the process, and checked",
    "spark_jobs/lake/archive_job.py _ArchiveJob._store": "what the job's own tasks answer",
    "spark_jobs/lake/archive_job.py _ArchiveJob._tell_of": "Spark's progress within the process",
    "spark_jobs/lake/archive_job.py _json": "Spark's progress within the process",
    "spark_jobs/topics/stream_progress.py StreamProgress.onQueryProgress": "Spark's progress of this session",
    "spark_jobs/topics/stream_progress.py _document": "Spark's progress of this session",
    "spark_jobs/lake/spark_tasks.py run_tasks": "what the job's own tasks answer",
    "spark_jobs/lake/restore_job.py parse_offsets": "an option of the caller",
    "raft/repair/digest_builder.py DigestBuilder.add": "whole headers that the scan of a segment verified",
    "spark_jobs/dump_source.py DumpReader.__init__": "an option of the caller",
    "spark_jobs/topics/source_options.py _Given._given_offsets": "an option of the caller",
    "raft/repair/refetch.py RefetchService.handler.<locals>.serve": (
        "protobuf's own decoder, whose error is answered"
    ),
    # An operator's configuration, with its own tests.
    "broker/config.py _read_file": "TOML of the operator",
    "nameserver/__main__.py _read_file": "TOML of the operator",
    "broker/ports/open_connections.py _count": "an answer of the kernel",
    # Bytes already checked by a decoder with a target; or only whole units of a number are used.
    "broker/state/consume_queue.py ConsumeQueues._keep": (
        "whole units of 20 bytes; their checksum is compared"
    ),
    "broker/checkpoint/queue_check.py QueueCheck._rebuild": "whole units of 20 bytes",
    "broker/state/rebuild.py QueueRebuild._bridge": "whole units of 20 bytes",
    "spark_jobs/consume_queue_checks.py QueueFiles.read": "whole units of 20 bytes",
    "broker/reading/log_reader.py LogReader._section_of": (
        "fixed offsets in 64 bytes; the entry is verified before it is used"
    ),
    "broker/admin/message_search.py _system": "the caller is told of a DecodeError",
    "broker/admin/message_search.py MessageQueries._place_of": "a fixed offset in a header that is there",
    # Streams: the contents of their messages have targets.
    "raft/transport/frame_stream.py FrameStream._read_header": (
        "the older form: a length; tests/raft/transport/test_frame_stream.py"
    ),
    "raft/transport/former_streams.py FormerOutgoing.read_arrived": "one number, compared with what was sent",
    "raft/reset/receiver.py _next": "catches DecodeError",
    "raft/reset/sender.py ResetSender._admitted": "catches DecodeError; a Hello has a target",
    "broker/cluster/lane.py _Opening._take": "`_run` catches DecodeError",
    "broker/cluster/lane_server.py _Stream._decoded": "catches DecodeError; the calls have a target",
    "broker/service/telemetry.py TelemetryStreams.serve": "catches DecodeError; the settings have a target",
    "broker/checkpoint/transfer.py _head": (
        "the size of the head is checked; units and checkpoint have targets"
    ),
    "spark_jobs/topics/analysis_folder.py _is_analysis": "whatever else is in the user's file is no analysis",
    "client/cli/restore.py _let_up_start_it": "a record that the same command wrote",
    "client/admin/dump_messages.py DumpedTopic._topic_of": "catches DecodeError",
    "nameserver/service.py _handler.<locals>.decoded": ("catches DecodeError; a registration has a target"),
}


@pytest.mark.parametrize("target", TARGETS.values(), ids=TARGETS)
def test_a_decoder_raises_only_what_it_declares_within_bounds(target: Target) -> None:
    run(target, seed=0, seconds=SECONDS)


@pytest.mark.parametrize("target", TARGETS.values(), ids=TARGETS)
def test_the_corpus_begins_with_real_encodings(target: Target) -> None:
    """Mutations of an input that is refused at the first byte would reach nothing."""
    for seed in sorted(target.seeds()):
        target.decode(seed)
    assert {len(seed) for seed in target.seeds()} <= {len(data) for data in target.corpus()}, (
        "python -m tests.fuzz --write-corpus"
    )


def test_every_function_that_reads_bytes_is_reached_by_a_target() -> None:
    reached = _reached()
    reading = set(_reading())
    assert reading - reached - EXEMPT.keys() == set(), (
        "give it a target in tests/fuzz, or say here why it needs none"
    )
    assert EXEMPT.keys() - reading == set(), "these are gone"


def _reading() -> Iterator[str]:
    for package in PACKAGES:
        for path in sorted((ROOT / package).rglob("*.py")):
            if "_pb2" not in path.name:
                yield from _reading_in(ast.parse(path.read_text()), path.relative_to(ROOT).as_posix(), ())


def _reading_in(node: ast.AST, file: str, names: tuple[str, ...]) -> Iterator[str]:
    for child in ast.iter_child_nodes(node):
        inner = names
        if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef):
            inner = (*names, child.name, "<locals>")
        elif isinstance(child, ast.ClassDef):
            inner = (*names, child.name)
        elif isinstance(child, ast.Call) and _name_of(child.func) in READING and "<locals>" in names:
            yield f"{file} {'.'.join(names[:-1])}"
        yield from _reading_in(child, file, inner)


def _name_of(function: ast.expr) -> str:
    if isinstance(function, ast.Attribute):
        return function.attr
    return function.id if isinstance(function, ast.Name) else ""


def _reached() -> set[str]:
    """Return the functions entered while decoding the corpus and some hundred mutations of it."""
    found: set[str] = set()
    root = f"{ROOT}/"

    def enter(frame: Any, event: str, _argument: object) -> None:
        code = frame.f_code
        if event == "call" and code.co_filename.startswith(root):
            found.add(f"{code.co_filename.removeprefix(root)} {code.co_qualname}")

    for target in TARGETS.values():
        sys.setprofile(enter)
        try:
            run(target, seed=1, seconds=0, runs=50)
        finally:
            sys.setprofile(None)
    return found


def test_a_wrong_error_too_much_memory_and_too_much_time_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fuzzer, "MAX_SECONDS", 0.2)

    def target(decode: Any) -> Target:
        return Target("varint", decode, (ValueError,), lambda: [b"\1"])

    def endless(data: bytes) -> None:
        while data is not None:
            pass

    for decode in (lambda data: data[1 << 20], lambda data: bytearray(8 << 30), endless):
        with pytest.raises(FuzzFailure):
            run(target(decode), seed=0, seconds=1)
    assert run(target(int), seed=0, seconds=0, runs=10) >= 10
