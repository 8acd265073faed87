"""Page writer: the file holds what was written, through the page cache or past it."""

from __future__ import annotations

import ctypes
import errno
import mmap
import os
import random
from collections.abc import Sequence
from pathlib import Path

import pytest

from ledgermq.raft.disk import files, page_writer
from ledgermq.raft.disk.files import Buffer, RealFile
from ledgermq.raft.disk.page_writer import PAGE, PageWriter

LIMIT = 64 * PAGE
TRAILER = b"behind the limit"


class Watched(RealFile):
    """Records which way each write took: (direct?, offset, bytes)."""

    writes: list[tuple[bool, int, int]]

    def pwritev(self, buffers: Sequence[Buffer], offset: int) -> None:
        self.writes.append((False, offset, sum(map(len, buffers))))
        super().pwritev(buffers, offset)

    def write_past_cache(self, data: memoryview, offset: int) -> None:
        self.writes.append((True, offset, len(data)))
        super().write_past_cache(data, offset)


@pytest.fixture
def file(tmp_path: Path) -> Watched:
    path = tmp_path / "segment"
    path.write_bytes(bytes(LIMIT) + TRAILER)
    opened = Watched(path, os.open(path, os.O_RDWR))
    opened.writes = []
    return opened


@pytest.mark.parametrize("direct", [0, 1, 3000, 2 * PAGE])
@pytest.mark.parametrize("seed", range(10))
def test_runs_stand_in_the_file_one_behind_the_other(
    file: Watched, seed: int, direct: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Random runs of random pieces, with cuts between them, and a chunk that long runs fill more
    than once.
    """
    monkeypatch.setattr(page_writer, "_CHUNK", 4 * PAGE)
    rng = random.Random(seed)
    pages, expected = PageWriter(direct), bytearray()
    for _ in range(150):
        run = rng.randbytes(rng.choice((1, 40, 1200, PAGE, 3 * PAGE, rng.randint(1, 9 * PAGE))))
        if len(expected) + len(run) > LIMIT:
            break
        cuts = sorted(rng.choices(range(len(run) + 1), k=3))
        parts: list[Buffer] = [
            run[: cuts[0]],
            bytearray(run[cuts[0] : cuts[1]]),
            memoryview(run)[cuts[1] : cuts[2]],
            run[cuts[2] :],
        ]
        pages.write(file, parts, len(expected), LIMIT)
        expected += run
        assert file.path.read_bytes() == bytes(expected).ljust(LIMIT, b"\0") + TRAILER
        if rng.random() < 0.2:  # a cut, done as the log writer does it
            del expected[rng.randint(0, len(expected)) :]
            pages.forget()
            files.write_zeros(file, len(expected), LIMIT)
    file.close()


def test_only_runs_of_the_given_size_go_past_the_cache(file: Watched) -> None:
    pages = PageWriter(2000)
    pages.write(file, [b"a" * 1999], 0, LIMIT)
    pages.write(file, [b"b" * 1000, b"c" * 1000], 1999, LIMIT)
    pages.write(file, [b"d" * 10], 3999, LIMIT)
    pages.write(file, [b"e" * 10], 4009, LIMIT)
    pages.write(file, [b"f" * 5000], 4019, LIMIT)
    # The fourth run finds its page in the cache because the third wrote all of it there; the third could not.
    assert file.writes == [
        (False, 0, PAGE),
        (True, 0, PAGE),
        (False, 0, PAGE),
        (False, 4009, PAGE - 4009),
        (True, 0, 3 * PAGE),
    ]
    file.close()


def test_a_limit_inside_a_page_is_kept_by_the_page_cache(file: Watched) -> None:
    """Segments smaller than a page exist only in small groups. Nothing may be written after them."""
    pages = PageWriter(1)
    pages.write(file, [b"x" * 700], 0, 1000)
    assert file.writes == [(False, 0, 1000)]
    file.close()


def test_of_a_page_that_another_run_began_nothing_is_read_or_written_again(
    file: Watched, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After a start or a cut the existing bytes may be damaged, and under repair while this is written."""
    PageWriter(PAGE).write(file, [b"of an earlier start"], 0, LIMIT)
    file.writes.clear()
    monkeypatch.delattr(RealFile, "pread")
    pages, run = PageWriter(PAGE), os.urandom(2 * PAGE)
    pages.write(file, [run[:5], run[5:4999], run[4999:]], 19, LIMIT)
    pages.write(file, [b"x" * PAGE], 19 + len(run), LIMIT)
    assert file.writes == [(False, 19, PAGE - 19), (True, PAGE, 2 * PAGE), (True, 2 * PAGE, 2 * PAGE)]
    pages.forget()
    pages.write(file, [b"y" * (PAGE - 19)], 19 + 3 * PAGE, LIMIT)
    assert file.writes[3:] == [(False, 19 + 3 * PAGE, PAGE - 19)]
    assert file.path.read_bytes()[: 4 * PAGE] == b"of an earlier start" + run + b"x" * PAGE + b"y" * (
        PAGE - 19
    )
    file.close()


def test_what_was_written_is_not_read_again(file: Watched) -> None:
    """Damage that appeared in the page meanwhile would be written back, possibly over a repair."""
    pages = PageWriter(PAGE)
    pages.write(file, [b"good" * 10, b"more"], 0, LIMIT)
    pages.write(file, [b"and more"], 44, LIMIT)
    os.pwrite(file._fd, b"evil", 0)
    pages.write(file, [b"x" * 2 * PAGE], 52, LIMIT)
    assert file.path.read_bytes()[:60] == b"good" * 10 + b"more" + b"and more" + b"x" * 8
    file.close()


@pytest.mark.parametrize(
    ("refused", "code"),
    [
        ("open", errno.EINVAL),
        ("open", errno.EMFILE),
        ("open", errno.EACCES),
        ("open", errno.ENOENT),
        ("write", errno.EINVAL),
        ("write", errno.EOPNOTSUPP),
    ],
)
def test_without_direct_io_the_page_cache_takes_it(
    file: Watched, refused: str, code: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> int:
        raise OSError(code, os.strerror(code))

    run = os.urandom(3 * PAGE)
    with monkeypatch.context() as bent:
        bent.setattr(os, "open" if refused == "open" else "pwrite", refuse)
        PageWriter(1).write(file, [run], 0, LIMIT)
    assert file.path.read_bytes()[: len(run)] == run
    assert [direct for direct, _, _ in file.writes] == [True, False]
    PageWriter(1).write(file, [run], 0, LIMIT)  # it does not retry direct I/O
    assert [direct for direct, _, _ in file.writes] == [True, False] * 2
    file.close()


def test_a_short_write_is_finished(file: Watched, monkeypatch: pytest.MonkeyPatch) -> None:
    run = os.urandom(3 * PAGE)
    real = os.pwrite
    with monkeypatch.context() as bent:
        bent.setattr(os, "pwrite", lambda fd, data, offset: real(fd, data[:PAGE], offset))
        PageWriter(1).write(file, [run], 0, LIMIT)
    assert file.path.read_bytes()[: len(run)] == run
    file.close()


def test_a_file_system_that_refuses_only_some_writes_gets_the_rest_through_its_cache(
    file: Watched, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(page_writer, "_CHUNK", 2 * PAGE)
    run, more, real = os.urandom(7 * PAGE - 100), os.urandom(200), os.pwrite

    def refuse(fd: int, data: Buffer, offset: int) -> int:
        if offset == 4 * PAGE:
            raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))
        return real(fd, data, offset)

    monkeypatch.setattr(os, "pwrite", refuse)
    pages = PageWriter(PAGE)
    pages.write(file, [run], 0, LIMIT)
    pages.write(file, [more], len(run), LIMIT)
    assert file.path.read_bytes() == (run + more).ljust(LIMIT, b"\0") + TRAILER
    assert next(each for each in file.writes if not each[0]) == (False, 4 * PAGE, 2 * PAGE)
    file.close()


@pytest.mark.parametrize("code", [errno.EIO, errno.ENOSPC])
def test_a_failed_write_is_not_tried_again_through_the_cache(
    file: Watched, code: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """P15: the contents of the disk are then unknown."""

    def fail(*_: object) -> int:
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(os, "pwrite", fail)
    with pytest.raises(OSError, match=os.strerror(code)):
        PageWriter(1).write(file, [bytes(PAGE)], 0, LIMIT)
    assert file.writes == [(True, 0, PAGE)]
    file.close()


def cached_pages(fd: int, size: int) -> int:
    """Return how many of a file's first pages are in the page cache.

    (A read that must not wait starts to fetch missing pages.)
    """
    pages = -(-size // mmap.PAGESIZE)
    found = (ctypes.c_ubyte * pages)()
    with mmap.mmap(fd, size) as mapped:
        first = ctypes.c_char.from_buffer(mapped)
        failed = ctypes.CDLL(None, use_errno=True).mincore(ctypes.byref(first), ctypes.c_size_t(size), found)
        del first
    assert not failed, os.strerror(ctypes.get_errno())
    return sum(each & 1 for each in found)


def test_the_count_of_cached_pages_sees_what_is_there(file: Watched) -> None:
    os.pwrite(file._fd, bytes(2 * PAGE), 0)
    assert cached_pages(file._fd, 2 * PAGE) == 2 * PAGE // mmap.PAGESIZE
    os.fsync(file._fd)
    file.drop_cached(0, 0)
    assert cached_pages(file._fd, 2 * PAGE) == 0
    file.close()


@pytest.mark.parametrize("refuses", [False, True], ids=["as it is here", "no direct I/O"])
def test_what_goes_past_the_cache_takes_no_page_of_it(
    file: Watched, monkeypatch: pytest.MonkeyPatch, refuses: bool
) -> None:
    """Without direct I/O in the file system, the cache takes the run."""
    os.fsync(file._fd)
    file.drop_cached(0, 0)
    if refuses:
        monkeypatch.setattr(files, "_open_direct", lambda fd: -1)
    run = os.urandom(8 * PAGE)
    PageWriter(1).write(file, [run], 0, LIMIT)
    if file._direct_fd == -1:
        assert file.writes == [(True, 0, len(run)), (False, 0, len(run))]
    else:
        assert file.writes == [(True, 0, len(run))]
        assert not cached_pages(file._fd, len(run))
    assert file.pread(len(run), 0) == run
    file.close()
