"""Assembly of one broker group member: RaftNode, and the routing of events between its parts.

Owns start and stop in order, and what the node reports about itself. Must not: hold rules of consensus or of
storage.

Begin with `raft_node.py`. Then: `routing.py`, `status_view.py`.
"""
