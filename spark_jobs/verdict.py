"""Result of a verification, as plain values for the console, the report and the JSON.

Owns: merging the findings of all stages, and the words of the verdict. Must not: print, or know Spark.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from .dump_folder import NodeDump
from .findings import Finding, Kind, Severity, exit_code
from .group_checks import agreed_index
from .node_checks import NodeTotals


@dataclass(frozen=True, slots=True)
class NodeVerdict:
    """One node's line in the table."""

    dump: NodeDump
    totals: NodeTotals
    errors: int
    state: str  # consistent (and how far behind) or faulty

    def fields(self) -> dict[str, Any]:
        """Return plain values for JSON and Parquet."""
        dump = self.dump
        return {
            "node": dump.node,
            "incarnation": dump.incarnation,
            "first_index": dump.first_index,
            "commit_index": dump.commit_index,
            "first_offset": dump.first_offset,
            "commit_offset": dump.commit_offset,
            "end_offset": dump.end_offset,
            "errors": self.errors,
            "state": self.state,
            "log_time_ms": dump.log_time_ms,
            "software": dump.software,
        } | asdict(self.totals)


@dataclass(frozen=True, slots=True)
class Making:
    """When, by what and how a check was made, for later readers of its report."""

    at_ms: int = 0  # 0: unknown
    software: str = ""
    command: str = ""


@dataclass(frozen=True, slots=True)
class DumpVerdict:
    """Complete result of a check."""

    folder: str
    cluster: str
    group: str
    voters: tuple[str, ...]
    nodes: tuple[NodeVerdict, ...]
    findings: tuple[Finding, ...]
    agreed_index: int
    exit_code: int
    seconds: float
    scanned_bytes: int
    made: Making = Making()
    # by node with a digest dump: when it read the oldest and the newest of what it digested, ms
    digests_read: Mapping[str, tuple[int, int]] = field(default_factory=dict)

    @property
    def headline(self) -> str:
        """Return the verdict in one sentence."""
        count = len(self.nodes)
        replicas = f"{count} replica{'s' if count != 1 else ''}"
        missing = [finding.node for finding in self.findings if finding.severity is Severity.INCOMPLETE]
        errors = self.errors
        if errors:
            odd = sorted({finding.node for finding in errors})
            places = sum(finding.count for finding in errors)
            return f"{replicas} checked: {places:,} fault{'s' if places != 1 else ''} in {', '.join(odd)}"
        if missing:
            return f"{replicas} identical to index {self.agreed_index:,}; not checked: {', '.join(missing)}"
        if count == 1:
            return f"1 replica, intact to index {self.agreed_index:,}; there is no other to compare it with"
        return f"{replicas} identical to index {self.agreed_index:,}"

    @property
    def errors(self) -> list[Finding]:
        return [finding for finding in self.findings if finding.severity is Severity.ERROR]

    def fields(self) -> dict[str, Any]:
        """Return the whole verdict as plain values, for `report.json`."""
        return {
            "format": "ledgermq-check",
            "format_version": 1,
            "verdict": self.headline,
            "exit_code": self.exit_code,
            "cluster": self.cluster,
            "group": self.group,
            "voters": list(self.voters),
            "agreed_index": self.agreed_index,
            "folder": self.folder,
            "seconds": round(self.seconds, 3),
            "scanned_bytes": self.scanned_bytes,
            "made": asdict(self.made),
            "digests_read_ms": {node: list(times) for node, times in self.digests_read.items()},
            "nodes": [node.fields() for node in self.nodes],
            "findings": [asdict(finding) | {"line": finding.line()} for finding in self.findings],
        }


def make_verdict(
    folder: str,
    dumps: Sequence[NodeDump],
    totals: dict[str, NodeTotals],
    findings: Sequence[Finding],
    *,
    strict: bool,
    seconds: float,
    made: Making = Making(),
    digests_read: Mapping[str, tuple[int, int]] | None = None,
) -> DumpVerdict:
    """Build the verdict. Errors come first, in log order."""
    order = {Severity.ERROR: 0, Severity.INCOMPLETE: 1, Severity.INFO: 2}
    ranked = tuple(sorted(findings, key=lambda f: (order[f.severity], f.offset, f)))
    errors = [f for f in ranked if f.severity is Severity.ERROR]
    counts = Counter(f.node for f in errors)
    furthest = max((dump.commit_index for dump in dumps), default=0)
    nodes = tuple(
        NodeVerdict(dump, totals[dump.node], counts[dump.node], _state(dump, errors, furthest))
        for dump in dumps
    )
    return DumpVerdict(
        folder=folder,
        cluster=dumps[0].cluster,
        group=dumps[0].group,
        voters=tuple(sorted({voter for dump in dumps for voter in dump.voters})),
        nodes=nodes,
        findings=ranked,
        agreed_index=agreed_index(dumps),
        exit_code=exit_code(ranked, strict=strict),
        seconds=seconds,
        scanned_bytes=sum(segment.size for dump in dumps for segment in dump.segments),
        made=made,
        digests_read=digests_read or {},
    )


def _state(dump: NodeDump, errors: Sequence[Finding], furthest: int) -> str:
    own = [finding for finding in errors if dump.node in finding.node.split(" and ")]
    if own:
        return "copy changed" if all(f.cause is Kind.CHANGED_DUMP for f in own) else "faulty"
    behind = furthest - dump.commit_index
    return f"consistent, {behind:,} behind" if behind else "consistent"
