"""Reads of stored messages on this node: the log, the queue files, the key index (D22), long polls.

Owns: reads of applied entries.   Must not: know the leader, or write into the log.

Begin with `log_reader.py`. Then: `consume_queue_files.py`, `read_memory.py`, `polls.py`, `live_readers.py`,
`key_index.py`, `key_runs.py`.
"""
