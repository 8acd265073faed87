"""Damaged ranges of the log: found, fetched from a peer, verified and rewritten; at start and while the node runs.

Owns the scrubber and both ends of the Refetch call. Must not: truncate, or believe a peer's bytes before their chain of
checksums fits (rule P18).

Begin with `care.py`. Then: `while_running.py`, `from_peers.py`, `refetch.py`, `at_start.py`, `scrubber.py`.
"""
