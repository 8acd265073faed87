"""Stored messages of this node: the log, the queue files, the key index (D22), and who waits for news.

Owns reads of what is applied here. Must not: know who leads, or write into the log.

Begin with `log_reader.py`. Then: `consume_queue_files.py`, `polls.py`, `live_readers.py`, `key_index.py`, `key_runs.py`.
"""
