"""List of all targets. An input is the contents of a file or the bytes of a connection.

If a decoder takes more than bytes (a count, a kind), the input's first byte encodes it. A new decoder gets a
target: test_decoders.py finds decoders that none reaches.
"""

from __future__ import annotations

from typing import Final

from .broker_targets import BROKER_TARGETS
from .client_targets import CLIENT_TARGETS
from .fuzzer import Target
from .log_targets import LOG_TARGETS
from .rpc_targets import RPC_TARGETS
from .stream_targets import STREAM_TARGETS

TARGETS: Final[dict[str, Target]] = {
    target.name: target
    for target in (*LOG_TARGETS, *BROKER_TARGETS, *CLIENT_TARGETS, *RPC_TARGETS, *STREAM_TARGETS)
}
