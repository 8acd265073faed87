"""Topics on Spark: `format("ledgermq")`, and the jobs of `ledgermq spark`.

Owns: the options, offsets, plan and columns of the source. Must not: verify dumps; the folder above does.

Begin with `data_source.py`. Then: `read_plan.py`, `message_columns.py`, `topic_look.py`.
"""
