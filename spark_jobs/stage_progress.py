"""Progress of a job's stages: a bar for a person at a terminal, lines of JSON for programs.

    {"stage": "scan", "tasks": 12, "of_tasks": 192, "bytes": 1610612736, "of_bytes": 25769803776,
     "bytes_per_second": 805306368, "seconds": 2.0, "eta_seconds": 30.0}

Owns: the bar, and those lines, which go to stderr: one in a second, and one at the end of each stage.
Spark is asked for finished tasks while the stage runs in a separate thread. Slices have about equal sizes, so
tasks are a fair measure of bytes and time, too. In a pipe, without JSON, nothing is shown.
"""

from __future__ import annotations

import itertools
import json
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    SpinnerColumn,
    TextColumn,
    TimeElapsedColumn,
)

from .spark_cluster import is_remote

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_BAR_SECONDS: Final = 0.2
_LINE_SECONDS: Final = 1.0
_numbers = itertools.count()

#: Counts (finished, all) tasks of a stage.
CountTasks = Callable[[], tuple[int, int]]


@dataclass(frozen=True, slots=True)
class Reached:
    """How far a stage is. `of_bytes`: what all its tasks read; 0: not known."""

    stage: str
    tasks: int
    of_tasks: int
    of_bytes: int
    seconds: float

    @property
    def share(self) -> float:
        return self.tasks / self.of_tasks if self.of_tasks else 0.0

    @property
    def bytes_per_second(self) -> float:
        return self.of_bytes * self.share / self.seconds if self.seconds > 0 else 0.0

    @property
    def eta_seconds(self) -> float | None:
        """Return the time that is left; None: no task has finished."""
        return self.seconds * (1 - self.share) / self.share if self.share else None

    def fields(self) -> dict[str, Any]:
        """Return a line for programs."""
        fields: dict[str, Any] = {"stage": self.stage, "tasks": self.tasks, "of_tasks": self.of_tasks}
        if self.of_bytes:
            fields |= {
                "bytes": round(self.of_bytes * self.share),
                "of_bytes": self.of_bytes,
                "bytes_per_second": round(self.bytes_per_second),
            }
        eta = self.eta_seconds
        return fields | {
            "seconds": round(self.seconds, 1),
            "eta_seconds": None if eta is None else round(eta, 1),
        }

    def text(self) -> str:
        """Return what stands behind the bar."""
        parts = []
        if self.of_bytes and self.share:
            done = self.of_bytes * self.share
            parts.append(f"{done / 1e9:.1f} of {self.of_bytes / 1e9:.1f} GB")
            parts.append(f"{self.bytes_per_second / 1e9:.2f} GB/s")
        if (eta := self.eta_seconds) and self.tasks < self.of_tasks:
            parts.append(f"{round(eta) // 60}:{round(eta) % 60:02d} left")
        return "  ".join(parts)


def run_stage(
    spark: SparkSession,
    console: Console,
    name: str,
    work: Callable[[], object],
    *,
    size: int = 0,
    as_json: bool = False,
) -> object:
    """Run `work` and return its result; its exceptions are raised here.

    `size`: bytes that it reads, 0: unknown. `as_json`: lines instead of a bar, also without a terminal.
    """
    if not (console.is_terminal or as_json):
        return work()
    shown = _lines(console) if as_json else _bar(console, name)
    with (
        _counted(spark, name, work) as (target, count),
        shown as show,
        ThreadPoolExecutor(1, "stage") as pool,
    ):
        began = time.monotonic()

        def reached() -> Reached:
            return Reached(name, *count(), size, time.monotonic() - began)

        result = pool.submit(target)
        while not wait([result], _LINE_SECONDS if as_json else _BAR_SECONDS).done:
            show(reached())
        show(reached())
        return result.result()


# --- where it is shown --------------------------------------------------------------------------------------


@contextmanager
def _lines(console: Console) -> Iterator[Callable[[Reached], None]]:
    def show(reached: Reached) -> None:
        console.file.write(json.dumps(reached.fields()) + "\n")
        console.file.flush()

    yield show


@contextmanager
def _bar(console: Console, name: str) -> Iterator[Callable[[Reached], None]]:
    columns = (
        SpinnerColumn(),
        TextColumn("{task.description:<8}"),
        BarColumn(24),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TextColumn("{task.fields[text]}"),
    )
    with Progress(*columns, console=console, transient=True) as progress:
        bar = progress.add_task(name, total=None, text="")

        def show(reached: Reached) -> None:
            total = reached.of_tasks or None
            progress.update(bar, completed=reached.tasks, total=total, text=reached.text())

        yield show


# --- how tasks are counted ----------------------------------------------------------------------------------


@contextmanager
def _counted(
    spark: SparkSession, name: str, work: Callable[[], object]
) -> Iterator[tuple[Callable[[], object], CountTasks]]:
    """Yield the work as it must run, and what counts its tasks meanwhile."""
    if is_remote(spark):
        counter: Any = _RemoteTasks()
        spark.registerProgressHandler(counter)
        try:
            yield work, counter.count
        finally:
            spark.removeProgressHandler(counter)
        return
    from pyspark import inheritable_thread_target

    context = spark.sparkContext
    group = f"{name} {next(_numbers)}"  # not the name alone: another broker group's stage had it

    @inheritable_thread_target(spark)
    def target() -> object:
        context.setJobGroup(group, name)
        return work()

    yield target, lambda: _tasks(spark, group)


def _tasks(spark: SparkSession, group: str) -> tuple[int, int]:
    """Return (finished, all) tasks of a job group."""
    tracker = spark.sparkContext.statusTracker()
    done = total = 0
    for job_id in tracker.getJobIdsForGroup(group):
        job = tracker.getJobInfo(job_id)
        for stage_id in job.stageIds if job else ():
            stage = tracker.getStageInfo(stage_id)
            if stage:
                done, total = done + stage.numCompletedTasks, total + stage.numTasks
    return done, total


class _RemoteTasks:
    """What a Spark Connect server reports of its operations."""

    def __init__(self) -> None:
        self._operations: dict[str | None, tuple[int, int]] = {}

    def __call__(self, stages: Any, inflight_tasks: int, operation_id: str | None, done: bool) -> None:
        stages = list(stages or ())
        if stages:  # the last report of an operation may have none
            finished = sum(each.num_completed_tasks for each in stages)
            self._operations[operation_id] = finished, sum(each.num_tasks for each in stages)

    def count(self) -> tuple[int, int]:
        """Return (finished, all) tasks."""
        found = list(self._operations.values())
        return sum(done for done, _ in found), sum(total for _, total in found)
