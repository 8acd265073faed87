"""An application may use the official Python client and ours in one process, whichever it imports first."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from .both_clients import COUNT, LIBRARIES
from .cluster import Cluster

SCRIPT = Path(__file__).with_name("both_clients.py")


@pytest.mark.parametrize("first", LIBRARIES)
def test_each_client_receives_what_the_other_one_sent(first: str, tmp_path: Path) -> None:
    with Cluster(tmp_path, nodes=1) as cluster:
        leader = cluster.wait_leader()
        addresses = [cluster.nameserver, cluster.address(leader, "messaging")]
        done = subprocess.run(
            [sys.executable, str(SCRIPT), first, *addresses, "letters"],
            env={**os.environ, "HOME": str(tmp_path)},  # where the official client writes its log
            capture_output=True, text=True, timeout=180, check=False,
        )  # fmt: skip
    everything = list(range(COUNT))
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout == f"official {everything}\nours {everything}\n"
    assert "Traceback" not in done.stderr, done.stderr
