"""Loads gRPC with the settings of this client. Whatever is imported first of the package imports this first.

gRPC reads them once, when it is loaded: no "Got goaway" on stderr whenever a broker stops; what it has to say reaches us as
exceptions. And without the event engine's own threads a message on a stream wakes one thread less (docs/performance.md).
They are set for the loading only, so that processes started by this one decide for themselves.
"""

from __future__ import annotations

import os
from typing import Final

_SETTINGS: Final = {
    "GRPC_VERBOSITY": "ERROR",
    "GRPC_EXPERIMENTS": "-event_engine_client,-event_engine_listener",
}
_ours = _SETTINGS.keys() - os.environ.keys()
os.environ.update({name: _SETTINGS[name] for name in _ours})
try:
    import grpc  # noqa: F401
finally:
    for name in _ours:
        del os.environ[name]
