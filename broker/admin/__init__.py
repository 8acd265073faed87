"""`ledgermq.v1.AdminService`: changes, reads, look-up of messages, dumps, promotion.

Owns the calls of operators. Must not: be needed for sending or receiving.

Begin with `service.py`. Then: `changes.py`, `reads.py`, `deliveries.py`, `message_query.py`, `promotion.py`.
"""
