"""The command line loads gRPC with settings of its own, and leaves the environment as it was."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

#: Prints what gRPC reads when it is loaded, runs a command, and prints what changed in the environment.
WATCH = """
import os, sys
from ledgermq.client.cli import run_cli

class Watch:
    def find_spec(name, *_):
        if name == "grpc":
            print("loaded with", os.environ.get("GRPC_VERBOSITY"), os.environ.get("GRPC_EXPERIMENTS"))

sys.meta_path.insert(0, Watch)
before = dict(os.environ)
run_cli(["topic", "--help"])
print("changed:", dict(os.environ.items() ^ before.items()))
"""


@pytest.mark.parametrize(
    ("environment", "read"),
    [
        ({}, "ERROR -event_engine_client,-event_engine_listener"),
        ({"GRPC_VERBOSITY": "INFO"}, "INFO -event_engine_client,-event_engine_listener"),
        ({"GRPC_VERBOSITY": "INFO", "GRPC_EXPERIMENTS": ""}, "INFO "),
    ],
)
def test_grpc_is_loaded_with_the_settings_that_the_environment_does_not_have(
    environment: dict[str, str], read: str
) -> None:
    plain = {name: value for name, value in os.environ.items() if not name.startswith("GRPC_")}
    done = subprocess.run(
        [sys.executable, "-c", WATCH], env=plain | environment, check=True, capture_output=True, text=True
    )
    assert f"loaded with {read}\n" in done.stdout
    assert done.stdout.endswith("changed: {}\n")
