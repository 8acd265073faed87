"""File access as small protocols: real files, in-memory overlays, aligned writes, blocking work.

Owns the operating system calls that storage needs, and records that are replaced as a whole. Must not: know
an entry, a term or a peer. Everything above takes a `FileSystem`, so tests can break any single call.

Begin with `files.py`. Then: `checked_file.py`, `page_writer.py`, `overlay_files.py`.
"""
