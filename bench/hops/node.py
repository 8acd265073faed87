"""A broker node with stamps, which it leaves beside its data folder when it is stopped."""

from __future__ import annotations

import sys
from pathlib import Path

from ledgermq.broker.__main__ import main

from .probe import install, store

if __name__ == "__main__":
    stamps = install()
    code = main()
    store(stamps, Path(sys.argv[sys.argv.index("--data") + 1]).with_suffix(".stamps"))
    raise SystemExit(code)
