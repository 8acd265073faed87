"""`ledgermq.v1.LogService`: produce and fetch streams, offsets, membership of exclusive consumers.

Owns the streams of LedgerMQ's own client. Must not: know the official protocol.

Begin with `log_service.py`. Then: `produce.py`, `fetch.py`, `consumer_offsets.py`, `batches.py`,
`membership.py`.
"""
