"""Rules between nodes: majorities, first divergence, which blocks are explained by what was found."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from ledgermq.proto.block_digest import BLOCK_SIZE
from ledgermq.proto.dump_manifest import StateDigest
from ledgermq.spark_jobs.dump_folder import find_dumps
from ledgermq.spark_jobs.findings import NO_INDEX, Finding, Kind, Severity, exit_code, merge_repeats
from ledgermq.spark_jobs.group_checks import (
    EntryFacts,
    check_group,
    check_states,
    explain_blocks,
    find_divergences,
    merge_runs,
    odd_ones,
)

from .dump_maker import make_dumps, make_log, take_dump
from .test_dump_folder import edit_manifest


def entry(node: str, index: int, crc: int) -> EntryFacts:
    return EntryFacts(node, index, False, index * 100, 1, 100, crc)


def finding(
    kind: Kind, node: str = "n1", offset: int = 0, end: int = NO_INDEX, severity: Severity = Severity.ERROR
) -> Finding:
    return Finding(node, offset, 1, kind, severity, end_offset=end)


def test_the_majority_decides_who_is_the_odd_one() -> None:
    assert odd_ones({"n1": "a", "n2": "a", "n3": "b"}) == ("a", ["n3"])
    assert odd_ones({"n1": "a", "n2": "a"}) == ("a", [])


def test_without_a_majority_everyone_is_named() -> None:
    assert odd_ones({"n1": "a", "n2": "b"}) == (None, ["n1", "n2"])
    assert odd_ones({"n1": "a", "n2": "b", "n3": "c"}) == (None, ["n1", "n2", "n3"])


def test_the_first_divergence_is_reported_once_and_the_others_are_counted() -> None:
    facts = [
        entry(node, index, 7 + (node == "n2" and index >= 5))
        for index in range(1, 9)
        for node in ("n1", "n2", "n3")
    ]
    (found,) = find_divergences(facts)
    assert (found.node, found.index, found.offset, found.count) == ("n2", 5, 500, 4)


def test_two_odd_nodes_are_two_findings() -> None:
    facts = [entry(f"n{i}", 3, 7) for i in range(1, 4)] + [entry("n4", 3, 8), entry("n5", 3, 9)]
    assert [found.node for found in find_divergences(facts)] == ["n4", "n5"]


def test_states_of_nodes_at_one_index_are_equal_if_they_are_encoded_alike(tmp_path: Path) -> None:
    make_dumps(tmp_path / "dumps")
    dumps = find_dumps(tmp_path / "dumps")

    def check(*states: tuple[int, int, str] | None) -> list[tuple[str, str]]:
        given = [
            replace(dump, state_digest=None if state is None else StateDigest(*state))
            for dump, state in zip(dumps, states, strict=True)
        ]
        return [(each.node, each.detail) for each in check_states(given, [])]

    assert check((60, 7, "aa"), (60, 7, "aa"), (60, 7, "aa")) == []
    assert check((60, 7, "aa"), (61, 7, "bb"), (60, 8, "cc")) == []
    assert check((60, 7, "aa"), None, None) == []
    text = "digest of the state after index 60: n2 says bb, the others say aa"
    assert check((60, 7, "aa"), (60, 7, "bb"), (60, 7, "aa")) == [("n2", text)]
    faulty = finding(Kind.CRC, "n2")
    assert not list(
        check_states([replace(dumps[0], state_digest=StateDigest(1, 1, "a")),
                      replace(dumps[1], state_digest=StateDigest(1, 1, "b"))], [faulty])
    )  # fmt: skip


def test_blocks_that_damage_explains_are_not_reported_again() -> None:
    damage = finding(Kind.CRC, offset=BLOCK_SIZE + 5, end=BLOCK_SIZE + 900)
    assert explain_blocks([1], [damage]) == []
    (found,) = explain_blocks([1, 3, 4], [damage])
    assert (found.offset, found.end_offset, found.count) == (3 * BLOCK_SIZE, 5 * BLOCK_SIZE, 2)


def test_everything_behind_a_divergence_is_explained_by_it() -> None:
    assert explain_blocks([2, 3, 9], [finding(Kind.DIVERGENCE, offset=2 * BLOCK_SIZE + 7)]) == []


def test_runs_of_numbers_are_merged() -> None:
    assert merge_runs([5, 1, 2, 3, 9]) == [(1, 3), (5, 5), (9, 9)]


def test_a_fault_wins_over_an_incomplete_group_and_notes_count_only_when_strict() -> None:
    fault, gap = finding(Kind.CRC), finding(Kind.MISSING_VOTER, severity=Severity.INCOMPLETE)
    note = finding(Kind.NOT_COMMITTED, severity=Severity.INFO)
    assert exit_code([]) == 0 and exit_code([note]) == 0
    assert exit_code([note], strict=True) == 1
    assert exit_code([gap]) == 3 and exit_code([fault, gap]) == 1


def test_repeats_are_counted_not_listed() -> None:
    many = [finding(Kind.CHAIN, offset=offset) for offset in range(30)]
    kept = merge_repeats(many, 10)
    assert len(kept) == 10 and sum(each.count for each in kept) == 30


def test_a_node_with_another_segment_size_is_found(tmp_path: Path) -> None:
    make_dumps(tmp_path / "dumps", make_log(10))
    edit_manifest(tmp_path / "dumps" / "n2", segment_size=1 << 20)
    (found,) = check_group(find_dumps(tmp_path / "dumps"))
    assert (found.node, found.kind) == ("n2", Kind.SEGMENT_SIZE)


def test_equally_advanced_nodes_must_know_the_same_queues(tmp_path: Path) -> None:
    log = make_log(30)
    make_dumps(tmp_path / "dumps", log, nodes=("n1", "n2"))
    log.units.pop(1)
    take_dump(log, tmp_path / "dumps", "n3")
    dumps = find_dumps(tmp_path / "dumps")
    (found,) = check_states(dumps, [])
    assert (found.node, found.kind) == ("n3", Kind.CONSUME_QUEUE)
    assert list(check_states([replace(dumps[0], commit_index=29), *dumps[2:]], [])) == []
