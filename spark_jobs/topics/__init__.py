"""Topics on Spark: `format("ledgermq")`, read and written, and the jobs of `ledgermq spark`.

Owns: options, offsets, plan and columns of the source; options, schema and rows of the sink; the analysis of
topics.
Must not: verify dumps (the folder above); decide what is stored (`ledgermq.client.batches`);
create a session in what executors import.

Begin with `data_source.py`. Reading: `read_plan.py`, `message_columns.py`, `topic_look.py`. Writing:
`sink.py`, `sink_options.py`, `row_columns.py`. Both: `given_options.py`. Jobs: `query.py`; `analyze.py` with
`topic_analysis.py`.
"""
