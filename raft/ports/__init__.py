"""A TCP port that several protocols share: accept, look at the first bytes, pass on, count.

Owns limits of connections and the recognition of a TLS hello. Must not: know Raft; the broker's client ports use it too.

Begin with `ports/tls_judge.py`. Then: `acceptor.py`, `tls_records.py`, `unix_door.py`, `counts.py`.
"""
