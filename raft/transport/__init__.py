"""Streams between the nodes of a broker group: greeting, checksums, two calls to each peer.

Owns how much an unauthenticated peer may send, and the detection of stalled streams. Must not: decide
anything of consensus, or queue without a bound.

Begin with `links.py`. Then: `hello.py`, `out_stream.py`, `call_streams.py`, `wire.py`. The version before:
`former_streams.py`, `frame_stream.py`, `checked_frame.py`.
"""
