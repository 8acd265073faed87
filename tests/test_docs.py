"""The documents name files that exist: a table of claims is worth what its evidence is worth."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from deploy import docs_reference
from ledgermq.broker.metrics import Metrics
from ledgermq.raft.metrics import RaftMetrics

ROOT = Path(__file__).parent.parent


@pytest.mark.parametrize("document", ["docs/seeds.md", "docs/reliability.md"])
def test_every_test_that_a_table_of_claims_names_exists(document: str) -> None:
    named = set(re.findall(r"`((?:\w+/)*test_\w+\.py)`", (ROOT / document).read_text()))
    assert len(named) > 20
    missing = sorted(name for name in named if not (ROOT / "tests" / name.removeprefix("tests/")).exists())
    assert not missing, f"{document} names tests that do not exist: {missing}"


def test_the_promises_stand_word_for_word_where_the_architecture_has_them() -> None:
    durability = (
        (ROOT / "docs/architecture.md")
        .read_text()
        .partition("## Durability, in words\n\n")[2]
        .partition("\n#")[0]
    )
    assert durability.count("\n* ") >= 4
    assert durability.strip() in (ROOT / "docs/reliability.md").read_text()


def test_the_tables_of_mutants_say_how_each_was_found_last() -> None:
    """`make mutants` writes both; one of them edited by hand would be a claim without evidence."""
    rows = re.findall(
        r"^\| `(\w+)` \|.*\| (\d+) \| ([^|]+) \|$", (ROOT / "docs/reliability.md").read_text(), re.M
    )
    known = json.loads((ROOT / "tests/sim/mutant_seeds.json").read_text())
    assert len(known) > 80
    assert {name: (int(seeds), caught) for name, seeds, caught in rows} == {
        name: (found["seeds"], found["caught_by"]) for name, found in known.items()
    }


def anchors(page: Path) -> set[str]:
    """Return the names under which the headings of a page can be linked to."""
    headings = re.findall(r"^#+ (.+)$", page.read_text(), re.M)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def test_links_between_documents_lead_to_files_and_headings() -> None:
    """Or to pages of the site that are made from the code, whose headings `make docs` looks at."""
    made = {ROOT / "docs" / page for page in docs_reference.pages()}
    for document in (*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *(ROOT / "deploy").glob("*.md")):
        for link, anchor in re.findall(r"\]\(([^)#:]*)(?:#([^)]*))?\)", document.read_text()):
            target = (document.parent / link).resolve() if link else document
            assert target.exists() or target in made, f"{document.name} links to {link}"
            found = not anchor or target in made or anchor in anchors(target)
            assert found, f"{document.name} links to {link}#{anchor}"


def test_the_architecture_can_be_read_in_twenty_minutes() -> None:
    """Its limit is 4,000 words: reasons belong into docs/decisions, details into the pages that it names."""
    assert len((ROOT / "docs/architecture.md").read_text().split()) <= 4000


def test_metrics_are_called_in_the_documents_what_they_are_called_where_they_are_read() -> None:
    exposed = set(re.findall(r'"(ledgermq_\w+)"[,:]', (ROOT / "broker/service/probes.py").read_text()))
    for registry in (Metrics().registry, RaftMetrics().registry):
        for family in registry.collect():
            suffixes = {"counter": ["_total"], "histogram": ["", "_bucket"]}.get(family.type, [""])
            exposed.update(family.name + suffix for suffix in suffixes)
    for document in (*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md"), *(ROOT / "deploy").glob("*.md")):
        named = set(
            re.findall(
                r"\bledgermq_(?:raft|disk|event|retention|refusals|commit|connections)\w*",
                document.read_text(),
            )
        )
        assert not named - exposed, f"{document.name} names metrics that are not there: {named - exposed}"


def test_what_an_alert_takes_the_increase_of_is_there_before_its_first_event() -> None:
    alerts = (ROOT / "docs/runbook.md").read_text().partition("## Alerts")[2].partition("\n## ")[0]
    watched = re.findall(r"increase\((\w+)", alerts)
    assert len(watched) > 1
    metrics = Metrics()
    RaftMetrics(metrics.registry).ports.add("raft")  # as a node does before it listens
    shown = metrics.render().decode()
    for name in watched:
        assert re.search(rf"^{name}[ {{]", shown, re.MULTILINE), name
