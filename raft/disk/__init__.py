"""Files as small protocols: real ones, in memory, aligned page writes, and threads for blocking work.

Owns the calls of the operating system that storage needs, and records that are replaced as a whole. Must not: know an
entry, a term or a peer. Everything above takes a `FileSystem`, so that tests can break any single call.

Begin with `files.py`. Then: `checked_file.py`, `page_writer.py`, `overlay_files.py`.
"""
