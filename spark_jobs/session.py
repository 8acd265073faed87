"""Spark session of a job: the only place that decides where it runs.

Owns: settings that hold for every job, and the environment that the JVM needs before it starts.
Must not: be imported by executor code; create a session at import (Spark also imports modules on executors).
"""

from __future__ import annotations

import logging
import os
import re
import shutil
import sys
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from .errors import SparkJobError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

#: The first version with all that our sources need.
_OLDEST = (4, 2)
_SETTINGS = {
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.adaptive.enabled": "true",
    "spark.ui.showConsoleProgress": "false",  # the job shows its own
    "spark.python.worker.faulthandler.enabled": "true",
    # Spark sees only a few rows. Compiling a class for each query takes longer than running it.
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
}
_LOCAL_SETTINGS = {
    "spark.ui.enabled": "false",
    "spark.log.level": "WARN",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.memory": "1g",
    "spark.sql.adaptive.enabled": "false",
    # Jobs are short: the second compiler never pays off.
    "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -XX:-UsePerfData",
}


def open_session(
    name: str,
    *,
    master: str | None = None,
    local: int | None = None,
    log: Path | None = None,
    settings: Mapping[str, str] | None = None,
) -> SparkSession:
    """Return a session, which the caller stops.

    Without `master` and `local`: spark-submit's, else `local[*]`.

    `settings`: those of this job, over the common ones.
    `log`: output file for a JVM that is started here (it is talkative); None: stderr.
    Raises: SparkJobError, OSError.
    """
    _check_installed()
    # spark-submit sets it through the JVM. A plain `python` has no such variable.
    submitted = "PYSPARK_GATEWAY_PORT" in os.environ
    if local is None and master is None and not submitted:
        local = 0
    if local is not None:
        _prepare_local()
    from pyspark.errors import PySparkRuntimeError
    from pyspark.sql import SparkSession

    builder = SparkSession.builder.appName(name)
    chosen = dict(_SETTINGS)
    if local is not None:
        cores = local or os.cpu_count() or 1
        builder = builder.master(f"local[{cores}]")
        chosen |= _LOCAL_SETTINGS | {
            "spark.sql.shuffle.partitions": str(cores),
            "spark.default.parallelism": str(cores),
        }
    elif master is not None:
        builder = builder.master(master)
    for key, value in (chosen | dict(settings or {})).items():
        builder = builder.config(key, value)
    try:
        with _stderr_to(None if submitted else log):
            return builder.getOrCreate()
    except PySparkRuntimeError as error:
        if "JAVA_GATEWAY_EXITED" in str(error):
            raise SparkJobError(
                "Spark could not start Java. Check that `java -version` works and says 17 or newer"
                " (Debian: apt-get install openjdk-17-jre-headless), then run it again."
            ) from error
        raise


@contextmanager
def _stderr_to(log: Path | None) -> Iterator[None]:
    """Let processes started meanwhile inherit a file as their stderr."""
    if log is None:
        yield
        return
    sys.stderr.flush()
    kept = os.dup(2)
    try:
        with log.open("wb") as file:
            os.dup2(file.fileno(), 2)
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)


def _check_installed() -> None:
    try:
        import pyarrow  # noqa: F401
        import pyspark
    except ImportError as error:
        raise SparkJobError(
            f"Spark is not installed here ({error}). Install the extra: pip install 'ledgermq[spark]' (in a "
            "clone: make spark)"
        ) from None
    if tuple(int(part) for part in re.findall(r"\d+", pyspark.__version__)[:2]) < _OLDEST:
        raise SparkJobError(
            f"this is Spark {pyspark.__version__}, and LedgerMQ needs a newer one. Install it: pip install "
            "'ledgermq[spark]' (in a clone: make spark)"
        )
    home = os.environ.get("JAVA_HOME")
    if shutil.which("java") is None and not (home and Path(home, "bin", "java").exists()):
        raise SparkJobError(
            "there is no Java, which Spark needs. Install version 17 or newer (Debian: apt-get install"
            " openjdk-17-jre-headless) or set JAVA_HOME."
        )


def _prepare_local() -> None:
    """Let workers run this interpreter. Without the variable Spark takes `python3` from PATH."""
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    os.environ.setdefault("PYSPARK_DRIVER_PYTHON", sys.executable)
    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    if not sys.warnoptions:
        warnings.filterwarnings("ignore", category=FutureWarning, module="pyspark")
    logging.getLogger("py4j").setLevel(logging.ERROR)
