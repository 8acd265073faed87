"""A dump as a stream of files (D20), of a running node and of a stopped one, and what a dump tells of its past.

Owns the point up to which is dumped. Must not: write into a data folder. (The way back is `broker/restore.py`.)

Begin with `stream.py`. Then: `dump_files.py`, `offline.py`, `history.py`.
"""
