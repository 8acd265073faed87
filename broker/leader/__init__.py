"""Work of the leader: append in turns, select and lease messages, assign queues to exclusive consumers.

Owns: the append pipeline, the leader's view of undecided turns, selection, releases, and the coordinator of
queue-exclusive consumer groups (D14).
Must not: answer a call; the services in `native`, `official` and `admin` do.

Begin with `pipeline.py`. Then: `leader_view.py`, `selection.py`, `releases.py`, `coordination.py`,
`coordinator.py`.
"""
