"""A broker node whose disk stalls on a test's demand: `python -m tests.integration.gated_disk_node [FLAGS]`.

Takes the flags of `python -m ledgermq.broker`; the gates are those of tests/gated_disk.py.
"""

from __future__ import annotations

import sys

from ledgermq.broker.__main__ import main
from tests.gated_disk import GatedFileSystem

if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:], files=GatedFileSystem()))
