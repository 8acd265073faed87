"""Frames between the nodes of a group: greeting, checksums, two streams to each peer.

Owns what a stranger may send before anything of it is believed, and the watch over streams that stand still. Must not:
decide anything of consensus, or queue without a bound.

Begin with `links.py`. Then: `hello.py`, `greeting.py`, `out_stream.py`, `frame_stream.py`, `wire.py`.
"""
