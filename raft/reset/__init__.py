"""Reset: a node starts over from another node's state, after retention or a promotion superseded its own.

Owns both ends of ResetService and the decision to reset. Must not: touch the old state before the new one is
complete and durable.

Begin with `decision.py`. Then: `receiver.py`, `sender.py`, `state_transfer.py`, `succession.py`.
"""
