"""Client ports of a node: listeners, limits, TLS, HTTP probes.

Owns which connections are accepted and how many. Must not: know what is served behind a port.

Begin with `listeners.py`. Then: `port_policy.py`, `open_connections.py`, `tls_judge.py`, `http.py`.
"""
