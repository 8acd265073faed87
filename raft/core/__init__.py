r"""The Raft state machine of one node of a broker group. Inputs go in, decisions come out.

Owns: every decision about terms, votes, commit, reads and log time. Must not: read a clock, a file or a
socket, know bytes, start a thread, or draw from a global source of random numbers.

Begin with `machine.py`, which has the inputs. Then: `outputs.py`, `state.py`, `follower.py`,
`candidate.py`, `leader.py`, `replication.py`, `commit_rule.py`. Scenarios to read beside them:
tests/raft/scenarios.

What it is
----------
A `RaftCore` is one node's view of its broker group: a plain object, driven by one thread. It never waits
and never calls out. The shell around it (raft/drive) gives it one input at a time, then calls `poll` until
it returns None and carries out each `Output`. With equal inputs and equal random draws two cores decide the
same, so the simulator runs this very code, and so do the scenarios.

Rules of Raft, in short: a broker group has at most one leader per term. A node votes once per term, for a
candidate whose log is at least as far as its own (by last term, then by last index). The leader appends
entries and sends them; an entry of its own term is committed once a quorum holds it durably, and all
entries before it with it. A leader never overwrites its own log; a follower cuts off what contradicts the
log of the leader.

Inputs
------
    time        tick, late
    network     step (a message of a peer), append_sent, append_dropped, link_up, link_down
    storage     storage_done, storage_failed, compacted
    clients     propose, read_index, want_commits
    operators   campaign, transfer_leadership, resign, forget_leader, hold, leave
    lost disks  begin_reset, promote_to_voter, peer_replaced

Outputs
-------
    persist        one storage operation: hard state, cut, append; to be carried out in this order
    send           messages; all of them may go at once
    commit_index   it moved: the proposals up to here are decided
    committed      entries to apply: committed, and durable on this node
    reads          reads that may be served once their index is applied; `reads_aborted`: ask again
    aborted        own proposals whose fate this node will not learn
    events         roles, leaders, learners, resets, faults (see `outputs.py`)

Invariants
----------
* Election safety: at most one leader per term. A vote is given once per term and is never taken back.
* Log matching: two logs with an entry of the same index and term are equal up to that entry.
* Leader completeness: a leader holds every entry that was ever committed.
* State machine safety: no two nodes apply different entries at one index.
* first_index - 1 <= applied_index <= min(commit_index, stable_index); both of these <= last_index.
* While a node runs, its term, commit index and applied index never go back. The log is never cut at or
  below the commit index: a leader that asks for it contradicts Raft, so the node stops instead.

Persist before send
-------------------
A crash loses everything that the storage has not reported, so no message may promise more than is durable:

* Every message carries a term. It waits until the hard state with that term is durable (`CoreState.send`).
* A granted vote, a request for votes and the acknowledgement of entries wait until everything is durable
  that was asked of the storage before them: the vote, and the log that it was compared with
  (`send_when_durable`).
* A leader counts its own copy of an entry, and a candidate its own vote, once they are durable. A leader
  may send entries before that: it is the followers' copies that their acknowledgements promise.
* What waits is dropped when the term moves on. Heartbeats and their answers wait for no entry, so a slow
  disk is not taken for a dead node.

The core holds such messages itself (`persist_queue.py`, `CoreState.release_held`). The shell carries out
the storage operations in order, and says which are durable.

Roles and transitions
---------------------
Every node starts as a follower, also one that led before. A learner is a follower with `is_voter` False: it
takes entries and reads, and neither votes nor campaigns. "Vote" below is the durable `voted_for`; T is the
present term.

    from           to             cause                                                      persisted
    -------------  -------------  ---------------------------------------------------------  ---------------
    follower       pre-candidate  election timeout; `campaign`                               -
    follower       candidate      TimeoutNow of its leader (hand-over, no pre-vote)          T + 1, own vote
    follower       follower       a higher term in any message but those named below         term, no vote
    follower       follower       votes for a candidate                                      vote (and term)
    follower       follower       election timeout, but it may not campaign                  -
    follower       follower       a learner is promoted                                      is_voter, vote
    follower       resetting      `begin_reset`: its leader's state is to be installed       - (by the shell)
    pre-candidate  candidate      a quorum, itself included, would vote for it               T + 1, own vote
    pre-candidate  pre-candidate  election timeout; `campaign`: it asks again                -
    pre-candidate  follower       refusals leave no quorum; the leader of T is heard         -
    pre-candidate  pre-candidate  votes for a candidate of T (it did not vote in T yet)      vote
    pre-candidate  follower       a higher term, with or without a vote for its candidate    term (and vote)
    candidate      leader         a quorum voted for it; its own vote counts once durable    no-op entry of T
    candidate      pre-candidate  election timeout; `campaign`. Term and vote stay           -
    candidate      follower       refusals leave no quorum; the leader of T is heard         -
    candidate      follower       a higher term, with or without a vote for its candidate    term (and vote)
    leader         follower       heard no quorum for the shortest election timeout          -
    leader         follower       `resign`; the others are told to elect at once             -
    leader         follower       a higher term: an answer, another leader, a hand-over      term (and vote)
    any            resetting      `leave`: a later generation goes on without this folder    -
    any            faulted        `storage_failed`; asked to cut a committed entry           -

Resetting and faulted are final: the core takes no input and says nothing any more. A shell that has
installed the leader's state starts a new core.

Higher terms that change nothing:
* a request for a pre-vote, and its grant: they carry the term that the candidate would enter;
* any request for a vote while another leader is heard, unless that leader hands over. A leader counts as
  heard by itself, so only a hand-over makes it vote. A node that was cut off and comes back disturbs no one;
* a term further ahead than elections can have led to (`CoreState.may_be_reached`).

A message of a lower term is ignored, but a request for a vote is refused and an append or a heartbeat is
answered with the present term, so that a leader of the past steps down.

What shortens an election timeout: a refused connection to the leader, its resignation, `forget_leader`
(all: to a few ticks), a broken connection, a split vote, and a peer that comes back to a pre-candidate.
What lengthens it: a machine that is short of CPU (`lateness.py`).
"""
