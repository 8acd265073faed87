"""Citations in code, tests and documents lead to something in this repository.

What counts as a citation, and where it leads:

* `D8`: a page `docs/decisions/D08-....md`. `P15`: a heading of docs/persistence-rules.md; "P99 MS" is a
  percentile. `A3.5`, `A3`: a row, or a part, of docs/seeds.md. These three everywhere.
* `E7`, `C16`, `K3`, `B5.1`, `R2`, `V1`, `M5`: a row of the tables of bugs in docs/reliability.md; `I6`: a row
  of its invariants. In that page, in `tests/sim`, and in names of tests of the core ("test_e7_...") only:
  elsewhere such words are codes of linters. In docs/seeds.md `E7` is a row of that page.
* a page: `docs/<page>.md` must exist, and what follows in the form `docs/<page>.md, Words` begins with one of
  its headings. Any other name of a `.md` file in a comment or docstring is a path from the root.
* the sign of a section (U+00A7) is not used: it would name a section of a page that is not here.

"5.4.2" and "thesis 6.4" are sections of the Raft paper and of Ongaro's thesis: no citations in this sense.
"""

from __future__ import annotations

import io
import re
import tokenize
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
CODE = (
    "bench",
    "broker",
    "client",
    "deploy",
    "examples",
    "nameserver",
    "proto",
    "raft",
    "spark_jobs",
    "tests",
)
SUFFIXES = {".py", ".proto", ".sh", ".toml", ".yml", ".yaml", ".md"}
DECISIONS = ROOT / "docs/decisions"
RULES = ROOT / "docs/persistence-rules.md"
HEADINGS = ["Context", "Decision", "Consequences", "What would change it"]

_NUMBER = re.compile(r"\b(?:D[1-9]\d*|P[1-9]\d*(?!\d*\.?\d* MS)|A[1-9](?:\.\d+)?)\b")
_BUG = re.compile(r"\b[ECKBRVMI]\d{1,2}(?:\.\d)?\b")
_TEST_OF_A_BUG = re.compile(r"^def test_([ec]\d+)_", re.M)
_PAGE = re.compile(r"\bdocs/[\w/.-]+\.md\b(?:, ([A-Z][^.;:)\"]*))?")
_ANY_PAGE = re.compile(r"[\w/.-]*\w\.md\b")
_SELF = Path(__file__).name


@cache
def files() -> tuple[Path, ...]:
    """Return what may cite: sources, tests, documents and the files at the root that people edit."""
    found = [
        path for folder in (*CODE, "docs") for path in (ROOT / folder).rglob("*") if path.suffix in SUFFIXES
    ]
    found += [path for path in ROOT.iterdir() if path.suffix in SUFFIXES or path.name == "Makefile"]
    found.append(ROOT / ".ci/run")
    generated = re.compile(r"_pb2|/results/|/plots/|/\.(?!ci/)")
    return tuple(
        sorted(path for path in found if path.name != _SELF and not generated.search(f"/{name(path)}"))
    )


def name(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


@cache
def known() -> frozenset[str]:
    """Return the numbers that lead somewhere from everywhere."""
    decisions = {f"D{int(page.name[1:3])}" for page in DECISIONS.glob("D??-*.md")}
    rules = set(re.findall(r"^## (P\d+)$", RULES.read_text(), re.M))
    seeds = (ROOT / "docs/seeds.md").read_text()
    rows = set(re.findall(r"^\| (A\d\.\d+) \|", seeds, re.M)) | set(re.findall(r"^## (A\d) ", seeds, re.M))
    return frozenset(decisions | rules | rows)


@cache
def known_bugs() -> frozenset[str]:
    """Return the rows of the tables in docs/reliability.md; a range like that of M stands for all in it."""
    page = (ROOT / "docs/reliability.md").read_text()
    rows = re.findall(r"^\| `\w+` \| ([^|]+) \|", page, re.M)  # tables of mutants: | name | row | bug |
    rows += re.findall(
        r"^\| ([A-Z]\d[^|]*|B [^|]*) \|", page, re.M
    )  # rows without a mutant, invariants, checks
    found = {bug for row in rows for bug in _BUG.findall(row)}
    for kind, first, last in re.findall(r"\b([A-Z])(\d+)\u2013\1(\d+)\b", " ".join(rows)):
        found |= {f"{kind}{number}" for number in range(int(first), int(last) + 1)}
    return frozenset(found)


def cited_bugs(path: Path, text: str) -> set[str]:
    if name(path) == "docs/reliability.md" or name(path).startswith("tests/sim/"):
        return set(_BUG.findall(text))
    return (
        {bug.upper() for bug in _TEST_OF_A_BUG.findall(text)} if "tests/raft/core/" in name(path) else set()
    )


def prose(path: Path) -> Iterator[str]:
    """Yield comments and docstrings."""
    text = path.read_text()
    if path.suffix != ".py":
        yield from re.findall(r"(?:#|//).*", text)
        return
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type == tokenize.COMMENT or (
            token.type == tokenize.STRING and token.string.startswith(('"""', 'r"""'))
        ):
            yield token.string


def headings(page: Path) -> list[str]:
    return re.findall(r"^#+ (.+)$", page.read_text(), re.M)


def test_there_is_much_to_check() -> None:
    """A pattern that finds nothing would let every other test here pass."""
    cited = [found for path in files() for found in _NUMBER.findall(path.read_text())]
    bugs = [found for path in files() for found in cited_bugs(path, path.read_text())]
    assert len(files()) > 600
    assert len({each for each in cited if each[0] == "D"}) >= 30
    assert len({each for each in cited if each[0] == "P"}) == 19
    assert len(cited) > 400 and len(bugs) > 200


def test_every_decision_rule_and_row_that_is_cited_is_there() -> None:
    lost = {
        f"{name(path)}: {each}"
        for path in files()
        for each in _NUMBER.findall(path.read_text())
        if each not in known()
    }
    assert not lost, sorted(lost)


def test_every_row_of_the_list_of_bugs_that_is_cited_is_there() -> None:
    lost = {
        f"{name(path)}: {each}"
        for path in files()
        for each in cited_bugs(path, path.read_text())
        if each not in known_bugs()
    }
    assert not lost, sorted(lost)


def test_a_bug_of_the_seeds_page_is_a_row_of_it() -> None:
    page = (ROOT / "docs/seeds.md").read_text()
    rows = set(re.findall(r"^\| (E\d+) \|", page, re.M))
    assert set(re.findall(r"\bE\d+\b", page)) <= rows


def test_every_page_that_is_named_is_there_with_the_heading_that_is_named() -> None:
    for path in files():
        for found in _PAGE.finditer(path.read_text()):
            page, words = ROOT / found[0].partition(",")[0], found[1]
            assert page.exists(), f"{name(path)} names {found[0]}"
            # "docs/seeds.md, A3.5": a row, which is checked above
            fits = not words or (words[:1] == "A" and words[1:2].isdigit())
            fits = fits or any(words.startswith(heading) for heading in headings(page))
            assert fits, f"{name(path)} names {found[0]!r}: there is no such heading"


def test_comments_name_pages_by_their_path_in_the_repository() -> None:
    for path in files():
        if path.suffix == ".md" or ".md" not in path.read_text():
            continue  # links between documents: test_docs.py
        for text in prose(path):
            for page in _ANY_PAGE.findall(text):
                assert (ROOT / page).exists(), f"{name(path)} names {page}, which is not in the repository"


def test_nothing_names_a_section_of_a_page_by_its_sign() -> None:
    assert not [name(path) for path in files() if "\u00a7" in path.read_text()]


# --- the pages that citations lead to ---------------------------------------------------------------------
@pytest.mark.parametrize("page", sorted(DECISIONS.glob("D*.md")), ids=lambda page: page.name[:3])
def test_a_decision_has_its_title_and_its_four_headings(page: Path) -> None:
    assert re.fullmatch(r"D\d\d(-[a-z0-9]+)+\.md", page.name)
    text = page.read_text()
    assert text.startswith(f"# D{int(page.name[1:3])}: ")
    assert re.findall(r"^## (.+)$", text, re.M) == HEADINGS
    assert all(len(part.split()) > 8 for part in re.split(r"^## .+$", text, flags=re.M)[1:]), (
        "each says something"
    )
    assert 120 <= len(text.split()) <= 350


def test_the_index_of_decisions_has_each_once_with_its_title() -> None:
    listed = re.findall(r"^\* \[(D\d+)\]\((\S+)\): (.+)$", (DECISIONS / "README.md").read_text(), re.M)
    pages = sorted(DECISIONS.glob("D*.md"))
    titles = [page.read_text().partition("\n")[0].removeprefix("# ") for page in pages]
    assert [(file, f"{number}: {title}") for number, file, title in listed] == [
        (page.name, title) for page, title in zip(pages, titles, strict=True)
    ]


def test_every_rule_has_a_reason_a_place_and_a_test() -> None:
    parts = re.split(r"^## (P\d+)$", RULES.read_text(), flags=re.M)[1:]
    assert parts[::2] == [f"P{number}" for number in range(1, 20)]
    for rule, text in zip(parts[::2], parts[1::2], strict=True):
        named = dict(re.findall(r"^\*(Rule|Why|Code|Tests)\.\* (.+?)(?=\n\n|\Z)", text, re.M | re.S))
        assert set(named) == {"Rule", "Why", "Code", "Tests"}, rule
        for part, folder in (("Code", ROOT), ("Tests", ROOT / "tests")):
            paths = re.findall(r"`([\w/]+\.py)`", named[part])
            assert paths, f"{rule} names no file"
            assert not [path for path in paths if not (folder / path).exists()], f"{rule}: {paths}"


PAGES_WITH_PATHS = sorted(
    page
    for page in (ROOT / "docs").rglob("*.md")
    if page.name not in ("seeds.md", "reliability.md", "performance.md")
)


@pytest.mark.parametrize("page", PAGES_WITH_PATHS, ids=name)
def test_files_that_a_page_names_by_their_path_exist(page: Path) -> None:
    for path in re.findall(r"`((?:[\w.]+/)+\w+\.(?:py|proto))`", page.read_text()):
        assert (ROOT / path).exists() or (ROOT / "tests" / path).exists(), f"{page.name} names {path}"


def test_walks_name_files_and_functions_that_are_there() -> None:
    """A bare file name is in the folder of the file before it; a name behind a file is defined or served
    there.
    """
    page = (ROOT / "docs/architecture.md").read_text()
    walks = page.partition("## Walks through the code")[2].partition("\n## ")[0]
    checked = 0
    for walk in re.split(r"^\*\*", walks, flags=re.M)[1:]:
        file = ROOT / "?"
        for word in re.findall(r"`([\w/.]+)`", walk):
            if word.endswith(".py"):
                file = ROOT / word if "/" in word else file.parent / word
                assert file.exists(), f"a walk names {word}: there is no {name(file)}"
            else:
                for part in word.split("."):  # of `Sends.send` both
                    defined = re.search(rf"\b(?:def|class) {part}\b|\"{part}\"", file.read_text())
                    assert defined, f"{word} is not in {name(file)}"
            checked += 1
    assert checked > 50
