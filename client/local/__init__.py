"""A cluster as processes on this machine: plan, ports, start, watch, stop.

Owns the children that `ledgermq up` starts. Must not: end a process that it did not start.

Begin with `cluster.py`. Then: `plan.py`, `processes.py`, `ports.py`.
"""
