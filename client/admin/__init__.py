"""Operations as library calls: topics, consumer groups, broker groups, status, traces, dumps.

Owns: what the `ledgermq` commands do. Must not: print, or ask a person.

Begin with `admin.py`. Then: `broker_groups.py`, `consumer_progress.py`, `cluster_status.py`,
`status_report.py`.
"""
