"""`python -m ledgermq.proto.generate`: the committed code is what the .proto files give."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

import pytest

from ledgermq.proto import generate


@pytest.fixture
def copy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with one .proto file and its generated code, in the place of the real one."""
    for path in generate.HERE.glob("route*"):
        shutil.copy(path, tmp_path)
    monkeypatch.setattr(generate, "HERE", tmp_path)
    return tmp_path


def run(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> int:
    monkeypatch.setattr(sys, "argv", ["generate", *arguments])
    return generate.main()


def test_the_committed_code_is_up_to_date(monkeypatch: pytest.MonkeyPatch) -> None:
    assert run(monkeypatch, "--check") == 0


def test_a_file_without_a_service_has_no_grpc_code(copy: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    out.mkdir()
    assert [path.name for path in generate.generate(out)] == ["route_pb2.py", "route_pb2.pyi"]


@pytest.mark.parametrize("change", ["edited", "missing", "left over"])
def test_stale_code_is_named_and_generating_heals_it(
    copy: Path, change: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    stale = copy / "route_pb2.py"
    if change == "edited":
        stale.write_text("# edited by hand\n")
    elif change == "missing":
        stale.unlink()
    else:
        stale = copy / "gone_pb2.pyi"
        stale.write_text("# of a .proto file that was deleted\n")
    before = sorted(path.name for path in copy.iterdir())
    assert run(monkeypatch, "--check") == 1
    assert capsys.readouterr().err == f"generated code is stale: {stale.name}. Run: make proto\n"
    assert sorted(path.name for path in copy.iterdir()) == before
    assert run(monkeypatch) == 0
    assert run(monkeypatch, "--check") == 0


def test_a_file_that_protoc_refuses_ends_with_its_message(
    copy: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (copy / "broken.proto").write_text("message")
    with pytest.raises(SystemExit, match="protoc failed"):
        run(monkeypatch, "--check")


def test_without_the_compiler_the_next_command_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(generate, "COMPILER", tmp_path / "python")
    with pytest.raises(SystemExit, match="Run: make setup"):
        run(monkeypatch, "--check")
