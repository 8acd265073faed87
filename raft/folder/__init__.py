"""The data folder of one node: opening, recovery, quarantine and creation. Blocking code.

Owns: which data is trusted after a stop (rule P18), when a node's vote counts (P19), and the folders that
recovery, promotion and restore create. Must not: run while the node serves, except through the tools in
`raft/reset`.

Begin with `storage.py`. Then: `opening.py`, `recovery.py`, `bootstrap.py`, `quarantine.py`,
`group_recovery.py`.
"""
