"""What all services share: the node's parts, handlers, features, sessions, probes, reports to the leader.

Owns the context that services get, and what a node tells of itself. Must not: implement a call of a protocol.

Begin with `context.py`. Then: `handlers.py`, `features.py`, `sessions.py`, `peers.py`, `probes.py`, `disk_steps.py`.
"""
