"""Builds the zip that spark-submit sends to executors: the Spark jobs, and the client that they read with.

    python -m ledgermq.spark_jobs.package ledgermq-spark.zip

Executors also need numpy, pyarrow and crc32c, and for topics grpcio, protobuf and hpack. Those belong into
their environment or `--archives`; no part of the server does. `ledgermq` has no `__init__.py`, but Python
finds a package in a zip only if there is one.
"""

from __future__ import annotations

import argparse
import sys
import zipfile
from collections.abc import Iterator, Sequence
from importlib.resources import files
from importlib.resources.abc import Traversable
from pathlib import Path

#: Packages that executors import, and rooms of them that only the command line does.
_PACKAGES = ("proto", "rpc", "client", "spark_jobs")
_LEFT_OUT = ("bench", "cli", "demo", "local")
_SUFFIXES = (".py", ".j2")


def build_package(target: Path) -> int:
    """Write the zip; return its size in bytes. Raises: OSError."""
    target.parent.mkdir(parents=True, exist_ok=True)
    with zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("ledgermq/__init__.py", "")
        for name, text in sorted(_contents()):
            archive.writestr(name, text)
    return target.stat().st_size


def _contents() -> Iterator[tuple[str, bytes]]:
    for package in _PACKAGES:
        yield from _contents_of(files(f"ledgermq.{package}"), f"ledgermq/{package}")


def _contents_of(folder: Traversable, name: str) -> Iterator[tuple[str, bytes]]:
    for item in folder.iterdir():
        if item.is_dir() and item.name not in _LEFT_OUT:
            yield from _contents_of(item, f"{name}/{item.name}")
        elif item.name.endswith(_SUFFIXES):
            yield f"{name}/{item.name}", item.read_bytes()


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
