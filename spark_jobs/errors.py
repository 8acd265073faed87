"""Errors of the Spark jobs.

SparkJobError            base: its text says what happened, why, and the next command
├── IncomparableDumpsError    the input is no set of dumps that can be compared (exit code 2)
└── MissingSparkError    PySpark or Java is not installed (exit code 2)
"""

from __future__ import annotations


class SparkJobError(Exception):
    """Base of the errors shown to users."""


class IncomparableDumpsError(SparkJobError):
    """The dumps cannot be compared at all. Nothing was checked."""


class MissingSparkError(SparkJobError):
    """A required package or program is not installed."""
