"""Error of the Spark jobs."""

from __future__ import annotations


class SparkJobError(Exception):
    """The job cannot run, or the dumps cannot be compared: nothing was checked (exit code 2).

    Its text is for users: what happened, why, and the next command.
    """
