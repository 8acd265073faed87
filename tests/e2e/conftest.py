"""What all end-to-end tests share: the root folder, and the Docker engine, which CI must have."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
#: Limit of a test for which the images may have to be built, on a machine that does not even have their base.
BUILD_SECONDS = 1200


def docker_answers() -> bool:
    """Return whether a Docker engine can be used from here."""
    try:
        return (
            subprocess.run(["docker", "info"], capture_output=True, timeout=30, check=False).returncode == 0
        )
    except (OSError, subprocess.TimeoutExpired):
        return False


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Without an engine, tests marked `docker` are skipped; in CI they run, and fail."""
    for item in items:
        if "images" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.timeout(BUILD_SECONDS))
    marked = [item for item in items if item.get_closest_marker("docker")]
    if not marked or os.environ.get("CI") == "true" or docker_answers():
        return
    for item in marked:
        item.add_marker(
            pytest.mark.skip(reason="there is no Docker engine here; start one to run this: dockerd")
        )


@pytest.fixture(scope="session")
def images() -> None:
    """Build the images of this state of the code."""
    done = subprocess.run(["deploy/build_images.sh"], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
