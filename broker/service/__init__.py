"""What several services need: answers to errors, creation by use, read barriers, sessions, probes, reports to the leader.

Owns the rules that hold for every call, and what a node tells of itself. Must not: implement a call of a protocol.

Begin with `answers.py`. Then: `broker_group_identity.py`, `creation.py`, `read_barrier.py`, `features.py`, `sessions.py`,
`probes.py`.
"""
