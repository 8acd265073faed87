"""Local cluster: processes on this machine, with their plan, ports, start and stop.

Owns: the child processes of `ledgermq up`. Must not: end a process that it did not start.

Begin with `cluster.py`. Then: `plan.py`, `processes.py`, `ports.py`.
"""
