"""What only the leader does: append in turns, select messages, lease them, share queues out to exclusive consumers.

Owns the append pipeline, the leader's view of undecided turns, selection, releases, and the coordinator of exclusive
consumer groups (D14). Must not: answer a call; services in `native`, `official` and `admin` do.

Begin with `pipeline.py`. Then: `works.py`, `leader_view.py`, `selection.py`, `grant_plan.py`, `coordination.py`.
"""
