"""`ledgermq check` for tests, in one process that keeps its Spark session, whose start outlasts a check.

Only the session is shared; otherwise it does what `python -m ledgermq.spark_jobs.verify` does, with the same
output. (tests/e2e shows the command with its own Spark.)

    python -m tests.integration.replica_checks

It reads arguments, one JSON list per line, and answers [exit code, stdout, stderr].
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import io
import json
import os
import subprocess
import sys
from pathlib import Path

from .cluster import Cluster


def check(folder: Path, *options: str) -> subprocess.CompletedProcess[str]:
    """Do what `ledgermq check FOLDER OPTIONS` does."""
    arguments, checker = [str(folder), *options], _checker()
    assert checker.stdin is not None and checker.stdout is not None
    checker.stdin.write(json.dumps(arguments) + "\n")
    checker.stdin.flush()
    answer = checker.stdout.readline()
    assert answer, "the process that checks has ended"
    code, out, errors = json.loads(answer)
    return subprocess.CompletedProcess(arguments, code, out, errors)


def dump_and_check(
    cluster: Cluster, folder: Path, *options: str, code: int = 0
) -> subprocess.CompletedProcess[str]:
    """Dump all nodes by `ledgermq dump`, and check them; `code`: what the check must end with."""
    dump = [str(Path(sys.executable).with_name("ledgermq")), "dump", str(folder)]
    dumped = subprocess.run(
        [*dump, "--nameserver", cluster.nameserver], capture_output=True, text=True, check=False
    )
    assert dumped.returncode == 0, dumped.stdout + dumped.stderr
    checked = check(folder, *options)
    assert checked.returncode == code, checked.stdout + checked.stderr
    return checked


@functools.cache
def _checker() -> subprocess.Popen[str]:
    command = [sys.executable, "-m", __name__]
    checker = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    atexit.register(checker.communicate)  # ends its input, and waits for it
    return checker


# --- the process that checks ------------------------------------------------------------------------------


def _serve() -> None:
    from ledgermq.spark_jobs import session, verify

    spark = session.open_session("ledgermq check", local=os.cpu_count(), log=Path(os.devnull))
    stop = spark.stop
    vars(spark)["stop"] = lambda: None  # a check that is done does not stop it
    vars(verify)["open_session"] = lambda *_, **__: spark
    for line in sys.stdin:
        out, errors = io.StringIO(), io.StringIO()
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(errors):
            code = verify.main(json.loads(line))
        os.write(_ANSWERS, json.dumps([code, out.getvalue(), errors.getvalue()]).encode() + b"\n")
    stop()


if __name__ == "__main__":
    # What else writes to the output of this process, Java for one, must not come between the answers.
    _ANSWERS = os.dup(1)
    os.dup2(2, 1)
    _serve()
