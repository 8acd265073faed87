"""`manifest.json`: the description of one node's dump (D20; broker/backup/dump_files.py writes it).

Pure. Owns: the names and types of its fields. Must not: open files. Its contents are claims: readers of a
dump check them against the files.
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
#: Version of the manifest of a dump that has digests in place of most of the log. An earlier build would call
#: that log lost.
DIGESTS_VERSION: Final = 2
_LATEST_MS: Final = 253_402_300_799_999  # end of the year 9999, the last time that can be written


@dataclass(frozen=True, slots=True, order=True)
class QueueClaim:
    """A queue as the node knows it, with the messages [begin, end). A deleted topic has no queues."""

    topic: str
    topic_id: int  # changes if the topic is deleted and created again
    queue_id: int
    begin: int  # first queue offset
    end: int  # just past the last queue offset


@dataclass(frozen=True, slots=True)
class StateClaim:
    """File with the state after an entry. Consume queue units before it are rebuilt from the log."""

    index: int  # last entry in the state
    path: str  # relative to the dump's folder


@dataclass(frozen=True, slots=True)
class StateDigest:
    """Digest of a node's state after an entry, the same on all nodes that encode states alike."""

    index: int
    version: int  # of the encoding: only equal ones can be compared
    digest: str  # hexadecimal


@dataclass(frozen=True, slots=True, kw_only=True)
class DumpManifest:
    """Contents of a manifest. Offsets are physical."""

    cluster: str
    group: str
    node: str
    incarnation: str
    group_id: int  # tells broker groups of one name apart; 0: not known, or the dump is older than this field
    former_group_ids: tuple[int, ...]  # before it was recovered, or before a master was promoted
    voters: tuple[str, ...]
    segment_size: int
    first_index: int
    first_offset: int
    prev_term: int  # of the entry before the first one; also 0 if the dump is older than this field
    prev_crc: int  # checksum that the first entry chains to; likewise
    prev_timestamp: int  # log time (ms) of the entry before the first one; likewise
    commit_index: int
    commit_offset: int  # just past the entry at `commit_index`
    commit_term: int  # 0: that entry could not be read
    commit_crc: int
    end_offset: int  # just past the last dumped byte
    queues_complete: bool
    has_queues: bool
    queues: tuple[QueueClaim, ...]
    state: StateClaim | None  # None: the log begins at its first entry, or the dump cannot be restored
    index_points: tuple[tuple[int, int], ...]  # (index, offset), about one per 4 MiB
    checksums: dict[int, tuple[int, int]]  # start of a block of raw bytes -> (size, crc32c)
    file_sizes: dict[str, int]  # path relative to the folder -> bytes
    log_time_ms: int
    software: str
    has_digests: bool = False  # it holds digests in place of most of the log
    state_digest: StateDigest | None = None  # None: it was not made, or the dump is older than this field

    @property
    def is_restorable(self) -> bool:
        """True if a broker group can be restored from it: nothing is missing before the first entry."""
        return not self.has_digests and (self.first_index == 1 or self.state is not None)

    def summary(self) -> dict[str, object]:
        """Return a machine-readable summary. `bytes` and `files` count everything but the manifest."""
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
    """Decode a manifest. Raises: CorruptError (not a manifest, damaged, incomplete), NewerFormatError."""
    return DumpManifest(**manifest_fields(raw))


def manifest_fields(raw: bytes) -> dict[str, Any]:
    """Return the checked fields, for classes with more fields. Raises: see `decode_manifest`."""
    try:
        fields = json.loads(raw)
    except (ValueError, RecursionError) as error:
        raise CorruptError(f"it cannot be read: {error}", 0) from None
    if not isinstance(fields, dict) or fields.get("format") != FORMAT:
        raise CorruptError("it is not the manifest of a LedgerMQ dump", 0)
    version = fields.get("format_version")
    if version not in (FORMAT_VERSION, DIGESTS_VERSION):
        if isinstance(version, int) and version > DIGESTS_VERSION:
            raise NewerFormatError("dump manifest", version, DIGESTS_VERSION)
        raise CorruptError(f"it has format version {version!r}", 0)
    try:
        return _checked(fields) | {"has_digests": version == DIGESTS_VERSION}
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
        "state_digest": _state_digest(fields.get("state_digest")),
    }


def _state(fields: dict[str, Any] | None) -> StateClaim | None:
    if fields is None:
        return None
    index, path = _number(fields["index"]), str(fields["path"])
    if path != f"state/{index:020d}":  # a fixed name: it cannot lead elsewhere
        raise ValueError(f"the state's file {path!r}")
    return StateClaim(index, path)


def _state_digest(fields: dict[str, Any] | None) -> StateDigest | None:
    if fields is None:
        return None
    return StateDigest(_number(fields["index"]), _number(fields["version"]), _name(fields["digest"]))


def _name(value: Any) -> str:
    """Return a name that is safe in logs, on terminals and on pages. Raises: ValueError."""
    name = str(value)
    if name != safe_text(name):
        raise ValueError(f"the name {safe_text(name, 60)}")
    return name


def _number(value: Any, limit: int = (1 << 63) - 1) -> int:
    """Return an index, offset or time within range. Raises: ValueError."""
    number = int(value)
    if not -1 <= number <= limit:
        raise ValueError(f"the number {number}")
    return number
