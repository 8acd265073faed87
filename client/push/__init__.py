"""Push consumer: membership, owned queues, listeners, offset commits.

Owns: which message a listener gets when, and what is committed. Must not: commit unfinished messages.

Begin with `push_consumer.py`. Then: `push_group.py`, `membership_stream.py`, `owned_queue.py`,
`listener_calls.py`.
"""
