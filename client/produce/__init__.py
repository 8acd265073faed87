"""Producer: outbox, lanes, send window, Produce stream.

Owns: queue selection, batching, retries without duplicates, receipts. Must not: read messages.

Begin with `producer.py`. Then: `outbox.py`, `send_window.py`, `produce_stream.py`,
`retry_policy.py`.
"""
