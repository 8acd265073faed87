"""Checkpoints of the state: layout, store, schedule, transfer to a follower, and the check of queue files.

Owns: when the state is durable, and up to which entry.   Must not: let the log be deleted above that entry.

Begin with `store.py`. Then: `layout.py`, `schedule.py`, `transfer.py`, `queue_check.py`.
"""
