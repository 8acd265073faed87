"""Segments and messages that go (D8): by age, by a full disk, by a topic's own time.

Owns when something is deleted. Must not: delete on a jump of a clock, above a checkpoint, or on one node alone.

Begin with `policy.py`. Then: `protection.py`, `keeper.py`, `topic_retention.py`.
"""
