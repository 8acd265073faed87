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
from typing import TYPE_CHECKING, Final

from .errors import SparkJobError
from .spark_cluster import CONNECT, await_executors, check_listening, local_cores, send_code

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

#: The oldest Spark with admission control for Python sources.
OLDEST: Final = (4, 2)
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

    Without `master` and `local`: spark-submit's, else `local[*]`. `master`: any that Spark knows, also
    `sc://HOST:PORT`, Spark Connect. Its executors get our code.

    `settings`: those of this job, over the common ones.
    `log`: output file for a JVM that is started here (it is talkative); None: stderr.
    Raises: SparkJobError, OSError.
    """
    _check_installed()
    if master is not None and (cores := local_cores(master)) is not None:
        local, master = cores, None
    # spark-submit sets it through the JVM. A plain `python` has no such variable.
    submitted = "PYSPARK_GATEWAY_PORT" in os.environ
    if local is None and master is None and not submitted:
        local = 0
    if master is not None:
        check_listening(master)
    chosen = _SETTINGS | dict(settings or {})
    if master is not None and master.startswith(CONNECT):
        return _connect(name, master, chosen)
    _check_java()
    if local is not None or not submitted:
        _prepare_python()
    from pyspark.errors import PySparkRuntimeError
    from pyspark.sql import SparkSession

    builder = SparkSession.builder.appName(name)
    if local is not None:
        _prepare_local()
        cores = local or os.cpu_count() or 1
        builder = builder.master(f"local[{cores}]")
        chosen = _SETTINGS | _LOCAL_SETTINGS | {
            "spark.sql.shuffle.partitions": str(cores),
            "spark.default.parallelism": str(cores),
        } | dict(settings or {})  # fmt: skip
    elif master is not None:
        builder = builder.master(master)
    for key, value in chosen.items():
        builder = builder.config(key, value)
    try:
        with _stderr_to(None if submitted else log):
            spark = builder.getOrCreate()
    except PySparkRuntimeError as error:
        if "JAVA_GATEWAY_EXITED" in str(error):
            raise SparkJobError(
                "Spark could not start Java. Check that `java -version` works and says 17 or newer"
                " (Debian: apt-get install openjdk-17-jre-headless), then run it again."
            ) from error
        raise
    except Exception as error:
        if master is None or (reason := _of_java(error)) is None:
            raise
        raise SparkJobError(f'Spark cannot use the master "{master}": {reason}') from None
    if master is not None:
        try:
            await_executors(spark, master)
            send_code(spark)
        except BaseException:
            spark.stop()
            raise
    return spark


def _connect(name: str, master: str, settings: Mapping[str, str]) -> SparkSession:
    """Return a session of a Spark Connect server, which has our code. Raises: SparkJobError."""
    from pyspark.errors import PySparkException, PySparkImportError
    from pyspark.sql import SparkSession

    builder = SparkSession.builder.remote(master).appName(name)
    for key, value in settings.items():
        if key.startswith("spark.sql."):  # the others are the server's
            builder = builder.config(key, value)
    try:
        spark = builder.getOrCreate()
        check_version(spark)
        send_code(spark)
    except PySparkImportError as error:
        raise SparkJobError(
            f"Spark Connect needs more packages: {error}. Install them: pip install 'ledgermq[spark]'"
        ) from None
    except PySparkException as error:
        lines = str(error).strip().splitlines()
        why = lines[0] if lines else type(error).__name__
        raise SparkJobError(f"{master} is no usable Spark Connect server: {why}") from None
    return spark


def check_version(spark: SparkSession) -> None:
    """Refuse a Spark whose Python sources lack what ours need. Raises: SparkJobError."""
    _check_version(spark.version)


def _check_version(version: str) -> None:
    found = tuple(int(part) for part in re.findall(r"\d+", version)[:2])
    if found < OLDEST:
        raise SparkJobError(
            f"this is Spark {version}; LedgerMQ needs Spark {'.'.join(map(str, OLDEST))} or newer, on the "
            "driver and on the executors"
        )


def _of_java(error: Exception) -> str | None:
    """Return the first line of an error of the JVM; None: it is another one."""
    thrown = getattr(error, "java_exception", None)
    if thrown is None:
        return None
    lines = str(thrown.getMessage()).strip().splitlines()
    return lines[0].rstrip(".") if lines else type(error).__name__


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
    _check_version(pyspark.__version__)


def _check_java() -> None:
    home = os.environ.get("JAVA_HOME")
    if shutil.which("java") is None and not (home and Path(home, "bin", "java").exists()):
        raise SparkJobError(
            "there is no Java, which Spark needs. Install version 17 or newer (Debian: apt-get install"
            " openjdk-17-jre-headless) or set JAVA_HOME."
        )


def _prepare_python() -> None:
    """Let workers run this interpreter, also on other hosts: Spark would take `python3` from their PATH.

    Who has it elsewhere there sets PYSPARK_PYTHON.
    """
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    os.environ.setdefault("PYSPARK_DRIVER_PYTHON", sys.executable)


def _prepare_local() -> None:
    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    if not sys.warnoptions:
        warnings.filterwarnings("ignore", category=FutureWarning, module="pyspark")
    logging.getLogger("py4j").setLevel(logging.ERROR)
