"""`python -m ledgermq.client.cli`: the command `ledgermq`."""

from __future__ import annotations

from . import main

if __name__ == "__main__":
    main()
