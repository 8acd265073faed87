"""Starting over from another node's state: what retention left behind, and what a promotion left behind.

Owns both ends of ResetService and the decision to reset. Must not: touch the old state before the new one is whole and
durable.

Begin with `decision.py`. Then: `receiver.py`, `sender.py`, `checkpoint/transfer.py`, `succession.py`.
"""
