"""Progress of the job's stages for a person at a terminal.

Owns: the bar. It asks Spark's status tracker for finished tasks while the stage runs in a separate thread.
Slices have about equal sizes, so tasks are a fair measure. In a pipe, or without a tracker, nothing is drawn.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor, wait
from typing import TYPE_CHECKING, Final

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    SpinnerColumn,
    TextColumn,
    TimeElapsedColumn,
)

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_POLL_SECONDS: Final = 0.2


def run_stage(spark: SparkSession, console: Console, name: str, work: Callable[[], object]) -> object:
    """Run `work` and return its result; its exceptions are raised here. On a terminal it has a bar."""
    if not console.is_terminal:
        return work()
    from pyspark import inheritable_thread_target

    context = spark.sparkContext

    @inheritable_thread_target(spark)
    def target() -> object:
        context.setJobGroup(name, name)
        return work()

    columns = (
        SpinnerColumn(),
        TextColumn("{task.description:<8}"),
        BarColumn(24),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
    )
    with (
        Progress(*columns, console=console, transient=True) as progress,
        ThreadPoolExecutor(1, "stage") as pool,
    ):
        bar = progress.add_task(name, total=None)
        result = pool.submit(target)
        while not wait([result], _POLL_SECONDS).done:
            done, total = _tasks(spark, name)
            progress.update(bar, completed=done, total=total or None)
        return result.result()


def _tasks(spark: SparkSession, name: str) -> tuple[int, int]:
    """Return (finished, all) tasks of the job group of a stage."""
    tracker = spark.sparkContext.statusTracker()
    done = total = 0
    for job_id in tracker.getJobIdsForGroup(name):
        job = tracker.getJobInfo(job_id)
        for stage_id in job.stageIds if job else ():
            stage = tracker.getStageInfo(stage_id)
            if stage:
                done, total = done + stage.numCompletedTasks, total + stage.numTasks
    return done, total
