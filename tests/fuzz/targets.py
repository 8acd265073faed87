"""All targets. An input is what stands in a file or comes over a connection; where a decoder is told more than bytes (a count,
a kind), the input's first byte says so. A new decoder gets a target: test_decoders.py finds those that none reaches."""

from __future__ import annotations

from typing import Final

from .broker_targets import BROKER_TARGETS
from .client_targets import CLIENT_TARGETS
from .fuzzer import Target
from .log_targets import LOG_TARGETS

TARGETS: Final[dict[str, Target]] = {
    target.name: target for target in (*LOG_TARGETS, *BROKER_TARGETS, *CLIENT_TARGETS)
}
