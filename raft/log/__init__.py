"""The CommitLog: the Raft log and the message store in one (decision D3).

Owns segments, index files, the writer and flusher, hard state and identity of a folder. Must not: know a peer, or
decide what is committed. Nothing is durable before the flusher says so.

Begin with `commit_log.py`. Then: `writer.py`, `flusher.py`, `segment.py`, `reads.py`, `hard_state.py`, `rewrite.py`.
"""
