"""Frames between the nodes of a broker group: greeting, checksums, two streams to each peer.

Owns how much an unauthenticated peer may send, and the detection of stalled streams. Must not: decide
anything of consensus, or queue without a bound.

Begin with `links.py`. Then: `hello.py`, `out_stream.py`, `frame_stream.py`, `wire.py`.
"""
