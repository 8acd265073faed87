"""Measurement of peers: closed and open loops, percentiles, CPU and memory of processes.

A figure is comparable only with figures of the same run, because the machine is shared and its speed drifts.
"""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import time
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

_AFTER_S = 2.0  # writes continue for this time after a leader's end, plus the length of the gap
_STEADY = 0.05
_TICKS = os.sysconf("SC_CLK_TCK")
clock = time.perf_counter
Send = Callable[[], Awaitable[Any]]


def percentile(values: Sequence[float], percent: float) -> float:
    """Return the nearest-rank percentile; NaN of nothing."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(len(ordered) * percent / 100))] if ordered else float("nan")


async def closed_loop(
    send: Send,
    in_flight: int,
    seconds: float,
    most: int | None = None,
    failed: list[BaseException] | None = None,
) -> list[float]:
    """Keep `in_flight` sends open until time or count is reached. Returns the latencies in seconds.

    With `failed`, a failing send is counted there instead of ending the run.
    """
    latencies: list[float] = []
    left = most if most is not None else 1 << 62
    end = clock() + seconds

    async def worker() -> None:
        nonlocal left
        while left > 0:
            left -= 1
            begin = clock()
            if begin >= end:
                return
            try:
                await send()
            except Exception as error:  # each client has its own errors; recorded for the caller, or raised
                if failed is None:
                    raise
                failed.append(error)
                continue
            latencies.append(clock() - begin)

    await asyncio.gather(*(worker() for _ in range(in_flight)))
    return latencies


async def until_steady(window: Callable[[], Awaitable[float]], most: int) -> tuple[list[float], bool]:
    """Repeat a window until the rates of two successive ones differ by less than 5 %, at most `most` times.

    Returns the rates, and whether they became steady.
    """
    rates: list[float] = []
    for _ in range(most):
        rates.append(await window())
        if len(rates) > 1 and abs(rates[-1] - rates[-2]) < _STEADY * max(rates[-2:]):
            return rates, True
    return rates, False


async def open_loop(send: Send, rate: float, seconds: float) -> int:
    """Start a send at each tick of a fixed rate, whatever the answers do. Returns their number."""
    begin, tasks = clock(), []
    for number in range(int(rate * seconds)):
        wait = begin + number / rate - clock()
        if wait > 0:
            await asyncio.sleep(wait)
        tasks.append(asyncio.ensure_future(send()))
    await asyncio.gather(*tasks)
    return len(tasks)


async def write_gap(
    send: Callable[[int], Awaitable[Any]], end_leader: Callable[[], None]
) -> tuple[float, list[int]]:
    """Write one by one and end the leader in the middle. Returns (gap in seconds, acknowledged numbers).

    The gap is the longest time without an acknowledgement from then on. It counts from the last one before
    the end, so a leadership transfer that stalls writes later shows too.
    Raises: TimeoutError (no write for 60 s).
    """
    acknowledged: list[int] = []
    begin = last = clock()
    ended: float | None = None
    gap = 0.0
    number = 0
    while ended is None or last < ended + _AFTER_S + gap:
        now = clock()
        if ended is None and now - begin > 1:
            end_leader()
            ended = now
        if now - last > 60:
            raise TimeoutError("no write was acknowledged within 60 s")
        try:
            await send(number)
        except Exception:  # noqa: BLE001 - each client has errors of its own; the write is simply tried again
            await asyncio.sleep(0.01)
            continue
        acknowledged.append(number)
        number += 1
        now = clock()
        if ended is not None:
            gap = max(gap, now - last)
        last = now
    return gap, acknowledged


def cpu_seconds(pid: int) -> float:
    """Return the user and system time of a process so far."""
    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / _TICKS


def anonymous_mib(pid: int) -> float:
    """Return RssAnon of a process: its memory without the page cache."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("RssAnon"):
            return int(line.split()[1]) / 1024
    raise RuntimeError(f"no RssAnon of {pid}")


def descriptors(pids: Iterable[int]) -> list[int]:
    """Return the number of open files and sockets of each process."""
    return [len(list(Path(f"/proc/{pid}/fd").iterdir())) for pid in pids]


def files_of(folder: Path) -> tuple[int, float]:
    """Return the number of files under a folder, and the MiB of their blocks."""
    found = [path.stat() for path in folder.rglob("*") if path.is_file()]
    return len(found), sum(each.st_blocks for each in found) * 512 / (1 << 20)


@dataclass
class Meter:
    """Wall time and CPU of this process and of the servers over a `with` block."""

    pids: Sequence[int]
    seconds: float = 0
    client_cpu: float = 0
    server_cpu: list[float] = field(default_factory=list)
    memory_mib: list[float] = field(default_factory=list)

    def __enter__(self) -> Meter:
        self._begin = clock()
        self._client = time.process_time()
        self._servers = [cpu_seconds(pid) for pid in self.pids]
        return self

    def __exit__(self, *_: object) -> None:
        self.seconds = clock() - self._begin
        self.client_cpu = time.process_time() - self._client
        self.server_cpu = [
            cpu_seconds(pid) - before for pid, before in zip(self.pids, self._servers, strict=True)
        ]
        self.memory_mib = [anonymous_mib(pid) for pid in self.pids]


def spawn(command: Sequence[str], log: Path, env: dict[str, str] | None = None) -> subprocess.Popen[bytes]:
    """Start a server with its output in `log`."""
    with log.open("ab") as file:
        return subprocess.Popen(
            command, stdout=file, stderr=file, stdin=subprocess.DEVNULL, env=env, start_new_session=True
        )


def stop(processes: Iterable[subprocess.Popen[bytes]], patience: float = 15) -> None:
    """Send SIGTERM, wait, then SIGKILL the rest."""
    running = [process for process in processes if process.poll() is None]
    for process in running:
        process.send_signal(signal.SIGTERM)
    end = clock() + patience
    for process in running:
        try:
            process.wait(max(0.1, end - clock()))
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
