"""Bytes and names of both protocols: pure.

Owns what a request may look like, receipt handles, routes and status codes. Must not: know a service or a node.

Begin with `validation.py`. Then: `official.py`, `native.py`, `receipt_handle.py`, `status.py`.
"""
