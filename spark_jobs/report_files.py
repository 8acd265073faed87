"""Output files of a verification: findings, blocks, broker groups as Parquet, `report.json`, `report.html`.

Owns: their names and schemas. The page needs no network: it is one file that includes styles and drawing.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Final

import pyarrow as pa
import pyarrow.parquet as pq

from .report_page import render_page
from .verdict import DumpVerdict

FINDINGS_SCHEMA: Final = pa.schema(
    [
        ("node", pa.string()),
        ("kind", pa.string()),
        ("severity", pa.string()),
        ("index", pa.int64()),
        ("offset", pa.int64()),
        ("end_offset", pa.int64()),
        ("count", pa.int64()),
        ("path", pa.string()),
        ("detail", pa.string()),
        ("in_copy", pa.bool_()),
        ("line", pa.string()),
    ]
)


def write_report(verdict: DumpVerdict, blocks: pa.Table, out: Path) -> None:
    """Write all files into `out`, replacing older ones. Raises: OSError."""
    out.mkdir(parents=True, exist_ok=True)
    fields = verdict.fields()
    pq.write_table(pa.Table.from_pylist(fields["findings"], FINDINGS_SCHEMA), out / "findings.parquet")
    pq.write_table(blocks, out / "blocks.parquet")
    nodes = [{"cluster": verdict.cluster, "group": verdict.group} | node for node in fields["nodes"]]
    pq.write_table(pa.Table.from_pylist(nodes), out / "groups.parquet")
    (out / "report.json").write_text(json.dumps(fields, indent=1) + "\n")
    (out / "report.html").write_text(render_page(verdict))
