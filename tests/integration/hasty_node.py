"""A broker node that deletes quickly: `python -m tests.integration.hasty_node [FLAGS]`.

Takes the flags of `python -m ledgermq.broker`. It checks its disk, what is to be deleted, and whether a
checkpoint is due, ten times as often: for tests of something other than when retention does what.
"""

from __future__ import annotations

import sys

from ledgermq.broker.__main__ import main
from ledgermq.broker.checkpoint import schedule as checkpointing
from ledgermq.broker.retention import keeper as retention

TIMES = 10

if __name__ == "__main__":
    for module, name in ((retention, "CHECK_INTERVAL"), (checkpointing, "_LOOK_INTERVAL")):
        setattr(module, name, getattr(module, name) / TIMES)
    raise SystemExit(main(sys.argv[1:]))
