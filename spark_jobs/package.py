"""Builds the zip that spark-submit sends to executors: the layouts and the Spark jobs, nothing else.

    python -m ledgermq.spark_jobs.package ledgermq-spark.zip

Executors also need numpy, pyarrow and crc32c. Those are native and belong into their environment or
`--archives`. `ledgermq` has no `__init__.py`, but Python finds a package in a zip only if there is one.
"""

from __future__ import annotations

import argparse
import sys
import zipfile
from collections.abc import Iterator, Sequence
from importlib.resources import files
from pathlib import Path

#: Modules of `ledgermq.proto` that need neither gRPC nor protobuf.
_LAYOUTS = (
    "__init__.py",
    "dump_manifest.py",
    "entry.py",
    "errors.py",
    "group_ids.py",
    "record.py",
    "values.py",
)


def build_package(target: Path) -> int:
    """Write the zip; return its size in bytes. Raises: OSError."""
    target.parent.mkdir(parents=True, exist_ok=True)
    with zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("ledgermq/__init__.py", "")
        for name, text in sorted(_contents()):
            archive.writestr(name, text)
    return target.stat().st_size


def _contents() -> Iterator[tuple[str, bytes]]:
    for name in _LAYOUTS:
        yield f"ledgermq/proto/{name}", files("ledgermq.proto").joinpath(name).read_bytes()
    for item in files("ledgermq.spark_jobs").iterdir():
        if item.name.endswith((".py", ".j2")):
            yield f"ledgermq/spark_jobs/{item.name}", item.read_bytes()


def main(arguments: Sequence[str] | None = None) -> int:
    """Build the package from the command line."""
    parser = argparse.ArgumentParser(description="Build the zip for spark-submit --py-files.")
    parser.add_argument("target", type=Path, help="zip to write")
    target = parser.parse_args(arguments).target
    size = build_package(target)
    sys.stdout.write(f"{target} ({size:,} bytes)\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
