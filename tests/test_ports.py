"""The ports that tests get: free, below those of connections, and never those of a run beside this one."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path

from ledgermq.client.local.ports import NodePorts

from .ports import free_ports

ROOT = Path(__file__).resolve().parent.parent
ASK = "from tests.ports import free_ports; print(*free_ports(300), flush=True); input()"


def test_processes_beside_each_other_get_different_ports() -> None:
    own = set(free_ports(300))
    process = subprocess.Popen(
        [sys.executable, "-c", ASK],
        cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env={**os.environ},
    )  # fmt: skip
    with process:
        assert process.stdin is not None and process.stdout is not None
        other = set(map(int, process.stdout.readline().split()))
        process.stdin.write("\n")
    assert len(own) == len(other) == 300
    assert not own & other
    assert max(own | other) < 32_768
    assert min(own | other) > max(NodePorts().shifted(1000).all())


def test_a_port_comes_again_only_after_others() -> None:
    first, second = free_ports(200), free_ports(200)
    assert not set(first) & set(second)


def test_a_port_that_somebody_uses_is_left_out() -> None:
    (port,) = free_ports(1)
    with socket.socket() as user:
        user.bind(("127.0.0.1", port))
        user.listen()
        given = {each for _ in range(12) for each in free_ports(100)}  # more than once round
    assert len(given) > 400
    assert port not in given
