"""What `make h2spec` makes of h2spec's words, and of a machine without Go."""

from __future__ import annotations

from pathlib import Path

import pytest

from . import h2spec
from .h2spec import SUITES, counts_of, run_suites
from .peers import run


def test_counts_are_those_of_the_last_line() -> None:
    output = "  1. Starting HTTP/2\n\nFinished in 1.4 seconds\n94 tests, 93 passed, 0 skipped, 1 failed\n"
    assert counts_of(output) == (94, 93)
    assert counts_of("Error: dial tcp 127.0.0.1:1: connect: connection refused\n") is None


@pytest.mark.parametrize(
    ("said", "is_good"),
    [
        ("7 tests, 7 passed, 0 skipped, 0 failed", True),
        ("7 tests, 6 passed, 0 skipped, 1 failed", False),
        ("7 tests, 6 passed, 1 skipped, 0 failed", False),
        ("0 tests, 0 passed, 0 skipped, 0 failed", False),
        ("Error: no such host", False),
    ],
)
def test_all_cases_of_all_suites_must_pass(
    said: str, is_good: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    program = tmp_path / "h2spec"
    program.write_text(f"#!/bin/sh\necho '{said}'\n")
    program.chmod(0o700)

    async def test() -> None:
        assert await run_suites(program, "asyncio") is is_good

    run(test)
    printed = capsys.readouterr().out
    assert all(f"asyncio  {suite}" in printed for suite in SUITES)


def test_without_go_one_sentence_says_what_is_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(h2spec, "FOLDER", tmp_path)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert h2spec.main() == 2
    assert capsys.readouterr().err == (
        "h2spec is built by Go, which is not here: install it from https://go.dev/dl/\n"
    )


def test_a_build_that_fails_says_what_it_needs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    go = tmp_path / "go"
    go.write_text("#!/bin/sh\nexit 1\n")
    go.chmod(0o700)
    monkeypatch.setattr(h2spec, "FOLDER", tmp_path)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(h2spec.CannotBuildError, match="see to the network and run it again"):
        h2spec.build()
