r"""The Raft state machine of one group: pure. Inputs go in, decisions come out.

Owns every decision about terms, votes, commit, reads and log time. Must not: read a clock, a file or a socket, know
bytes, or start a thread. The caller (raft/drive) carries out what it decides, in the order of `outputs.py`.

Theory of operation
-------------------
A group elects at most one leader per term. A node votes once per term, for a candidate whose log is at least as far as
its own. The leader appends entries; an entry of its own term is committed once a quorum holds it durably, and with it
all entries before it. A leader never overwrites its own log; a follower cuts off what contradicts the leader's.

    from \ on   election timeout   majority grants   higher term seen   append of this term's leader
    follower    pre-candidate      -                 follower           follower
    pre-cand.   pre-candidate      candidate         follower           follower
    candidate   pre-candidate      leader            follower           follower
    leader      - (check quorum)   -                 follower           (impossible: one leader per term)

A pre-candidate asks whether it would win, and changes no term: a node that was cut off disturbs nobody when it comes
back. A learner takes entries and never votes. Nothing is sent before what it promises is durable: `persist_queue.py`
holds messages back until the storage has reported the operation that they depend on.

Begin with `machine.py`. Then: `state/machine.py`, `follower.py`, `candidate.py`, `leader.py`, `replication.py`, `push/finished_prefix.py`.
"""
