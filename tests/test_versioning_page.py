"""docs/versioning.md says of every format what the code says of it, and names tests that exist."""

from __future__ import annotations

import importlib
import re
import tomllib
from pathlib import Path
from typing import Any, Final

from ledgermq.broker.service import features
from ledgermq.broker.state import codecs

ROOT: Final = Path(__file__).parent.parent
PAGE: Final = (ROOT / "docs/versioning.md").read_text()
PACKAGES: Final = ("proto", "rpc", "raft", "broker", "nameserver", "client", "spark_jobs")
#: A number of a format in the code: a constant, or a field of a JSON document.
CONSTANT: Final = re.compile(r"^(_?(?:[A-Z]+_)*(?:VERSION|FORMAT)): Final = \(?\s*(\d+)", re.MULTILINE)
FIELD: Final = re.compile(r'("format(?:_version)?"): (\d+)')
ROW: Final = re.compile(
    r"^\| .* \| `([\w/]+\.py)` `([\w\"]+)` \| (\d+) \| ([^|]+) \| ([\d.]+) \|$", re.MULTILINE
)
#: Numbers of formats that have other names: of frames, and of what a build can do.
OTHERS: Final = {
    ("raft/transport/checked_frame.py", "CHECKED_FRAMES"),
    ("broker/service/features.py", "SUPPORTED"),
}


def constant(file: str, name: str) -> Any:
    """Return the value of a constant of a module."""
    module = "ledgermq." + file.removesuffix(".py").replace("/", ".")
    return getattr(importlib.import_module(module), name)


def numbers_in_the_code() -> dict[tuple[str, str], int]:
    """Return every version number of a format, by file and name."""
    found = {place: constant(*place) for place in OTHERS}
    for package in PACKAGES:
        for path in (ROOT / package).rglob("*.py"):
            if "_pb2" not in path.name:
                file, text = str(path.relative_to(ROOT)), path.read_text()
                found |= {(file, name): int(number) for name, number in CONSTANT.findall(text)}
                found |= {(file, name): int(number) for name, number in FIELD.findall(text)}
    return found


def test_the_tables_have_every_version_number_of_the_code_and_no_other() -> None:
    rows = {(file, name): int(version) for file, name, version, _, _ in ROW.findall(PAGE)}
    assert len(rows) > 25
    assert rows == numbers_in_the_code()


def test_what_is_read_ends_with_what_is_written() -> None:
    for file, name, version, reads, _ in ROW.findall(PAGE):
        last = (
            constant("broker/checkpoint/store.py", "_REBUILD_VERSION")
            if name == "_RESET_VERSION"
            else version
        )
        assert reads == "\N{EN DASH}" or re.fullmatch(rf"(?:[01] to )?{last}", reads), (
            f"{file} {name} reads {reads}"
        )


def test_no_format_is_of_a_version_that_is_to_come() -> None:
    current = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    for file, name, _, _, since in ROW.findall(PAGE):
        assert tuple(map(int, since.split("."))) <= tuple(map(int, current.split("."))), f"{file} {name}"


def test_the_commands_with_several_versions_are_all_there() -> None:
    table = {
        name: [int(version) for version in versions.split(", ")]
        for name, versions in re.findall(r"^\| `([A-Z_]+)` \| ([\d, ]+) \|$", PAGE, re.MULTILINE)
    }
    known: dict[str, list[int]] = {}
    for (_, version), codec in sorted(codecs._BY_TYPE.items(), key=lambda item: item[0]):
        known.setdefault(re.sub(r"(?<!^)(?=[A-Z])", "_", codec.kind.__name__).upper(), []).append(version)
    assert table == {name: versions for name, versions in known.items() if versions != [1]}


def test_every_feature_level_has_its_constant() -> None:
    table = re.findall(r"^\| (\d) \| .* \| `([\w/.]+)` `(\w+)` \|$", PAGE, re.MULTILINE)
    assert [int(level) for level, _, _ in table] == list(range(2, features.SUPPORTED + 1))
    for level, file, name in table:
        assert constant(file, name) == int(level), name


def test_every_test_that_is_cited_exists() -> None:
    cited = set(re.findall(r"`(tests/[\w/]+\.py)`", PAGE))
    assert len(cited) > 8
    assert not [name for name in sorted(cited) if not (ROOT / name).exists()]
