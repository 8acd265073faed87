"""`ledgermq demo`: a group that loses its leader and no message, as a person watches it.

Owns the ledger of what was sent and seen, and the eight steps. Must not: be needed by anything else.

Begin with `run.py`. Then: `demo_cluster.py`, `load.py`, `ledger.py`, `failures.py`, `checks.py`.
"""
