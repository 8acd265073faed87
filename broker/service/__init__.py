"""Parts that several services share: answers to errors, creation by use, read barriers, sessions, probes.

Owns the rules that hold for every call, and what a node reports about itself. Must not: implement a call of a
protocol.

Begin with `answers.py`. Then: `broker_group_identity.py`, `creation.py`, `read_barrier.py`, `features.py`,
`sessions.py`, `probes.py`.
"""
