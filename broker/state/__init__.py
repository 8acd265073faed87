"""Replicated state machine: pure. All nodes that apply the same entries reach the same state.

Owns: topics, consumer groups, queues, consumption, leases, deduplication, memberships, holds, and the
commands that change them.
Must not: read a clock, a file, random numbers or settings that may differ between nodes.

Begin with `machine.py`. Then: `commands.py`, `effects.py`, `consumption.py`, `consume_queue.py`, `dedup.py`,
`batch_writes.py`, `holds.py`.
"""
