"""The push consumer: membership, owned queues, listeners, commits of offsets.

Owns which message a listener gets when, and what is stored as finished. Must not: commit what is not finished.

Begin with `push_consumer.py`. Then: `push_group.py`, `membership_stream.py`, `owned_queue.py`, `listener_calls.py`.
"""
