"""A broker node on storage that loses unsynced data: `python -m tests.integration.power_cut_node [FLAGS]`.

`kill -9` of this process is a power cut. Takes the flags of `python -m ledgermq.broker`;
LEDGERMQ_TEST_LYING_DISK=1 makes fdatasync do nothing, which must lose data: otherwise the test that uses this
proves nothing.
"""

from __future__ import annotations

import os
import sys

from ledgermq.broker.__main__ import main
from tests.volatile_disk import VolatileFileSystem

if __name__ == "__main__":
    lying = os.environ.pop("LEDGERMQ_TEST_LYING_DISK", "") == "1"
    raise SystemExit(main(sys.argv[1:], files=VolatileFileSystem(ignore_fdatasync=lying)))
