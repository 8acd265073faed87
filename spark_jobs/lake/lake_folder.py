"""Lake folder: the files of a lake, and how a commit changes them so that no crash harms it.

    PATH/topic=orders/day=2026-11-26/hour=23/000000000007-0000.parquet
    PATH/_ledgermq/log/          commits (`lake_state.py`)
    PATH/_ledgermq/staging/      files that no commit names yet
    PATH/_ledgermq/writer.lock, readers.lock

A commit happens when its file is in the log. It names files that are complete and synced in the staging
folder. Then it is settled: files that it removes are deleted, those that it adds are moved to their places.
Whoever opens the lake for writing settles the last commit first; each step may be repeated.

Owns: these steps, the locks, foreign files. Must not: know what is in a Parquet file.
"""

from __future__ import annotations

import fcntl
import os
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final, Self

from ..errors import SparkJobError
from .lake_state import (
    MAX_MANIFEST,
    LakeCommit,
    LakeFile,
    LakeState,
    damaged,
    decode_commit,
    encode_commit,
)

FOLDER: Final = "_ledgermq"
#: Commits after which a snapshot replaces them.
SNAPSHOT_EVERY: Final = 64


class LakeDisk:
    """Changes of files. Each is on the disk when its call returns; a removal when the folder is synced."""

    def create(self, path: Path, data: bytes) -> bool:
        """Make a file with this content, at once. False: there is one."""
        path.parent.mkdir(parents=True, exist_ok=True)
        draft = path.with_name(f".{path.name}.{os.getpid()}")
        with draft.open("wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        try:
            os.link(draft, path)
        except FileExistsError:
            return False
        finally:
            draft.unlink()
        self.sync(path.parent)
        return True

    def move(self, old: Path, new: Path) -> None:
        missing = [folder for folder in new.parents if not folder.exists()]
        new.parent.mkdir(parents=True, exist_ok=True)
        old.rename(new)
        for folder in (new.parent, *(folder.parent for folder in missing)):
            self.sync(folder)

    def remove(self, path: Path) -> None:
        path.unlink(missing_ok=True)

    def sync(self, folder: Path) -> None:
        opened = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(opened)
        finally:
            os.close(opened)


def lake_path(text: str) -> Path:
    """Return the folder that a user named. Raises: SparkJobError (it is no folder of a file system)."""
    text = text.removeprefix("file://")
    if "://" in text or text.startswith(("s3:", "hdfs:", "abfs:", "gs:")):
        raise SparkJobError(
            f"{text} is no folder of a file system. A lake needs one that the driver and all executors have "
            "mounted, since its commits are made with links and renames; object stores have no such thing"
        )
    return Path(text).absolute()


class LakeFolder:
    """A lake that is open. Use it with `with`. Its state changes only by `commit`."""

    def __init__(self, root: Path, disk: LakeDisk | None = None) -> None:
        """Look at a lake; nothing is locked and changed. Raises: SparkJobError (there is none, damage)."""
        self.root = root
        self.disk = disk or LakeDisk()
        self._locks: list[int] = []
        self.state = self._load()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Release the locks."""
        while self._locks:
            os.close(self._locks.pop())

    @classmethod
    def is_lake(cls, root: Path) -> bool:
        """Tell whether there is a lake. Raises: SparkJobError (something else is there)."""
        if not root.exists():
            return False
        if not root.is_dir():
            raise SparkJobError(f"{root} is a file; a lake needs a folder")
        if (root / FOLDER / "log").is_dir() and any((root / FOLDER / "log").glob("[0-9]*.json")):
            return True
        foreign = [path.name for path in root.iterdir() if path.name != FOLDER]
        if foreign:
            raise SparkJobError(
                f"{root} is no lake and not empty: it holds {foreign[0]}. Give a new or an empty folder"
            )
        return False

    @classmethod
    def for_reading(cls, root: Path, disk: LakeDisk | None = None) -> LakeFolder:
        """Open a lake, and let nobody remove its files meanwhile. Raises: SparkJobError."""
        if not cls.is_lake(root):
            raise SparkJobError(f"{root} is no lake: `ledgermq spark archive TOPIC --to {root}` makes one")
        lake = cls(root, disk)
        try:
            lake._lock("readers.lock", fcntl.LOCK_SH)
        except BlockingIOError:
            raise SparkJobError(
                f"files of the lake {root} are being compacted at this moment; try again"
            ) from None
        except OSError:
            return lake  # it may only be read here, so nobody here changes it
        lake.state = lake._load()  # what is locked
        return lake

    @classmethod
    def for_writing(
        cls, root: Path, *, new: str = "", now_ms: int = 0, disk: LakeDisk | None = None
    ) -> LakeFolder:
        """Open a lake as the only writer, and settle what a former one left.

        `new`: make the lake with this id, if there is none. Raises: SparkJobError.
        """
        disk = disk or LakeDisk()
        if not cls.is_lake(root):
            if not new:
                raise SparkJobError(
                    f"{root} is no lake: `ledgermq spark archive TOPIC --to {root}` makes one"
                )
            disk.create(_log_file(root, 0), encode_commit(LakeCommit(0, "begin", new, now_ms)))
        lake = cls(root, disk)
        try:
            lake._lock("writer.lock", fcntl.LOCK_EX)
            lake.state = lake._load()
            lake._recover()
            lake._refuse_foreign()
        except BlockingIOError:
            lake.close()
            raise SparkJobError(f"another job archives into {root} now. A lake has one writer") from None
        except BaseException:
            lake.close()
            raise
        return lake

    def _lock(self, name: str, kind: int) -> None:
        """Raises: BlockingIOError (another process has it)."""
        path = self.root / FOLDER / name
        opened = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
        try:
            fcntl.flock(opened, kind | fcntl.LOCK_NB)
        except BaseException:
            os.close(opened)
            raise
        self._locks.append(opened)

    @contextmanager
    def without_readers(self) -> Iterator[bool]:
        """Keep readers away, if there are none: files may be removed. Yields whether it is so."""
        held = len(self._locks)
        try:
            self._lock("readers.lock", fcntl.LOCK_EX)
        except BlockingIOError:
            yield False
            return
        try:
            yield True
        finally:
            os.close(self._locks.pop(held))

    # --- state ----------------------------------------------------------------------------------------------

    def _load(self) -> LakeState:
        folder = self.root / FOLDER / "log"
        while True:
            names = _names(folder)
            try:
                return self._replayed(folder, names)
            except SparkJobError:
                if names == _names(folder):
                    raise
                # The writer has put a snapshot in place of commits meanwhile.

    def _replayed(self, folder: Path, names: Sequence[str]) -> LakeState:
        numbers = sorted(int(name[:20]) for name in names if len(name) == 25 and name[:20].isdecimal())
        snapshots = [name for name in names if name.endswith(".snapshot.json") and name[0] != "."]
        begin = snapshots[-1] if snapshots else _log_file(self.root, 0).name
        state = LakeState(_read(folder / begin))
        for number in numbers:
            if number > state.number:
                state.apply(_read(_log_file(self.root, number)))
        return state

    def where(self, file: LakeFile) -> Path:
        """Return where the bytes of a file of the state are now."""
        path = self.root / file.path
        return self.root / file.staged if file.staged and not path.exists() else path

    @property
    def staging(self) -> Path:
        return self.root / FOLDER / "staging"

    # --- changes --------------------------------------------------------------------------------------------

    def commit(self, commit: LakeCommit) -> None:
        """Make a change: its files are in the staging folder, complete and synced.

        Raises: SparkJobError (another writer was faster), OSError.
        """
        for folder in {(self.root / file.staged).parent for file in commit.add}:
            self.disk.sync(folder)
        if not self.disk.create(_log_file(self.root, commit.number), encode_commit(commit)):
            raise SparkJobError(f"another job has written commit {commit.number} of {self.root}; start again")
        self._settle(commit)
        self.state.apply(commit)
        if commit.number % SNAPSHOT_EVERY == 0:
            self._snapshot()

    def _settle(self, commit: LakeCommit) -> None:
        removed = [self.root / name for name in commit.remove]
        for path in removed:
            self.disk.remove(path)
        for folder in {path.parent for path in removed}:
            self.disk.sync(folder)
        for file in commit.add:
            old, new = self.root / file.staged, self.root / file.path
            if old.exists():
                self.disk.move(old, new)

    def _snapshot(self) -> None:
        number = self.state.number
        log = self.root / FOLDER / "log"
        former = [path for path in log.iterdir() if path.name[:1] != "."]
        self.disk.create(log / f"{number:020d}.snapshot.json", encode_commit(self.state.snapshot()))
        for path in former:
            if path.name[:20] <= f"{number:020d}" and path.name != f"{number:020d}.snapshot.json":
                self.disk.remove(path)

    def _recover(self) -> None:
        """Settle the last commit, and remove what no commit names."""
        last = _log_file(self.root, self.state.number)
        if last.exists():
            self._settle(_read(last))
        shutil.rmtree(self.staging, ignore_errors=True)
        for draft in last.parent.glob(".*"):
            self.disk.remove(draft)

    def _refuse_foreign(self) -> None:
        """Raises: SparkJobError (other readers would take files for messages of the lake that are none)."""
        for path in sorted(self.root.rglob("*")):
            name = path.relative_to(self.root).as_posix()
            parts = name.split("/")
            if parts[0] == FOLDER or parts[-1].startswith((".", "_")) or path.is_dir():
                continue
            if name not in self.state.files:
                raise SparkJobError(
                    f"{path} is no file of the lake: other programs would read it as messages. Move it away"
                )

    def missing(self) -> Sequence[str]:
        """Return the files of the state that are gone, by path."""
        return [name for name, file in sorted(self.state.files.items()) if not self.where(file).exists()]


def _names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def _log_file(root: Path, number: int) -> Path:
    return root / FOLDER / "log" / f"{number:020d}.json"


def _read(path: Path) -> LakeCommit:
    """Raises: SparkJobError."""
    try:
        with path.open("rb") as file:
            data = file.read(MAX_MANIFEST + 1)
    except OSError as error:
        raise damaged(path.name, error.strerror or str(error)) from None
    if len(data) > MAX_MANIFEST:
        raise damaged(path.name, "it is too large")
    return decode_commit(data, path.name)
