"""The development container runs what exists, and brings what the preflight asks for."""

from __future__ import annotations

import json
import re
import tomllib
from pathlib import Path
from typing import Any, Final

from ledgermq.client.local.ports import NAMESERVER_PORT, NodePorts

ROOT: Final = Path(__file__).parent.parent
CONTAINER: Final[dict[str, Any]] = json.loads((ROOT / ".devcontainer/devcontainer.json").read_text())
FEATURE: Final = "ghcr.io/devcontainers/features/"


def version_of(feature: str) -> str:
    """Return the version of a feature that is asked for."""
    (settings,) = (
        value for name, value in CONTAINER["features"].items() if name.startswith(FEATURE + feature)
    )
    return str(settings.get("version", ""))


def test_its_commands_are_targets_of_the_makefile() -> None:
    targets = set(re.findall(r"^\.PHONY: (.*)$", (ROOT / "Makefile").read_text(), re.MULTILINE)[0].split())
    commands = [value for name, value in CONTAINER.items() if name.endswith("Command")]
    used = [verb for command in commands for verb in re.findall(r"\bmake ([\w-]+)", command)]
    assert "setup" in used
    assert set(used) <= targets


def test_it_has_the_oldest_python_and_java_that_the_project_supports_and_docker() -> None:
    python = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["requires-python"]
    assert f"python:1-{python.removeprefix('>=')}-" in CONTAINER["image"]
    oldest = re.findall(r"^JAVA_MIN = (\d+)$", (ROOT / "deploy/preflight.py").read_text(), re.MULTILINE)
    assert [version_of("java:")] == oldest
    assert any(name.startswith(FEATURE + "docker-in-docker:") for name in CONTAINER["features"])


def test_it_forwards_the_ports_of_ledgermq_up() -> None:
    assert CONTAINER["forwardPorts"] == [NAMESERVER_PORT, NodePorts().messaging]
