"""One producer: outbox, lanes, window, stream.

Owns the choice of queues, batches, retries without duplicates, receipts. Must not: read messages.

Begin with `producer.py`. Then: `outbox.py`, `lanes.py`, `send_window.py`, `produce_stream.py`, `retry_policy.py`.
"""
