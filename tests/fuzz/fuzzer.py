"""Fuzzer: feeds a decoder mutated encodings. Only its declared errors are allowed, within bounds.

Deterministic: one seed gives one series of inputs. Owns: mutations, bounds, the loop. Must not: know what is
decoded.
"""

from __future__ import annotations

import random
import resource
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

CORPUS: Final = Path(__file__).parent / "corpus"
#: Processor time in seconds that an input may cost: thousands of times what any of them needs.
MAX_SECONDS: Final = 2.0
#: Address space in bytes that may be used in addition. Inputs are at most a few hundred KiB.
MAX_BYTES: Final = 1 << 30
_MAX_INPUT: Final = 1 << 16
_LONG_RUN: Final = 1 << 18
_NUMBERS: Final = (0, 1, 2, 7, 8, 0x7F, 0x80, 0xFF, 0x7FFF, 0xFFFF, 1 << 20, 0x7FFFFFFF, 0xFFFFFFFF, 1 << 40,
                   (1 << 63) - 1, 1 << 63, (1 << 64) - 1)  # fmt: skip


@dataclass(frozen=True)
class Target:
    """A decoder. `reseal` fixes the checksums of a mutated input, to reach the code behind their check."""

    name: str
    decode: Callable[[bytes], object]
    errors: tuple[type[Exception], ...]  # declared errors
    seeds: Callable[[], Sequence[bytes]]  # real encodings; `--write-corpus` stores them
    reseal: Callable[[bytearray], bytes] | None = None

    def corpus(self) -> list[bytes]:
        """Return the committed inputs."""
        return [path.read_bytes() for path in sorted((CORPUS / self.name).glob("*.bin"))]


class FuzzFailure(AssertionError):
    """A decoder raised an undeclared error, or used too much. `data` is the input."""

    def __init__(self, target: Target, data: bytes, error: BaseException) -> None:
        super().__init__(f"{target.name}: {type(error).__name__}: {str(error)[:300]} on {len(data)} bytes")
        self.target = target
        self.data = data


class TooSlowError(Exception):
    """An input cost more than MAX_SECONDS of processor time."""


@contextmanager
def bounded() -> Iterator[Callable[[], None]]:
    """Bound memory inside, and time between calls of the yielded function. Main thread only."""

    def too_slow(_number: int, _frame: Any) -> None:
        raise TooSlowError

    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    pages = int(Path("/proc/self/statm").read_text().split()[0]) if Path("/proc/self/statm").exists() else 0
    limit = pages * resource.getpagesize() + MAX_BYTES if pages else soft
    before = signal.signal(signal.SIGPROF, too_slow)
    resource.setrlimit(resource.RLIMIT_AS, (limit, hard))
    try:
        yield lambda: signal.setitimer(signal.ITIMER_PROF, MAX_SECONDS) and None
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))
        signal.signal(signal.SIGPROF, before)


def run(target: Target, seed: int, seconds: float, runs: int | None = None) -> int:
    """Feed the corpus, then mutations of it. Returns the number of inputs. Raises: FuzzFailure."""
    corpus = target.corpus()
    first = [*corpus, *_long(corpus[:2])]
    assert corpus, f"{target.name} has no corpus; make it: python -m tests.fuzz --write-corpus"
    choose, count, end = random.Random(f"{target.name} {seed}"), 0, time.monotonic() + seconds
    with bounded() as begin:
        for data in first:
            _feed(target, data, begin)
        while count < runs if runs is not None else time.monotonic() < end:
            data = mutated(choose, corpus)
            if target.reseal is not None and choose.random() < 0.7:
                data = target.reseal(bytearray(data))
            _feed(target, data, begin)
            count += 1
    return len(first) + count


def _long(corpus: Sequence[bytes]) -> Iterator[bytes]:
    """Yield long runs that reveal quadratic behaviour: continued numbers, brackets, zeros."""
    for data in corpus:
        for at in (0, 1):
            for byte in (0, 0x80, 0xFF, 0x5B):
                yield data[:at] + bytes([byte]) * _LONG_RUN + data[at:]


def _feed(target: Target, data: bytes, begin: Callable[[], None]) -> None:
    begin()
    try:
        target.decode(data)
    except target.errors:
        pass
    except (Exception, TooSlowError) as error:
        raise FuzzFailure(target, data, error) from error


def mutated(choose: random.Random, corpus: Sequence[bytes]) -> bytes:
    """Return a corpus entry with one to six changes."""
    data = bytearray(choose.choice(corpus))
    for _ in range(choose.choice((1, 1, 2, 3, 6))):
        choose.choice(_MUTATIONS)(choose, data, corpus)
    return bytes(data[:_MAX_INPUT])


_Mutation = Callable[[random.Random, bytearray, Sequence[bytes]], None]


def _flip(choose: random.Random, data: bytearray, _: Sequence[bytes]) -> None:
    if data:
        data[choose.randrange(len(data))] ^= 1 << choose.randrange(8)


def _byte(choose: random.Random, data: bytearray, _: Sequence[bytes]) -> None:
    if data:
        data[choose.randrange(len(data))] = choose.randrange(256)


def _number(choose: random.Random, data: bytearray, _: Sequence[bytes]) -> None:
    size = choose.choice((1, 2, 4, 4, 8))
    if len(data) >= size:
        at = choose.randrange(len(data) - size + 1)
        at -= at % size if choose.random() < 0.7 else 0
        value = choose.choice(_NUMBERS) + choose.choice((-1, 0, 0, 1))
        data[at : at + size] = (value & ((1 << 8 * size) - 1)).to_bytes(size, "little")


def _near(choose: random.Random, data: bytearray, _: Sequence[bytes]) -> None:
    """Change a 32-bit number a little, to a count or a size that nearly fits."""
    if len(data) >= 4:
        at = choose.randrange(len(data) - 3) & ~3
        value = int.from_bytes(data[at : at + 4], "little") + choose.choice((-64, -8, -1, 1, 8, 64))
        data[at : at + 4] = (value & 0xFFFFFFFF).to_bytes(4, "little")


def _cut(choose: random.Random, data: bytearray, _: Sequence[bytes]) -> None:
    del data[choose.randrange(len(data) + 1) :]


def _remove(choose: random.Random, data: bytearray, _: Sequence[bytes]) -> None:
    at = choose.randrange(len(data) + 1)
    del data[at : at + choose.choice((1, 2, 4, 8, 64))]


def _insert(choose: random.Random, data: bytearray, _: Sequence[bytes]) -> None:
    at = choose.randrange(len(data) + 1)
    data[at:at] = choose.randbytes(choose.choice((1, 2, 4, 8, 64)))


def _repeat(choose: random.Random, data: bytearray, _: Sequence[bytes]) -> None:
    at = choose.randrange(len(data) + 1)
    data[at:at] = data[at : at + choose.choice((1, 4, 16, 64, 256))] * choose.choice((1, 2, 16))


def _splice(choose: random.Random, data: bytearray, corpus: Sequence[bytes]) -> None:
    other = choose.choice(corpus)
    start, at = choose.randrange(len(other) + 1), choose.randrange(len(data) + 1)
    data[at:] = other[start:]


_MUTATIONS: Final[tuple[_Mutation, ...]] = (
    _flip, _flip, _byte, _number, _number, _near, _cut, _remove, _insert, _repeat, _splice,
)  # fmt: skip
