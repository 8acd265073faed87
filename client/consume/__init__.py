"""Fetching: the pull consumer, the simple consumer, and what every reader shares.

Owns fetch streams, buffers, positions and leases. Must not: run a listener; `push` does.

Begin with `pull_consumer.py`. Then: `queue_fetcher.py`, `fetch_stream.py`, `fetch_buffer.py`,
`simple_consumer.py`.
"""
