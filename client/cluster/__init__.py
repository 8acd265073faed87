"""Nodes and leaders of a cluster: channels, routes, unary calls.

Owns: every call that is safe to repeat, and the client's knowledge of broker groups. Must not: know producers
or consumers.
Begin with `calls.py`. Then: `leader_tracker.py`, `routes.py`, `topic_route.py`, `channels.py`,
`every_group.py`.
"""
