"""Shared TCP port: accepts connections of several protocols, tells them apart, passes them on, counts.

Owns connection limits and the recognition of a TLS hello. Must not: know Raft; the broker's client ports use
it too.

Begin with `front.py`. Then: `handover.py`, `acceptor.py`, `tls_records.py`, `counts.py`.
"""
