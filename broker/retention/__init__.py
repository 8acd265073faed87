"""Retention of segments and messages (D8): by age, by disk usage, by the retention time of a topic.

Owns: the decision when something is deleted.   Must not: delete because of a clock jump, above a checkpoint,
or on one node alone.

Begin with `policy.py`. Then: `protection.py`, `keeper.py`, `topic_retention.py`.
"""
