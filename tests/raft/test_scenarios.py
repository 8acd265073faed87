"""Scenarios: each prints what it expects, and one that cannot be run says where and why.

`REWRITE_SCENARIOS=1 pytest tests/raft/test_scenarios.py` writes the printed facts into the files instead.
Check the difference before you commit it. Refused if `CI=true`.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Mapping
from pathlib import Path

import pytest

from ledgermq.raft.core.machine import RaftCore

from ..sim import mutants_log, mutants_votes  # they register themselves in MUTANTS
from ..sim.mutant_list import MUTANTS
from .scenario_file import Scenario, ScenarioError
from .scenario_runner import FOLDER, ScenarioRunner

FILES = sorted(FOLDER.glob("*.txt"))


@functools.cache
def read(path: Path) -> Scenario:
    return Scenario(f"tests/raft/scenarios/{path.name}", path.read_text())


def is_rewriting(environment: Mapping[str, str]) -> bool:
    """Return whether to replace the expected facts. Raises: RuntimeError (CI: no person would check them)."""
    if environment.get("REWRITE_SCENARIOS", "") in ("", "0"):
        return False
    if environment.get("CI", "").lower() in ("1", "true"):
        raise RuntimeError(
            "REWRITE_SCENARIOS is refused with CI=true: rewrite, look at the difference, commit"
        )
    return True


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_a_scenario_prints_what_it_says(path: Path) -> None:
    scenario = read(path)
    outputs = ScenarioRunner(scenario).run()
    if is_rewriting(os.environ):
        path.write_text(scenario.with_output(outputs))
    elif differences := scenario.differences(outputs):
        pytest.fail(differences, pytrace=False)


def test_there_are_scenarios() -> None:
    assert len(FILES) >= 20


#: Core bugs that no scenario can show: its wire has no strangers, and its draws are fixed.
NOT_SCRIPTED = {"TakesStrangersForMembers", "NumbersReadsFromZero"}
KNOWN_BUGS = {
    mutant.name: mutant.parts.core_class
    for mutant in MUTANTS
    if mutant.parts.core_class.__module__ in (mutants_log.__name__, mutants_votes.__name__)
}


@pytest.mark.parametrize("name", sorted(KNOWN_BUGS.keys() - NOT_SCRIPTED))
def test_a_known_bug_of_the_core_changes_a_scenario(name: str) -> None:
    assert any(is_changed(scenario, KNOWN_BUGS[name]) for scenario in map(read, FILES))


def is_changed(scenario: Scenario, core_class: type[RaftCore]) -> bool:
    try:
        return bool(scenario.differences(ScenarioRunner(scenario, core_class).run()))
    except (AssertionError, ScenarioError):  # a violated invariant, or the script no longer fits
        return True


HEADER = "# It shows nothing.\n"


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("nodes n1\n----\nnothing\n", "x.txt:1: 0 lines of comment at the top"),
        ("# a\n" * 5 + "nodes n1\n----\n", "x.txt:1: 5 lines of comment at the top, wanted 1 to 4"),
        (HEADER, "x.txt:1: no command"),
        (HEADER + "nodes n1\n", "x.txt:2: no ---- below the last command"),
        (HEADER + "----\nnothing\n", "x.txt:2: ---- without a command above it"),
        (HEADER + "nodes n1\n----\n# next\n", "x.txt:4: a comment among the facts"),
        (HEADER + "campaign n1\n----\n", "x.txt:2: campaign n1: the first command must be `nodes`"),
        (HEADER + "nodes n1\n\njump n1\n----\n", "x.txt:4: jump n1: no such command; there are campaign,"),
        (HEADER + "nodes n1 n1\n----\n", "x.txt:2: nodes n1 n1: a member is named twice"),
        (HEADER + "nodes\n----\n", "x.txt:2: nodes: needs at least one node"),
        (HEADER + "nodes n1 speed=3\n----\n", "x.txt:2: nodes n1 speed=3: unknown option speed=3"),
        (HEADER + "nodes n1\nnodes n2\n----\n", "x.txt:3: nodes n2: the nodes are there already"),
        (
            HEADER + "nodes n1\ncampaign n4\n----\n",
            "x.txt:3: campaign n4: no node is called n4; there are n1",
        ),
        (HEADER + "nodes n1\ncampaign\n----\n", "x.txt:3: campaign: wanted a node"),
        (HEADER + "nodes n1\ncrash n1\nread n1 r\n----\n", "x.txt:4: read n1 r: n1 is down"),
        (HEADER + "nodes n1\ntick many\n----\n", "x.txt:3: tick many: many is not a number"),
        (HEADER + "nodes n1 n2\ndeliver n1\n----\n", "x.txt:3: deliver n1: n1 is not a link; write n1->n2"),
        (HEADER + "nodes n1 n2\nlose n1->n2\n----\n", "x.txt:3: lose n1->n2: nothing of that is under way"),
        (HEADER + "nodes n1\nload n1 log=2@1\n----\n", "x.txt:3: load n1 log=2@1: 2@1 is not a log"),
        (HEADER + "nodes n1\nload n1 term=1 log=1@2\n----\n", "the log has an entry of a later term"),
        (HEADER + "nodes n1 n2\ncrash n2\nelect n1\n----\n", "x.txt:4: elect n1: n1 is pre_candidate"),
        (HEADER + "nodes n1\nflush n1\n----\n", "x.txt:3: flush n1: the disk has nothing to do"),
        (HEADER + "nodes n1\nrestart n1\n----\n", "x.txt:3: restart n1: n1 is running"),
        (
            HEADER + "nodes n1\nelect n1\ncompact n1 9\n----\n",
            "x.txt:4: compact n1 9: the log can begin at 2",
        ),
        (HEADER + "nodes n1 n2\ninstall-state n2\n----\n", "no leader offered its state"),
    ],
)
def test_a_scenario_that_cannot_be_run_says_where_and_why(text: str, problem: str) -> None:
    with pytest.raises(ScenarioError) as caught:
        ScenarioRunner(Scenario("x.txt", text)).run()
    assert problem in str(caught.value)


def test_a_failed_scenario_names_its_line_and_shows_the_difference() -> None:
    scenario = Scenario("x.txt", HEADER + "nodes n1\n\nelect n1\n----\nn1 leads term 2\n")
    differences = scenario.differences(ScenarioRunner(scenario).run())
    assert differences.startswith("x.txt:5: nodes n1 / elect n1\n")
    assert "-n1 leads term 2\n+n1 leads term 1" in differences


def test_a_rewrite_replaces_the_facts_and_nothing_else() -> None:
    text = HEADER + "nodes n1\n\n# why\nelect n1\n----\n{}\n\nstate n1\n----\n{}\n\n# the end\n"
    scenario = Scenario("x.txt", text.format("wrong", "wrong"))
    state = "n1 leader term=1 vote=n1 leader=n1 log=1@1 stable=1 commit=1 applied=1"
    rewritten = scenario.with_output(ScenarioRunner(scenario).run())
    assert rewritten == text.format("n1 leads term 1", state)


def test_facts_are_rewritten_by_people_only() -> None:
    assert is_rewriting({"REWRITE_SCENARIOS": "1"})
    assert is_rewriting({"REWRITE_SCENARIOS": "1", "CI": "false"})
    assert not is_rewriting({}) and not is_rewriting({"REWRITE_SCENARIOS": "0", "CI": "true"})
    with pytest.raises(RuntimeError, match="refused with CI=true"):
        is_rewriting({"REWRITE_SCENARIOS": "1", "CI": "true"})
