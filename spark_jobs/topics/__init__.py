"""Topics as Spark tables: the sink of `format("ledgermq")`.

Owns: options, schemas and the translation between Arrow columns and messages. Must not: decide what is
stored; `ledgermq.client.batches` does. Executors import it, so no module creates a Spark session.

Begin with `sink.py`. Then: `sink_options.py`, `row_columns.py`.
"""
