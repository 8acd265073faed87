"""Wire formats and names of both protocols: pure.

Owns: the validation of requests, receipt handles, routes and status codes.   Must not: know a service or a
node.

Begin with `validation.py`. Then: `official.py`, `native.py`, `receipt_handle.py`, `status.py`.
"""
