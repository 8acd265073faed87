"""The one place where the core is fed and polled.

Owns the order of log, messages and apply, the clock, the lead and the vote as the rest of the node sees them. Must not:
decide what the core decides.

Begin with `driver.py`. Then: `ticker.py`, `applier.py`, `cluster/known_leader.py`, `voting_rights.py`, `read_batcher.py`.
"""
