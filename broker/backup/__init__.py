"""Dumps as a stream of files (D20), of a running and of a stopped node, and the history that a dump contains.

Owns the choice of a dump's end. Must not: write into a data folder. (`broker/restore.py` restores dumps.)

Begin with `stream.py`. Then: `dump_files.py`, `offline.py`, `history.py`.
"""
