"""Comparison of nodes: missing ones, different segment sizes, and deviating entries.

Owns: the rules for what must be equal. Pure; runs on the driver over a handful of rows.
Rule: an entry is compared between the nodes whose commit point is at or above it. Those must agree; a
difference is an error. Entries above a node's own commit point may be replaced legally and are not compared.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from ledgermq.proto.block_digest import BLOCK_SIZE

from .dump_folder import NodeDump
from .findings import NO_INDEX, Finding, Kind, Severity

#: Kinds caused by damaged bytes, where it matters whether the copy was changed.
_BYTE_FAULTS: Final = frozenset({Kind.CRC, Kind.MISSING_RANGE, Kind.FILLER})


@dataclass(frozen=True, slots=True)
class EntryFacts:
    """Entry of one node at one index, for the comparison."""

    node: str
    index: int
    filler: bool
    offset: int
    term: int
    size: int
    crc: int


def check_group(dumps: Sequence[NodeDump]) -> Iterator[Finding]:
    """Compare the manifests' claims about the broker group. Its voters are those that any node knows."""
    present = {dump.node for dump in dumps}
    voters = sorted({voter for dump in dumps for voter in dump.voters})
    for voter in voters:
        if voter not in present:
            text = f"{voter} is a voter of broker group {dumps[0].group}, but there is no dump of it here"
            yield Finding(voter, NO_INDEX, NO_INDEX, Kind.MISSING_VOTER, Severity.INCOMPLETE, text)
    named = {dump.node: ", ".join(dump.voters) for dump in dumps}
    yield from _odd_manifests(named, Kind.MANIFEST, "voters")
    sizes = {dump.node: f"{dump.segment_size:,} bytes" for dump in dumps}
    yield from _odd_manifests(sizes, Kind.SEGMENT_SIZE, "segment size")


def check_states(dumps: Sequence[NodeDump], findings: Sequence[Finding]) -> Iterator[Finding]:
    """Compare queues and states of nodes. State is a function of the log, so nodes at the same index agree.

    Nodes with errors are left out: their state may follow from what is already reported.
    """
    faulty = {name for f in findings if f.severity is Severity.ERROR for name in f.node.split(" and ")}
    by_commit: dict[int, list[NodeDump]] = defaultdict(list)
    for dump in dumps:
        if dump.has_queues and dump.queues_complete and dump.node not in faulty:
            by_commit[dump.commit_index].append(dump)
    for equal in by_commit.values():
        claims = {dump.node: _queues_text(dump) for dump in equal}
        yield from _odd_manifests(claims, Kind.CONSUME_QUEUE, "queues and their ends")
    by_index: dict[tuple[int, int], dict[str, str]] = defaultdict(dict)
    for dump in dumps:
        if dump.state_digest is not None and dump.node not in faulty:
            made = dump.state_digest
            by_index[made.version, made.index][dump.node] = made.digest
    for (_, index), digests in sorted(by_index.items()):
        yield from _odd_manifests(digests, Kind.STATE, f"digest of the state after index {index:,}")


def _queues_text(dump: NodeDump) -> str:
    return ", ".join(
        f"{queue.topic}@{queue.topic_id}/{queue.queue_id}:{queue.end}" for queue in sorted(dump.queues)
    )


def _odd_manifests(values: Mapping[str, str], kind: Kind, what: str) -> Iterator[Finding]:
    usual, odd = odd_ones(values)
    for node in odd:
        others = f"the others say {_short(usual)}" if usual is not None else "the nodes do not agree"
        text = f"{what}: {node} says {_short(values[node])}, {others}"
        yield Finding(node, NO_INDEX, NO_INDEX, kind, Severity.ERROR, text)


def _short(text: str) -> str:
    return f"{text[:200]}..." if len(text) > 200 else text or "nothing"


def odd_ones(values: Mapping[str, str]) -> tuple[str | None, list[str]]:
    """Return the majority's value and the nodes with another one; without a majority (None, all nodes)."""
    if len(set(values.values())) <= 1:
        return next(iter(values.values()), None), []
    usual, count = Counter(values.values()).most_common(1)[0]
    if count * 2 <= len(values):
        return None, sorted(values)
    return usual, sorted(node for node, value in values.items() if value != usual)


def find_divergences(entries: Iterable[EntryFacts]) -> list[Finding]:
    """Return, for each set of odd nodes, the first index at which intact, committed entries differ.

    `count` of a finding is the number of differing indexes among those given.
    """
    by_index: dict[tuple[int, bool], list[EntryFacts]] = defaultdict(list)
    for facts in entries:
        by_index[facts.index, facts.filler].append(facts)
    firsts: dict[str, tuple[EntryFacts, str]] = {}
    counts: Counter[str] = Counter()
    for key in sorted(by_index):
        held = by_index[key]
        values = {facts.node: _text(facts) for facts in held}
        usual, odd = odd_ones(values)
        if not odd:
            continue
        names = [" and ".join(odd)] if usual is None else odd
        for name in names:
            counts[name] += 1
            if name not in firsts:
                facts = next(each for each in held if each.node in odd and name.startswith(each.node))
                others = f"the majority has {usual}" if usual else "no majority tells who is right"
                own = values[facts.node] if usual else "; ".join(f"{n}: {values[n]}" for n in odd)
                firsts[name] = (facts, f"{own}; {others}")
    return [
        Finding(
            name, facts.offset, facts.index, Kind.DIVERGENCE, Severity.ERROR, text, facts.offset + facts.size,
            counts[name],
        )
        for name, (facts, text) in firsts.items()
    ]  # fmt: skip


def _text(facts: EntryFacts) -> str:
    kind = "a filler" if facts.filler else "an entry"
    return (
        f"{kind} of term {facts.term:,}, {facts.size:,} bytes at {facts.offset:,}, checksum {facts.crc:08x}"
    )


def explain_blocks(blocks: Sequence[int], findings: Sequence[Finding]) -> list[Finding]:
    """Return a finding for differing blocks that no other finding explains, with neighbours merged.

    Everything after a divergence or a shift may differ. Damage explains the blocks that it touches.
    """
    onward = [
        f.offset for f in findings if f.kind in (Kind.DIVERGENCE, Kind.OFFSET, Kind.GAP) and f.offset >= 0
    ]
    first_onward = min(onward, default=None)
    spans = [(f.offset, max(f.end_offset, f.offset + 1)) for f in findings if f.offset >= 0]
    unexplained = []
    for block in sorted(blocks):
        lo, hi = block * BLOCK_SIZE, (block + 1) * BLOCK_SIZE
        if first_onward is not None and hi > first_onward:
            continue
        if not any(start < hi and lo < end for start, end in spans):
            unexplained.append(block)
    return [
        Finding(
            "?", first * BLOCK_SIZE, NO_INDEX, Kind.DIVERGENCE, Severity.ERROR,
            f"the replicas' digests differ in {last - first + 1:,} blocks of 4 MiB",
            (last + 1) * BLOCK_SIZE, last - first + 1,
        )
        for first, last in merge_runs(unexplained)
    ]  # fmt: skip


def merge_runs(numbers: Sequence[int]) -> list[tuple[int, int]]:
    """Return runs of consecutive numbers as (first, last)."""
    runs: list[tuple[int, int]] = []
    for number in sorted(set(numbers)):
        if runs and number == runs[-1][1] + 1:
            runs[-1] = (runs[-1][0], number)
        else:
            runs.append((number, number))
    return runs


def agreed_index(dumps: Sequence[NodeDump]) -> int:
    """Return the highest index that every node here has committed."""
    return min((dump.commit_index for dump in dumps), default=0)


def attribute_changes(findings: Sequence[Finding]) -> list[Finding]:
    """Merge `changed-dump` into the finding that shows the change, so that one flipped bit is one finding."""
    changed = [finding for finding in findings if finding.kind is Kind.CHANGED_DUMP]
    kept, shown = [], set()
    for finding in findings:
        if finding.kind is Kind.CHANGED_DUMP:
            continue
        causes = {change for change in changed if _overlap(change, finding)}
        shown |= causes
        if finding.kind in _BYTE_FAULTS:
            whose = (
                "; this copy was changed after it was dumped" if causes else "; it was so on the node's disk"
            )
            finding = replace(finding, detail=finding.detail + whose)
        finding = replace(finding, in_copy=bool(causes))
        kept.append(finding)
    return sorted(kept + [change for change in changed if change not in shown])


def _overlap(change: Finding, other: Finding) -> bool:
    end = max(other.end_offset, other.offset + 1)
    return other.node == change.node and change.offset < end and 0 <= other.offset < change.end_offset
