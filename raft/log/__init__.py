"""The CommitLog: Raft log and message store in one (decision D3).

Owns segments, index files, the writer and the flusher, and the hard state and identity of a data folder.
Must not: know about peers or decide what is committed. An entry is durable only once the flusher has reported
it.

Begin with `commit_log.py`. Then: `writer.py`, `flusher.py`, `segment.py`, `reads.py`, `hard_state.py`,
`rewrite.py`.
"""
