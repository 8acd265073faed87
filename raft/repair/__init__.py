"""Repair of damaged log ranges, at start or while running: found, fetched, verified, rewritten.

Owns the scrubber and both ends of the Refetch call. Must not: truncate, or trust a peer's bytes before their
checksum chain matches (rule P18).

Begin with `care.py`. Then: `while_running.py`, `from_peers.py`, `refetch.py`, `at_start.py`, `scrubber.py`.
"""
