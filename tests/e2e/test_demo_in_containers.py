"""The demo with the nodes in containers."""

from __future__ import annotations

from pathlib import Path

import pytest

from .processes import run
from .test_demo import check_success


@pytest.mark.docker
@pytest.mark.spark
def test_the_demo_in_containers_succeeds(tmp_path: Path, images: None) -> None:
    done = run(["demo", "--docker", "--messages", "20000", "--data", str(tmp_path / "demo")])
    assert done.returncode == 0, done.stdout + done.stderr
    check_success(done.stdout)
