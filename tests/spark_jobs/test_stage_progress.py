"""How far a stage is: figures, lines for programs, and the bar of a terminal. Without Spark."""

from __future__ import annotations

import io
import json
from types import SimpleNamespace
from typing import Any

import pytest
from rich.console import Console

from ledgermq.spark_jobs.stage_progress import Reached, run_stage


class Remote:
    """A session of Spark Connect as far as progress goes."""

    __module__ = "pyspark.sql.connect.session"

    def __init__(self) -> None:
        self.handlers: list[Any] = []

    def registerProgressHandler(self, handler: Any) -> None:
        self.handlers.append(handler)

    def removeProgressHandler(self, handler: Any) -> None:
        self.handlers.remove(handler)

    def report(self, operation: str, *stages: tuple[int, int]) -> None:
        shown = [SimpleNamespace(num_completed_tasks=done, num_tasks=of) for done, of in stages]
        for handler in self.handlers:
            handler(stages=shown, inflight_tasks=0, operation_id=operation, done=not shown)


def test_rate_and_the_time_that_is_left_follow_from_the_finished_tasks() -> None:
    reached = Reached("scan", 3, 12, 8_000_000_000, 4.0)
    assert reached.fields() == {
        "stage": "scan", "tasks": 3, "of_tasks": 12, "bytes": 2_000_000_000, "of_bytes": 8_000_000_000,
        "bytes_per_second": 500_000_000, "seconds": 4.0, "eta_seconds": 12.0,
    }  # fmt: skip
    assert reached.text() == "2.0 of 8.0 GB  0.50 GB/s  0:12 left"


def test_before_the_first_task_nothing_is_promised() -> None:
    reached = Reached("agree", 0, 0, 0, 1.0)
    assert reached.fields() == {
        "stage": "agree", "tasks": 0, "of_tasks": 0, "seconds": 1.0, "eta_seconds": None,
    }  # fmt: skip
    assert reached.text() == ""


def test_lines_for_programs_end_with_what_was_done() -> None:
    spark, file = Remote(), io.StringIO()

    def work() -> str:
        spark.report("a", (1, 4), (0, 2))
        spark.report("a", (4, 4), (2, 2))
        spark.report("a")  # the end of an operation says nothing more
        spark.report("b", (1, 1))
        return "result"

    console = Console(file=file)
    assert run_stage(spark, console, "scan", work, size=70, as_json=True) == "result"  # type: ignore[arg-type]
    last = json.loads(file.getvalue().splitlines()[-1])
    assert (last["stage"], last["tasks"], last["of_tasks"], last["bytes"]) == ("scan", 7, 7, 70)
    assert spark.handlers == []


def test_a_terminal_gets_a_bar_that_goes_away_and_a_pipe_nothing() -> None:
    spark, terminal, pipe = Remote(), io.StringIO(), io.StringIO()
    console = Console(file=terminal, force_terminal=True, width=120)
    run_stage(spark, console, "scan", lambda: spark.report("a", (2, 2)), size=10)  # type: ignore[arg-type]
    assert "scan" in terminal.getvalue() and "2/2" in terminal.getvalue()
    run_stage(spark, Console(file=pipe), "scan", lambda: None)  # type: ignore[arg-type]
    assert pipe.getvalue() == ""


def test_an_error_of_the_work_is_raised() -> None:
    spark = Remote()

    def work() -> None:
        raise ValueError("broken")

    with pytest.raises(ValueError, match="broken"):
        run_stage(spark, Console(file=io.StringIO()), "scan", work, as_json=True)  # type: ignore[arg-type]
    assert spark.handlers == []
