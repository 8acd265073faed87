"""The zip for executors: complete, and importable without anything else of LedgerMQ."""

from __future__ import annotations

import subprocess
import sys
import zipfile
from pathlib import Path

from ledgermq.spark_jobs.package import build_package


def test_executor_modules_import_from_the_zip_alone(tmp_path: Path) -> None:
    target = tmp_path / "ledgermq-spark.zip"
    assert build_package(target) == target.stat().st_size
    code = (
        f"import sys; sys.path.insert(0, {str(target)!r}); import ledgermq.spark_jobs.scan as scan;"
        f"assert {str(target)!r} in scan.__file__, scan.__file__;"
        "foreign = ('grpc', 'google', 'pyspark', 'ledgermq.broker')\n"
        "assert not [m for m in sys.modules if m.startswith(foreign)]"
    )
    subprocess.run([sys.executable, "-W", "error", "-c", code], check=True, cwd=tmp_path)


def test_the_template_is_in_the_zip(tmp_path: Path) -> None:
    build_package(tmp_path / "x.zip")
    assert "ledgermq/spark_jobs/report.html.j2" in zipfile.ZipFile(tmp_path / "x.zip").namelist()


def test_topics_are_read_from_the_zip_without_a_server(tmp_path: Path) -> None:
    target = tmp_path / "ledgermq-spark.zip"
    build_package(target)
    code = (
        f"import sys; sys.path.insert(0, {str(target)!r}); sys.modules['uvloop'] = None;"
        "import ledgermq.client.sync.bulk_reader as reader, ledgermq.spark_jobs.topics.read_plan as plan;"
        f"assert {str(target)!r} in reader.__file__ and {str(target)!r} in plan.__file__;"
        "reader.BulkReader('127.0.0.1:1').close()\n"
        "foreign = ('uvicorn', 'sortedcontainers', 'ledgermq.broker', 'ledgermq.raft', 'typer', 'rich')\n"
        "assert not [m for m in sys.modules if m.startswith(foreign)]"
    )
    subprocess.run([sys.executable, "-c", code], check=True, cwd=tmp_path)
