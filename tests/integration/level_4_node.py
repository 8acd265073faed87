"""A broker node of feature level 4: `python -m tests.integration.level_4_node [FLAGS]`.

Takes the flags of `python -m ledgermq.broker`. It says of itself what a build says that cannot write batches
exactly once. The rest is this build's, so it stands for such a build only while it follows.
"""

from __future__ import annotations

import sys

from ledgermq.broker import node
from ledgermq.broker.__main__ import main
from ledgermq.broker.service import features

if __name__ == "__main__":
    for module in (node, features):
        vars(module)["SUPPORTED"] = 4
    raise SystemExit(main(sys.argv[1:]))
