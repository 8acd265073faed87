"""`ledgermq demo`: a broker group loses its leader but no message, shown step by step.

Owns: the books of what was sent and received, and the eight steps. Must not: be needed by anything else.

Begin with `run.py`. Then: `demo_cluster.py`, `load.py`, `ledger.py`, `failures.py`, `checks.py`.
"""
