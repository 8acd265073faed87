"""Findings of the checks: their kinds, their severities, and the line that reports each.

Owns: the closed sets of kinds and severities, their meaning for the exit code, and the advice for each: the
only table of advice (`ADVICE`). The report page prints it and the runbook repeats it word for word (a test
compares them).
Must not: know how anything is found.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any, Final


class Severity(StrEnum):
    ERROR = "error"  # a replica is wrong, or was changed: exit code 1
    INCOMPLETE = "incomplete"  # a part of the broker group was not available for the check: exit code 3
    INFO = "info"  # legal, but worth knowing: exit code 0 unless --strict


class Kind(StrEnum):
    """Kind of a finding. The text is what people and programs read."""

    CRC = "crc"  # the stored checksum does not match the bytes
    CHAIN = "chain"  # prev_crc is not the checksum of the entry before
    GAP = "gap"  # indexes jump
    TERM = "term"  # the term decreases
    TIME = "time"  # log time decreases
    OFFSET = "offset"  # an intact entry is at the wrong place
    FILLER = "filler"  # the end of a segment does not follow from the entry before it
    SECTION = "section"  # sections or records do not match their entry
    QUEUE_OFFSET = "queue-offset"  # a queue's messages are not numbered without gaps
    CONSUME_QUEUE = "consume-queue"  # a consume queue differs from the log
    STATE = "state"  # nodes with equal logs made different states of them
    MISSING_RANGE = "missing-range"  # bytes without a readable entry, or missing bytes
    MISSING_SEGMENT = "missing-segment"  # a whole segment file is missing
    DIVERGENCE = "divergence"  # intact entries at one index differ between replicas
    MANIFEST = "manifest"  # the manifest contradicts the files, or another node's manifest
    SEGMENT_SIZE = "segment-size"  # nodes of one broker group have different segment sizes
    CHANGED_DUMP = "changed-dump"  # bytes of the dump changed after it was taken
    MISSING_VOTER = "missing-voter"  # a configured voter has no dump here
    DIGEST = "digest"  # a node's digest of a block is not that of its bytes
    NOT_COMPARED = "not-compared"  # digests differ, and the bytes that tell more could not be fetched
    DUPLICATE_ID = "duplicate-id"  # several messages of a topic have one message id (asked for)
    NOT_COMMITTED = "not-committed"  # entries above the node's commit point


_REPAIRS: Final = (
    "The node repairs its log from the others when its scrubber or a reader meets the place; to have it "
    "done now, stop the node, delete its folder entryindex and start it. Check its disk and memory when it "
    "happens again."
)
_BUG: Final = "No broken disk does this by itself: keep the dumps and report it."
ADVICE: Final = {
    Kind.CRC: f"Bytes changed on the node's disk. {_REPAIRS}",
    Kind.CHAIN: f"An entry does not follow from the one before it. {_REPAIRS}",
    Kind.GAP: f"Entries are missing in between. {_REPAIRS}",
    Kind.TERM: _BUG,
    Kind.TIME: _BUG,
    Kind.OFFSET: f"Entries were moved inside the file. {_REPAIRS}",
    Kind.FILLER: f"The end of a segment was changed. {_REPAIRS}",
    Kind.SECTION: _BUG,
    Kind.QUEUE_OFFSET: f"Messages of a queue are missing or stored twice. {_BUG}",
    Kind.CONSUME_QUEUE: (
        "The log is the truth: stop the node, delete its folder consumequeue, start it: it makes the queues "
        "again."
    ),
    Kind.STATE: (
        "Nodes made different states of one log: a defect of LedgerMQ, or faulty memory. Keep the dumps and "
        "report it; then start the node that the majority contradicts with ledgermq broker --rejoin."
    ),
    Kind.MISSING_RANGE: f"Part of the log is gone. {_REPAIRS}",
    Kind.MISSING_SEGMENT: f"A file is gone. If it is in the node's folder, take the dump again. {_REPAIRS}",
    Kind.DIVERGENCE: (
        "Two replicas hold different intact entries at one index: a defect of LedgerMQ. Keep the dumps and "
        "report it; then start the node that the majority contradicts with ledgermq broker --rejoin."
    ),
    Kind.MANIFEST: "The dump contradicts itself. Take it again: ledgermq dump.",
    Kind.SEGMENT_SIZE: (
        "All nodes of a broker group are made with one segment size. Start the odd one with ledgermq broker "
        "--rejoin."
    ),
    Kind.CHANGED_DUMP: (
        "This copy was changed after it was dumped: the node is innocent. Take the dump again: ledgermq dump."
    ),
    Kind.MISSING_VOTER: "Take a dump of that node as well, into the same folder.",
    Kind.DIGEST: (
        "The node made a wrong digest, so its memory may be faulty: test it. Delete the node's folder "
        "blockdigest, then take the digests again: ledgermq dump --digests."
    ),
    Kind.NOT_COMPARED: (
        "Start that node, or name a nameserver that knows it, then take and check digests in one go: "
        "ledgermq check --live NAMESERVER."
    ),
    Kind.DUPLICATE_ID: (
        "A producer sent the message again after the time for which the brokers remember it (two minutes, or "
        "an hour of one producer), or gave two messages one id: consumers get both."
    ),
    Kind.NOT_COMMITTED: "Nothing: entries above the commit point may still be replaced.",
}

NO_INDEX: Final = -1


@dataclass(frozen=True, slots=True, order=True)
class Finding:
    """One deviation. `index`, `offset` and `end_offset` are -1 if they do not apply."""

    node: str
    offset: int
    index: int
    kind: Kind
    severity: Severity
    detail: str = ""
    end_offset: int = NO_INDEX
    count: int = 1  # number of places of this kind that it stands for
    path: str = ""  # file relative to the dump folder
    in_copy: bool = False  # the dump was changed there after it was taken, so it says nothing about the node

    @classmethod
    def from_fields(cls, fields: dict[str, Any]) -> Finding:
        """Build it from decoded JSON."""
        return cls(**fields | {"kind": Kind(fields["kind"]), "severity": Severity(fields["severity"])})

    @property
    def cause(self) -> Kind:
        """Kind whose advice helps. For a changed copy that is another copy, whatever the change broke."""
        return Kind.CHANGED_DUMP if self.in_copy else self.kind

    def line(self) -> str:
        """Return the line that reports it: `FOUND n1 index 1,044 offset 8,388,608 (crc)`."""
        words = ["FOUND" if self.severity is Severity.ERROR else "NOTE", self.node]
        if self.index >= 0:
            words.append(f"index {self.index:,}")
        if self.offset >= 0:
            words.append(f"offset {self.offset:,}")
        words.append(f"({self.kind})")
        return " ".join(words)


def merge_repeats(findings: Iterable[Finding], limit: int) -> list[Finding]:
    """Keep the first `limit` findings per node and kind. The last one kept counts the rest."""
    kept: list[Finding] = []
    seen: dict[tuple[str, Kind, bool], list[int]] = {}
    for finding in sorted(findings):
        places = seen.setdefault((finding.node, finding.kind, finding.in_copy), [])
        if len(places) < limit:
            places.append(len(kept))
            kept.append(finding)
        else:
            last = kept[places[-1]]
            kept[places[-1]] = replace(last, count=last.count + finding.count)
    return kept


def advice_for(findings: Iterable[Finding]) -> list[tuple[Kind, str]]:
    """Return the advice for findings, once per cause."""
    causes = {finding.cause for finding in findings}
    return [(kind, ADVICE[kind]) for kind in Kind if kind in causes]


def exit_code(findings: Iterable[Finding], *, strict: bool = False) -> int:
    """Return 0 consistent, 1 inconsistent, 3 incomplete. 1 wins over 3, because a proven fault is worse."""
    severities = {finding.severity for finding in findings}
    if Severity.ERROR in severities or (strict and Severity.INFO in severities):
        return 1
    return 3 if Severity.INCOMPLETE in severities else 0
