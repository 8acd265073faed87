"""The assembly of one member of a group: RaftNode, and who is told what.

Owns start and stop in order, and what the node tells of itself. Must not: hold rules of consensus or of storage.

Begin with `node.py`. Then: `core_events.py`, `gate.py`, `status_view.py`.
"""
