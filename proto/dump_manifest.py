"""`manifest.json`: what the dump of one node says of itself (D20; broker/backup/files.py writes it).

Pure. Owns: the names and types of its fields. Must not: open files. What it says is a claim: whoever reads a dump checks
it against the files.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any, Final

from .errors import CorruptError, NewerFormatError
from .foreign_text import safe_text

MANIFEST: Final = "manifest.json"
FORMAT: Final = "ledgermq-dump"
FORMAT_VERSION: Final = 1
_LATEST_MS: Final = 253_402_300_799_999  # the end of the year 9999: the last time that can be written


@dataclass(frozen=True, slots=True, order=True)
class QueueClaim:
    """A queue as the node knows it: it holds the messages [begin, end). A deleted topic has none."""

    topic: str
    topic_id: int
    queue_id: int
    begin: int
    end: int


@dataclass(frozen=True, slots=True)
class StateClaim:
    """The file with the state after an entry; the queues' units before it are made from the log."""

    index: int
    path: str  # below the dump's folder


@dataclass(frozen=True, slots=True, kw_only=True)
class DumpManifest:
    """What a dump says of itself. Offsets are physical."""

    cluster: str
    group: str
    node: str
    incarnation: str
    group_id: int  # tells groups of one name apart; 0: not known, or the dump is older than this field
    former_group_ids: tuple[int, ...]  # of this group before it was recovered, or a master promoted
    voters: tuple[str, ...]
    segment_size: int
    first_index: int
    first_offset: int
    prev_term: int  # of the entry before the first one; 0 also when the dump is older than this field
    prev_crc: int  # that the first entry chains to; likewise
    prev_timestamp: int  # log time (ms) of the entry before the first one; likewise
    commit_index: int
    commit_offset: int  # behind the entry at `commit_index`
    commit_term: int  # 0: that entry could not be read
    commit_crc: int
    end_offset: int  # behind the last byte that was dumped
    queues_complete: bool
    has_queues: bool
    queues: tuple[QueueClaim, ...]
    state: StateClaim | None  # None: the log begins at its first entry, or the dump cannot be restored
    index_points: tuple[tuple[int, int], ...]  # (index, offset) about every 4 MiB
    checksums: dict[int, tuple[int, int]]  # start of a block of raw bytes -> (size, crc32c)
    file_sizes: dict[str, int]  # path below the folder -> bytes
    log_time_ms: int
    software: str

    @property
    def is_restorable(self) -> bool:
        """Whether a broker group can go on from it: nothing is missing before the first entry."""
        return self.first_index == 1 or self.state is not None

    def summary(self) -> dict[str, object]:
        """Return for programs what the dump holds. `bytes` and `files` count what is in it beside the manifest."""
        return {
            "broker_group": self.group,
            "node": self.node,
            "first_index": self.first_index,
            "commit_index": self.commit_index,
            "files": len(self.file_sizes),
            "bytes": sum(self.file_sizes.values()),
            "restorable": self.is_restorable,
        }


def decode_manifest(raw: bytes) -> DumpManifest:
    """Return what a manifest says. Raises: CorruptError (not one, damaged, incomplete), NewerFormatError."""
    return DumpManifest(**manifest_fields(raw))


def manifest_fields(raw: bytes) -> dict[str, Any]:
    """Return the checked fields, for classes that hold more. Raises: as `decode_manifest`."""
    try:
        fields = json.loads(raw)
    except (ValueError, RecursionError) as error:
        raise CorruptError(f"it cannot be read: {error}", 0) from None
    if not isinstance(fields, dict) or fields.get("format") != FORMAT:
        raise CorruptError("it is not the manifest of a LedgerMQ dump", 0)
    version = fields.get("format_version")
    if version != FORMAT_VERSION:
        if isinstance(version, int) and version > FORMAT_VERSION:
            raise NewerFormatError("dump manifest", version, FORMAT_VERSION)
        raise CorruptError(f"it has format version {version!r}", 0)
    try:
        return _checked(fields)
    except (KeyError, TypeError, ValueError, IndexError, OverflowError, AttributeError) as error:
        raise CorruptError(f"it is damaged or incomplete ({type(error).__name__}: {error})", 0) from None


def _checked(fields: dict[str, Any]) -> dict[str, Any]:
    first, commit = fields["first"], fields["commit"]
    segment_size = _number(fields["segment_size"])
    if segment_size <= 0 or segment_size % 8:
        raise ValueError(f"segment_size {segment_size}")
    return {
        "cluster": _name(fields["cluster"]),
        "group": _name(fields["group"]),
        "node": _name(fields["node"]),
        "incarnation": _name(fields["incarnation"]),
        "voters": tuple(_name(voter) for voter in fields["voters"]),
        "segment_size": segment_size,
        "first_index": _number(first["index"]),
        "first_offset": _number(first["offset"]),
        "prev_term": _number(first.get("prev_term", 0)),
        "prev_crc": _number(first.get("prev_crc", 0)),
        "prev_timestamp": _number(first.get("prev_timestamp", 0)),
        "commit_index": _number(commit["index"]),
        "commit_offset": _number(commit["end_offset"]),
        "commit_term": _number(commit["term"]),
        "commit_crc": _number(commit["crc"]),
        "end_offset": _number(fields["end_offset"]),
        "queues_complete": bool(fields["consume_queues"] == "complete"),
        "has_queues": bool(fields["consume_queues"] != "none"),
        "queues": tuple(
            QueueClaim(_name(topic), *map(_number, numbers)) for topic, *numbers in fields["queues"]
        ),
        "state": _state(fields.get("state")),
        "index_points": tuple((_number(index), _number(offset)) for index, offset in fields["index_points"]),
        "checksums": {
            _number(start): (_number(size), _number(crc)) for start, size, crc in fields["checksums"]
        },
        "file_sizes": {str(file["path"]): _number(file["size"]) for file in fields["files"]},
        "log_time_ms": _number(fields["log_time_ms"], _LATEST_MS),
        "software": _name(fields["software"]),
        "group_id": int(fields.get("group_id", "0"), 16),
        "former_group_ids": tuple(int(each, 16) for each in fields.get("former_group_ids", ())),
    }


def _state(fields: dict[str, Any] | None) -> StateClaim | None:
    if fields is None:
        return None
    index, path = _number(fields["index"]), str(fields["path"])
    if path != f"state/{index:020d}":  # a name of our own: it leads nowhere else
        raise ValueError(f"the state's file {path!r}")
    return StateClaim(index, path)


def _name(value: Any) -> str:
    """Return a name that logs, terminals and pages can show. Raises: ValueError."""
    name = str(value)
    if name != safe_text(name):
        raise ValueError(f"the name {safe_text(name, 60)}")
    return name


def _number(value: Any, limit: int = (1 << 63) - 1) -> int:
    """Return an index, offset or time that fits into what it is compared with. Raises: ValueError."""
    number = int(value)
    if not -1 <= number <= limit:
        raise ValueError(f"the number {number}")
    return number
