"""gRPC settings of our own processes: the command line, and tests and benchmarks that stand in for it.

They apply to the whole process and are read once, when gRPC is loaded. The client's own connections do not
use gRPC's core: what does are the start of local clusters, and grpc.aio's peers in tests and benchmarks.
Brokers and nameservers have settings of their own in their `__main__`.

* no "Got goaway" on stderr when a broker stops: gRPC's reports reach us as exceptions
* without the event engine's own threads, a message wakes one thread less (docs/performance.md)
"""

from __future__ import annotations

import importlib
import os
from typing import Final

_SETTINGS: Final = {
    "GRPC_VERBOSITY": "ERROR",
    "GRPC_EXPERIMENTS": "-event_engine_client,-event_engine_listener",
}


def load_grpc() -> None:
    """Load gRPC with these settings unless the environment has others. Must come before any import of it.

    They are set for the loading only, so that processes started by this one decide for themselves.
    """
    ours = _SETTINGS.keys() - os.environ.keys()
    os.environ.update({name: _SETTINGS[name] for name in ours})
    try:
        importlib.import_module("grpc")
    finally:
        for name in ours:
            del os.environ[name]
