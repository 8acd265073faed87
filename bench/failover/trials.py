"""Trials: end leaders under two steady writers, and collect the results of the writers and the logs.

Owns: the order of a trial (steady, end, until both write again, back, steady), the writers' processes.
"""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Final

from ledgermq.client import Admin, PullConsumer

from .gaps import Ledger, Trial, Write, balance, failures, parse_write, write_gap
from .groups import ROOT, Group
from .time_line import events

OFFICIAL_CLIENT: Final = "rocketmq-python-client==5.1.2"
_POLL_S: Final = 0.02
_PATIENCE_S: Final = 60.0
_AFTER_NS: Final = 2_000_000_000  # writes continue for this time after the gap: a later stall counts too


def official_python() -> Path:
    """Return the Python of a virtual environment with the official client. Creates it if missing."""
    folder = ROOT / "build" / "official-client"
    python, mark = folder / "bin" / "python", folder / OFFICIAL_CLIENT
    if not mark.exists():
        folder.parent.mkdir(parents=True, exist_ok=True)
        subprocess.run([sys.executable, "-m", "venv", "--clear", str(folder)], check=True)
        subprocess.run([str(python), "-m", "pip", "install", "-q", OFFICIAL_CLIENT], check=True)
        mark.touch()
    return python


class Writer:
    """A writer's process, and its recorded writes so far."""

    def __init__(self, client: str, command: list[str], folder: Path) -> None:
        self.client = client
        self.topic = f"failover-{client}"
        self.writes: list[Write] = []
        self.log = folder / f"{client}.log"
        self._file = folder / f"{client}.writes"
        self._file.touch()
        self._position = 0
        self._command = command
        self._process: subprocess.Popen[bytes] | None = None

    def start(self, access: str, pause_ms: float) -> None:
        """Start writing."""
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                [*self._command, access, self.topic, str(self._file), str(pause_ms)],
                cwd=ROOT, env={**os.environ, "PYTHONPATH": str(ROOT)}, stdout=log, stderr=log,
            )  # fmt: skip

    def read(self) -> None:
        """Read the lines completed since the last call. Raises: RuntimeError (the writer ended)."""
        if self._process is None or self._process.poll() is not None:
            raise RuntimeError(f"the writer {self.client} ended; its log: {self.log}")
        self._take()

    def _take(self) -> None:
        with self._file.open() as lines:
            lines.seek(self._position)
            *whole, _ = lines.read().split("\n")
        self._position += sum(len(line) + 1 for line in whole)
        self.writes += map(parse_write, whole)

    def stop(self) -> None:
        """End the process. A write in progress is finished first."""
        if self._process is not None and self._process.poll() is None:
            self._process.send_signal(signal.SIGTERM)
            try:
                self._process.wait(30)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
        self._take()

    @property
    def last_acknowledged(self) -> int:
        """Time of the last acknowledgement; 0: none yet."""
        return next((write.ended for write in reversed(self.writes) if write.acknowledged), 0)


class Trials:
    """All trials with one broker group of nodes."""

    def __init__(
        self, group: Group, folder: Path, *, pause_ms: float, steady_s: float, official: bool
    ) -> None:
        self._group = group
        self._pause_ms, self._steady_ns = pause_ms, int(steady_s * 1e9)
        ours = Writer("ledgermq", [sys.executable, "-m", "bench.failover.our_writer"], folder)
        self._writers = [ours]
        if official:
            script = str(Path(__file__).with_name("official_writer.py"))
            self._writers.append(Writer("rocketmq-python", [str(official_python()), script], folder))

    async def start(self) -> None:
        """Start the broker group and the writers."""
        await asyncio.to_thread(self._group.start)
        async with Admin(self._group.nameservers) as admin:
            for writer in self._writers:
                await admin.create_topic(writer.topic, queues=4)
        for writer in self._writers:
            access = self._group.nameservers if writer is self._writers[0] else self._group.endpoints
            writer.start(access, self._pause_ms)
        await self._until_all_write(time.monotonic_ns())

    async def run(self, way: str, number: int) -> Trial:
        """End the leader once, and bring it back."""
        await self._until_all_write(time.monotonic_ns() + self._steady_ns)
        leader = await asyncio.to_thread(self._group.leader)
        trial = Trial(way, number, leader, load=os.getloadavg()[0])
        ended, unix = time.monotonic_ns(), time.time()
        await asyncio.to_thread(self._group.end, way, leader)
        await self._until_all_write(time.monotonic_ns() + _AFTER_NS)
        observed = time.monotonic_ns()
        for writer in self._writers:
            trial.gaps[writer.client] = write_gap(writer.writes, ended, observed)
            trial.errors[writer.client] = failures(writer.writes, ended, observed)
        returned, returned_unix = time.monotonic_ns(), time.time()
        await asyncio.to_thread(self._group.restore, way, leader)
        back = time.monotonic_ns() + _AFTER_NS
        await self._until_all_write(back)
        for writer in self._writers:
            trial.return_gaps[writer.client] = write_gap(writer.writes, returned, back)
        logs = [*self._group.logs(), *((each.client, self._lines(each)) for each in self._writers)]
        longest = trial.longest / 1000
        trial.events = events(logs, unix - 0.1, unix + longest + 0.5, unix)
        trial.return_events = events(logs, returned_unix, time.time(), returned_unix)
        return trial

    def _lines(self, writer: Writer) -> list[str]:
        return writer.log.read_text(errors="replace").splitlines()

    async def _until_all_write(self, moment: int) -> None:
        """Return once every writer has an acknowledgement after `moment`.

        Raises: TimeoutError, RuntimeError.
        """
        async with asyncio.timeout(_PATIENCE_S):
            while True:
                for writer in self._writers:
                    writer.read()
                if all(writer.last_acknowledged > moment for writer in self._writers):
                    return
                await asyncio.sleep(_POLL_S)

    async def finish(self) -> dict[str, Ledger]:
        """Stop the writers and read everything back. Returns the balance of each."""
        for writer in self._writers:
            await asyncio.to_thread(writer.stop)
        return {
            writer.client: balance(writer.writes, await self._read_back(writer.topic))
            for writer in self._writers
        }

    async def _read_back(self, topic: str) -> list[int]:
        numbers: list[int] = []
        async with PullConsumer(self._group.nameservers, group=f"{topic}-check") as consumer:
            await consumer.subscribe(topic)
            ends = sum(end - begin for _, _, begin, end in await consumer.offsets(topic))
            while len(numbers) < ends:
                messages = await consumer.poll(4000, timeout_ms=10_000)
                if not messages:
                    break
                numbers += [int(message.body[:8]) for message in messages]
        return numbers

    async def stop(self) -> None:
        """End everything that still runs."""
        for writer in self._writers:
            await asyncio.to_thread(writer.stop)
        await asyncio.to_thread(self._group.stop)
