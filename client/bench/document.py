"""JSON document of a run of `ledgermq bench`: versions, machine, cluster, settings, figures.

Owns: the format of the document. Must not: measure, print.
"""

from __future__ import annotations

import json
import os
import platform
import time
from collections.abc import Sequence
from dataclasses import asdict
from importlib import metadata
from pathlib import Path
from typing import Any

from ..cluster.topic_route import BrokerGroup
from ..errors import UsageError
from .figures import Figures
from .workloads import TITLES, Settings

_PACKAGES = ("ledgermq", "grpcio", "protobuf", "numpy", "uvloop")


def document(
    settings: Settings, topic: str, queues: int, groups: Sequence[BrokerGroup], figures: Sequence[Figures]
) -> dict[str, Any]:
    """Return the document. `queues`: number of queues of the topic, over all broker groups."""
    return {
        "taken": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "versions": versions(),
        "machine": machine(),
        "cluster": [
            {"group": group.name, "nodes": [node.node_id for node in group.nodes], "leader": group.leader_id}
            for group in groups
        ],
        "topic": topic,
        "queues": queues,
        "settings": asdict(settings),
        "workloads": [{"title": TITLES[each.workload], **each.as_dict()} for each in figures],
    }


def versions() -> dict[str, str]:
    """Return the versions of Python, LedgerMQ, and the packages that influence its speed."""
    found = {"python": platform.python_version()}
    for name in _PACKAGES:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return found


def machine() -> dict[str, Any]:
    """Describe this machine: figures of different machines are not comparable."""
    return {
        "cores": os.cpu_count(),
        "processor": _processor(),
        "memory_mib": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") >> 20,
        "system": f"{platform.system()} {platform.release()}",
    }


def check_file(path: str) -> None:
    """Check before the run that the document can be written. Raises: UsageError."""
    if path in ("", "-"):
        return
    file = Path(path)
    if file.is_dir():
        raise UsageError(f"--json {path} is a folder", "", f"Name a file: --json {file / 'bench.json'}")
    if not file.parent.is_dir():
        raise UsageError(
            f"the folder {file.parent} does not exist", "", f"Make it first: mkdir -p {file.parent}"
        )
    if not os.access(file if file.exists() else file.parent, os.W_OK):
        raise UsageError(f"{path} cannot be written", "", "Name another file, or - for the terminal")


def write(path: str, content: dict[str, Any]) -> None:
    Path(path).write_text(json.dumps(content, indent=1, ensure_ascii=False) + "\n")


def _processor() -> str:
    """Return the name of the processor, as far as the system provides it."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(names, "") or platform.processor() or platform.machine()
