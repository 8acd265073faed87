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


class StageProgress:
    """Runs stages one after the other, each with its bar."""

    def __init__(self, spark: SparkSession, console: Console) -> None:
        self._spark = spark
        self._console = console

    def run(self, name: str, work: Callable[[], object]) -> object:
        """Run `work` and return its result. Its exceptions are raised here."""
        if not self._console.is_terminal:
            return work()
        return self._run_with_bar(name, work)

    def _run_with_bar(self, name: str, work: Callable[[], object]) -> object:
        from pyspark import inheritable_thread_target

        context = self._spark.sparkContext

        @inheritable_thread_target(self._spark)
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
            Progress(*columns, console=self._console, transient=True) as progress,
            ThreadPoolExecutor(1, "stage") as pool,
        ):
            bar = progress.add_task(name, total=None)
            result = pool.submit(target)
            while not wait([result], _POLL_SECONDS).done:
                done, total = self._tasks(name)
                progress.update(bar, completed=done, total=total or None)
            return result.result()

    def _tasks(self, group: str) -> tuple[int, int]:
        """Return (finished, all) tasks of the job group."""
        tracker = self._spark.sparkContext.statusTracker()
        done = total = 0
        for job_id in tracker.getJobIdsForGroup(group):
            job = tracker.getJobInfo(job_id)
            for stage_id in job.stageIds if job else ():
                stage = tracker.getStageInfo(stage_id)
                if stage:
                    done, total = done + stage.numCompletedTasks, total + stage.numTasks
        return done, total
