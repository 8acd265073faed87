"""Fetching: pull consumer, simple consumer, and the parts that all readers share.

Owns: fetch streams, buffers, positions and leases. Must not: run a listener; `push` does.

Begin with `pull_consumer.py`. Then: `queue_fetcher.py`, `fetch_stream.py`, `fetch_buffer.py`,
`simple_consumer.py`.
"""
