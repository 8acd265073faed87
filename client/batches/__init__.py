"""Batches that are written exactly once, whatever is repeated (D39): the producer of Spark's sink.

Owns: attempts at the parts of a batch, the sections that they send, and reading back what earlier attempts
stored. Must not: know Spark or Arrow.

Begin with `part_writer.py`. Then: `row_packer.py`, `section_sender.py`, `stored_rows.py`.
"""
