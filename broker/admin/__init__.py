"""`ledgermq.v1.AdminService`: changes, reads, message search, dumps, promotion.

Owns the calls of operators. Must not: be needed for sending or receiving.

Begin with `admin_service.py`. Then: `changes.py`, `topic_holds.py`, `listings.py`, `deliveries.py`,
`message_search.py`, `promotion.py`.
"""
