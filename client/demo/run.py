"""Demo run: a broker group loses its leader under load but no message, and Spark proves it.

Owns: the eight steps, and the criterion of success. Must not: know how a cluster is started or how output
looks.
Success: every acknowledged message is received once, in order, at its acknowledged position; all replicas are
equal; and the check that says so detects a single flipped byte.
"""

from __future__ import annotations

import asyncio
import contextlib
import platform
import shutil
import time
from dataclasses import dataclass
from pathlib import Path

from ..admin.admin import Admin
from ..admin.dump import DumpResult
from ..admin.status_report import size
from ..errors import LedgerMQError
from . import checks as demo_checks
from .demo_cluster import DemoCluster, find_leader, wait_caught_up
from .display import DemoDisplay
from .failures import Striker
from .ledger import ReceiveBook, SendBook, balance
from .load import Receiver, Sender

TOPIC = "orders"
QUEUES = 8
_BEAT_SECONDS = 0.1


@dataclass(frozen=True, slots=True)
class DemoPlan:
    """Parameters of a run."""

    nodes: int
    kills: int
    messages: int
    folder: Path


class DemoFailedError(LedgerMQError):
    """A step failed. `node`: the node whose log may explain it, "" for none."""

    def __init__(self, what: str, node: str = "") -> None:
        super().__init__(what)
        self.node = node


class Demo:
    """One run. `run` does steps 2 to 8 on a prepared cluster. The caller does step 1 and the end."""

    def __init__(self, plan: DemoPlan, cluster: DemoCluster, display: DemoDisplay) -> None:
        self.plan = plan
        self.cluster = cluster
        self.display = display
        self.sent = SendBook()
        self.received = ReceiveBook()
        self.striker: Striker | None = None
        self.report = plan.folder / "check" / "report.html"

    async def run(self) -> None:
        """Run the steps. Raises: DemoFailedError and other LedgerMQErrors."""
        await self._start()
        await self._create_topic()
        await self._send()
        await self._consume()
        await self._dump()
        await self._verify()
        await self._doubt()

    def result(self) -> str:
        """Return the summary line."""
        gaps = self.striker.strikes.write_gaps if self.striker else []
        gap = f"write gap {max(gaps) * 1000:.0f} ms" if gaps else "no kill"
        checked = balance(self.sent, self.received)
        return (
            f"RESULT  acknowledged {len(self.sent.acknowledged):,}   lost {len(checked.missing):,}   "
            f"stored twice {len(checked.stored_twice):,}   {gap}   OK in {self.display.seconds:.0f} s"
        )

    async def _start(self) -> None:
        self.display.begin("starting ...")
        try:
            await asyncio.to_thread(self.cluster.start)
        except asyncio.CancelledError:
            self.cluster.stop()  # otherwise the thread would keep waiting for the nodes
            raise
        leader, view = await find_leader(self.cluster)
        self.display.done(
            f"{' '.join(self.cluster.nodes)} up   {leader} leads {view.group}, term {view.term:,}"
        )

    async def _create_topic(self) -> None:
        self.display.begin(f"creating {TOPIC} ...")
        _, view = await find_leader(self.cluster)
        async with Admin(self.cluster.nameserver) as admin:
            await admin.create_topic(TOPIC, QUEUES)
        majority = len(self.cluster.nodes) // 2 + 1
        how = "fsynced" if view.flush == "sync" else "in memory"
        self.display.done(
            f"{TOPIC}, {QUEUES} queues   acknowledged = {how} on {majority} of {len(self.cluster.nodes)}"
        )

    async def _send(self) -> None:
        self.display.begin()
        started = time.monotonic()
        self.striker = striker = Striker(
            self.cluster,
            self.sent,
            kills=self.plan.kills,
            messages=self.plan.messages,
            on_event=self.display.event,
        )

        def go_on() -> bool:
            return len(self.sent.sent_at) < self.plan.messages or not striker.finished

        sender = Sender(self.cluster.nameserver, TOPIC, self.sent)
        bar = asyncio.create_task(self._show_sending(started))
        striking = asyncio.create_task(striker.run())
        sending = asyncio.create_task(sender.run(go_on, self.plan.messages))
        try:
            done, _ = await asyncio.wait({striking, sending}, return_when=asyncio.FIRST_EXCEPTION)
            for task in done:
                task.result()
        finally:
            for task in (bar, striking, sending):
                task.cancel()
            await asyncio.gather(bar, striking, sending, return_exceptions=True)
        seconds = time.monotonic() - started
        if self.sent.failed:
            number, reason = next(iter(self.sent.failed.items()))
            raise DemoFailedError(
                f"{len(self.sent.failed):,} sends failed within their 30 s; the first: message {number}: "
                f"{reason}",
                striker.strikes.last_victim,
            )
        count = len(self.sent.acknowledged)
        p99 = self.sent.p99_ms()
        self.display.done(f"{count:,} acknowledged  {count / seconds:,.0f} msg/s  p99 {p99:.0f} ms")

    async def _show_sending(self, started: float) -> None:
        last_count, last_time = 0, started
        while True:
            await asyncio.sleep(_BEAT_SECONDS * 5)
            count, now = len(self.sent.acknowledged), time.monotonic()
            rate = (count - last_count) / (now - last_time)
            total = max(self.plan.messages, len(self.sent.sent_at))
            self.display.progress(count, total, rate, self.sent.p99_ms())
            last_count, last_time = count, now

    async def _consume(self) -> None:
        self.display.begin("reading everything back ...")
        started = time.monotonic()
        receiver = Receiver(self.cluster.nameserver, "demo", TOPIC, self.received)

        def show(count: int, total: int) -> None:
            self.display.progress(count, total, count / max(time.monotonic() - started, 0.001))

        await receiver.run(show)
        checked = balance(self.sent, self.received)
        if not checked.is_good:
            ids = [
                self.sent.message_ids.get(number, "?")
                for number in (checked.missing or checked.stored_twice)[:5]
            ]
            named = f"   ids: {', '.join(ids)}" if ids else ""
            raise DemoFailedError("; ".join(checked.problems()) + named)
        self.display.done(
            f"{self.received.distinct:,} distinct   {len(checked.missing)} missing   "
            f"{len(checked.out_of_order)} out of order   {self.received.redelivered:,} redelivered"
        )

    async def _dump(self) -> None:
        self.display.begin("copying the logs of all nodes ...")
        _, view = await find_leader(self.cluster)
        target = next(node.commit_index for node in view.nodes if node.node_id == view.node_id)
        for name in self.cluster.nodes:
            await wait_caught_up(self.cluster, name, target)
        dumps: list[DumpResult] = await demo_checks.dump_all(self.cluster, self.dumps)
        sizes = f"{len(dumps)} x {size(max(each.bytes for each in dumps))}"
        self.display.done(f"{' '.join(self.cluster.nodes)} -> {self._relative(self.dumps)} ({sizes})")

    async def _verify(self) -> None:
        self.display.begin("Spark compares them ...")
        result = await demo_checks.check(self.dumps, self.report.parent)
        if result.exit_code != demo_checks.EXIT_CONSISTENT:
            raise DemoFailedError(f"{result.verdict}: {'; '.join(result.found[:5])}")
        self.display.done(f"Spark: {result.verdict}")

    async def _doubt(self) -> None:
        victim = self.cluster.nodes[0]
        self.display.begin(f"does the check see one flipped byte in a copy of {victim}'s dump?")
        copy = self.plan.folder / "dumps-damaged"
        file, position = await asyncio.to_thread(demo_checks.damaged_copy, self.dumps, copy, victim)
        result = await demo_checks.check(copy, self.plan.folder / "check-damaged")
        found = [line for line in result.found if victim in line]
        if result.exit_code != demo_checks.EXIT_INCONSISTENT or not found:
            raise DemoFailedError(
                f"the check did not find the byte flipped at {position:,} of {file}; it said: "
                f"{result.verdict}"
            )
        self.display.done(f"flipped 1 byte in a copy of {victim}'s dump -> {found[0]}")
        with contextlib.suppress(OSError):
            shutil.rmtree(copy)

    @property
    def dumps(self) -> Path:
        return self.plan.folder / "dumps"

    def _relative(self, path: Path) -> str:
        with contextlib.suppress(ValueError):
            return str(path.relative_to(Path.cwd()))
        return str(path)


def versions() -> str:
    """Return the versions shown in step 1."""
    return f"Python {platform.python_version()}"
