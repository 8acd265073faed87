"""Output folder of an analysis: `hours.parquet`, `report.json`, `report.html`.

Owns: their names, and that a folder with anything else is left alone. The files of an older analysis are
replaced when all new ones are written.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

import pyarrow as pa
import pyarrow.parquet as pq

from ..errors import SparkJobError
from .analysis_figures import FORMAT, Analysis
from .analysis_page import render_analysis

HOURS, JSON, PAGE = "hours.parquet", "report.json", "report.html"
FILES: Final = (HOURS, JSON, PAGE)
_NEXT: Final = "Nothing was changed. Name another folder with --out"


@contextmanager
def analysis_folder(out: Path) -> Iterator[None]:
    """Make the folder, or take one that is empty or holds an older analysis. If what follows fails, remove
    what is not finished, and a folder that was made. Raises: SparkJobError.
    """
    made = not out.exists()
    try:
        _refuse_foreign(out)
        out.mkdir(parents=True, exist_ok=True)
        _part(out, HOURS).touch()
    except OSError as error:
        raise SparkJobError(f"the report cannot be written to {out}: {error.strerror}. {_NEXT}") from None
    try:
        yield
    finally:
        for name in FILES:
            _part(out, name).unlink(missing_ok=True)
        if made:
            with suppress(OSError):
                out.rmdir()  # only if it is empty


def _refuse_foreign(out: Path) -> None:
    if not out.exists():
        return
    if not out.is_dir():
        raise SparkJobError(f"{out} is no folder. {_NEXT}")
    names = sorted(path.name for path in out.iterdir())
    own = {*FILES, *(_part(out, name).name for name in FILES)}
    foreign = [name for name in names if name not in own]
    if not foreign and set(names) & set(FILES) and not _is_analysis(out / JSON):
        foreign = [name for name in names if name in FILES]
    if foreign:
        raise SparkJobError(f"{out} holds {foreign[0]}, which no analysis wrote. {_NEXT}")


def _is_analysis(path: Path) -> bool:
    try:
        found = json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError):
        return False
    return isinstance(found, dict) and found.get("format") == FORMAT


def write_hours(out: Path, schema: pa.Schema, hours: Iterable[pa.RecordBatch]) -> None:
    """Write the figures of every hour, to be put into place by `write_report`. Raises: OSError."""
    with pq.ParquetWriter(_part(out, HOURS), schema) as writer:
        for batch in hours:
            writer.write_batch(batch)


def write_report(out: Path, analysis: Analysis) -> None:
    """Write the report, and put all files into place. Raises: OSError."""
    _part(out, JSON).write_text(json.dumps(analysis.fields(), indent=1) + "\n")
    _part(out, PAGE).write_text(render_analysis(analysis), "utf-8")
    for name in FILES:
        _part(out, name).replace(out / name)


def _part(out: Path, name: str) -> Path:
    return out / f"{name}.part"
