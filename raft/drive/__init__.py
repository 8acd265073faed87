"""The driver: the only place that feeds and polls the core.

Owns: the order of log, messages and apply; the clock; leadership and voting right as the rest of the node
sees them. Must not: decide what the core decides.

Begin with `driver.py`. Then: `ticker.py`, `applier.py`, `leadership.py`, `voting_rights.py`,
`read_batcher.py`.
"""
