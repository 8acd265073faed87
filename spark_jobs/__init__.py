"""Verification of replicas on Spark, over dumps of their logs, and topics as Spark tables.

ledgermq.spark_jobs.register(spark)
spark.read.format("ledgermq").option("subscribe", "orders").load()
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def register(spark: SparkSession) -> None:
    """Make `format("ledgermq")` known to a session, and let it push filters down to Python sources.

    Raises: SparkJobError (Spark is too old).
    """
    from .session import check_version

    check_version(spark)
    from .topics.data_source import register_source

    register_source(spark)
