"""The documents name files that exist: a table of claims is worth what its evidence is worth."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parent.parent


def test_every_test_that_the_seeds_table_names_exists() -> None:
    named = set(re.findall(r"`((?:\w+/)?test_\w+\.py)`", (ROOT / "docs/seeds.md").read_text()))
    assert len(named) > 20
    missing = sorted(name for name in named if not (ROOT / "tests" / name).exists())
    assert not missing, f"docs/seeds.md names tests that do not exist: {missing}"


def test_every_row_of_the_seeds_table_has_a_verdict() -> None:
    rows = [line for line in (ROOT / "docs/seeds.md").read_text().splitlines() if re.match(r"\| A\d", line)]
    assert len(rows) > 85
    for row in rows:
        cells = [cell.strip() for cell in row.strip("|").split("|")]
        assert len(cells) == 5, row
        assert re.search(r"as written|better|different|not yet|by choice", cells[4]), row


def test_links_between_documents_lead_to_files() -> None:
    for document in (*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md"), *(ROOT / "deploy").glob("*.md")):
        for link in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", document.read_text()):
            assert (document.parent / link).exists(), f"{document.name} links to {link}"
