"""Files of the data folder on a real disk: access by other users."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from ledgermq.raft.disk import files
from ledgermq.raft.disk.files import RealFileSystem, make_private


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_what_is_made_is_for_its_owner_only(tmp_path: Path) -> None:
    real, before = RealFileSystem(), os.umask(0)
    try:
        real.make_directory(tmp_path / "data" / "n1" / "commitlog")
        real.open(tmp_path / "data" / "n1" / "commitlog" / "0", create=True).close()
        real.lock(tmp_path / "data" / "n1" / "lock").release()
    finally:
        os.umask(before)
    made = [tmp_path / "data" / "n1" / name for name in ("", "commitlog", "commitlog/0", "lock")]
    assert [mode(path) for path in made] == [0o700, 0o700, 0o600, 0o600]
    assert mode(tmp_path / "data") == 0o700


def test_a_folder_of_an_earlier_version_is_taken_from_others_and_keeps_its_other_bits(tmp_path: Path) -> None:
    tmp_path.chmod(0o2755)
    make_private(tmp_path)
    assert mode(tmp_path) == 0o2700
    make_private(tmp_path / "not there yet")


def test_a_folder_of_somebody_else_is_named_with_the_command_for_its_owner(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refuse(self: Path, mode: int) -> None:
        raise PermissionError(1, "Operation not permitted")

    tmp_path.chmod(0o750)
    monkeypatch.setattr(Path, "chmod", refuse)
    make_private(tmp_path)
    assert f"chmod go= {tmp_path}" in caplog.text and files.__name__ in caplog.records[0].name


def test_what_is_not_ours_keeps_its_rights(tmp_path: Path) -> None:
    (tmp_path / "letters").touch(0o644)
    tmp_path.chmod(0o755)
    make_private(tmp_path)
    assert mode(tmp_path) == 0o755
    (tmp_path / "letters").chmod(0o644)
    with pytest.raises(NotADirectoryError, match="letters"):
        make_private(tmp_path / "letters")
    assert mode(tmp_path / "letters") == 0o644
    (tmp_path / "commitlog").mkdir()
    make_private(tmp_path)
    assert mode(tmp_path) == 0o700
