"""Spark clusters: what a job needs that does not run in this process.

Owns: the look whether somebody listens at a master's address, sending our code, and the wait for executors.
Must not: create sessions (`session` does).
"""

from __future__ import annotations

import re
import socket
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Final
from urllib.parse import urlsplit

from .errors import SparkJobError
from .package import build_package

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

#: What a URL of Spark Connect begins with.
CONNECT: Final = "sc://"
_PORTS: Final = {"spark": 7077, "sc": 15002}
_CONNECT_TIMEOUT_S: Final = 10.0
#: How long a standalone cluster may take to give a job its first executor, s.
EXECUTOR_PATIENCE_S: Final = 120.0
_POLL_S: Final = 0.1
_ZIP: Final = "ledgermq-spark.zip"


def local_cores(master: str) -> int | None:
    """Return the cores of `local`, `local[N]` or `local[*]` (0: all); None: another master."""
    found = re.fullmatch(r"local(?:\[(\d+|\*)\])?", master)
    if found is None:
        return None
    count = found[1] or "1"
    return 0 if count == "*" else int(count)


def check_listening(master: str) -> None:
    """Refuse a master at whose address nobody listens. Spark itself tries for a minute, and ends in a trace.

    Raises: SparkJobError.
    """
    scheme, _, rest = master.partition("://")
    if scheme not in _PORTS or not rest:
        return  # yarn, k8s://..., local-cluster[...]: Spark finds them by other means
    addresses = [rest] if scheme == "sc" else rest.split(",")
    if any(_listens(address, _PORTS[scheme]) for address in addresses):
        return
    what = "Spark Connect server" if scheme == "sc" else "Spark master"
    raise SparkJobError(
        f"no {what} listens at {rest.partition('/')[0]}. Check that it runs, and the address of --master; "
        f"the usual port is {_PORTS[scheme]}"
    )


def _listens(address: str, port: int) -> bool:
    try:
        parts = urlsplit(f"//{address}")
        with socket.create_connection((parts.hostname or "", parts.port or port), _CONNECT_TIMEOUT_S):
            return True
    except (OSError, ValueError):
        return False


def is_remote(spark: SparkSession) -> bool:
    """Tell whether a session is one of Spark Connect: it has no JVM here."""
    return type(spark).__module__.startswith("pyspark.sql.connect")


def send_code(spark: SparkSession) -> None:
    """Send the zip of our code to the executors, which then need only the libraries that it imports."""
    if is_remote(spark):
        with tempfile.TemporaryDirectory() as folder:
            build_package(Path(folder, _ZIP))
            spark.addArtifacts(str(Path(folder, _ZIP)), pyfile=True)
        return
    from pyspark import SparkFiles

    # Executors fetch it from here at any time. Spark deletes this folder when the session stops.
    path = Path(SparkFiles.getRootDirectory(), "sent", _ZIP)
    build_package(path)
    spark.sparkContext.addPyFile(str(path))


def await_executors(spark: SparkSession, master: str, patience_s: float = EXECUTOR_PATIENCE_S) -> None:
    """Wait until a standalone cluster has given the job an executor. Spark itself would wait for ever.

    Other clusters have queues in which a job may wait for hours; and with dynamic allocation there need not
    be an executor. Raises: SparkJobError.
    """
    context = spark.sparkContext._jsc.sc()
    settings = context.conf()
    if not master.startswith(("spark://", "local-cluster[")):
        return
    if settings.getBoolean("spark.dynamicAllocation.enabled", False):
        return
    end = time.monotonic() + patience_s
    while context.getExecutorMemoryStatus().size() < 2:  # one of them is the driver
        if time.monotonic() > end:
            at = f"{settings.get('spark.driver.host')}:{settings.get('spark.driver.port')}"
            raise SparkJobError(
                f"{master} has given this job no executor in {patience_s:.0f} s. Either it has no free cores "
                "or memory (its web page shows it), or executors start and end because they cannot reach "
                f"this process at {at}: set SPARK_LOCAL_IP here to an address that they reach"
            )
        time.sleep(_POLL_S)
