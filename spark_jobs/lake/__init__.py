"""The lake: topics as Parquet files that anyone may read, written exactly once, verified, restored (D42).

Owns: the folder of a lake with its log of commits, the job that fills it, compaction, `--verify`, restore.
Must not: read or write topics by other ways than `topics/` and the client.

Begin with `lake_state.py` (what a lake holds) and `lake_folder.py` (how it changes). On executors:
`parquet_files.py`, `row_checksums.py`, `broker_ranges.py`. On the driver: `archive_job.py`, `restore_job.py`,
`lake_verification.py`, and `lake_command.py` for the command line.
"""
