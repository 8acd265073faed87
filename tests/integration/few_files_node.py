"""A broker node that may open 256 files: `python -m tests.integration.few_files_node [FLAGS]`.

Takes the flags of `python -m ledgermq.broker`.
"""

from __future__ import annotations

import resource
import sys

from ledgermq.broker.__main__ import main

FILES = 256

if __name__ == "__main__":
    resource.setrlimit(resource.RLIMIT_NOFILE, (FILES, FILES))
    raise SystemExit(main(sys.argv[1:]))
