"""A broker node on a slow disk: `python -m tests.integration.slow_disk_node [FLAGS]`.

Takes the flags of `python -m ledgermq.broker`; every flush takes LEDGERMQ_TEST_FSYNC_MS longer (default 200).
"""

from __future__ import annotations

import os
import sys

from ledgermq.broker.__main__ import main
from tests.slow_disk import SlowFileSystem

if __name__ == "__main__":
    delay_ms = int(os.environ.pop("LEDGERMQ_TEST_FSYNC_MS", "200"))
    raise SystemExit(main(sys.argv[1:], files=SlowFileSystem(delay_ms / 1000)))
