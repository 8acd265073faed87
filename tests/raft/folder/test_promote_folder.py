"""Promotion of a slave's folder to a master's: no state in between, and only the announced generation."""

from __future__ import annotations

from dataclasses import replace

from ledgermq.raft.core.reign import Claim, Reign, first_term_of
from ledgermq.raft.folder.group_recovery import (
    PromotionPlan,
    claim_of,
    inspect,
    promote_folder,
    stopped_folder,
)
from ledgermq.raft.log.identity import Identity, read_identity, write_identity
from ledgermq.raft.types import LogIndex, Term

from ..log_rig import DATA
from ..simulated_disk import SimulatedDisk
from .test_group_recovery import N2, N3, OLD_GROUP_ID, crash_everywhere, entries_of, opened, survivor_disk


def test_a_crash_while_a_folder_is_promoted_leaves_the_slave_or_the_master_that_the_others_were_told_of() -> (
    None
):
    disk, entries = survivor_disk(entries=12)
    path, reign = DATA / "identity", Reign(master=N2)
    claim = Claim(group_id=88, reign=reign.next(N3, OLD_GROUP_ID, LogIndex(9)))
    old = replace(read_identity(disk, path, "n1"), reign=reign, claims=(claim,))
    write_identity(disk, path, old)
    plan = PromotionPlan()
    told = claim_of(old, plan, LogIndex(entries[-1].index))

    def promote(victim: SimulatedDisk) -> Identity:
        with stopped_folder(DATA, victim) as folder:
            return promote_folder(folder, inspect(folder), plan)

    def check(after: SimulatedDisk) -> str:
        storage = opened(after)
        state, identity = storage.hard_state, storage.identity
        assert entries_of(storage) == [(entry.index, entry.term) for entry in entries]
        if identity.incarnation == old.incarnation:
            assert (state.term, identity.reign, identity.claims) == (5, reign, (claim,))
            return "slave"
        assert (identity.group_id, identity.reign, identity.claims) == (told.group_id, told.reign, ())
        assert (told.reign.generation, state.term) == (2, first_term_of(2, Term(5)))
        assert state.is_voter
        return "master"

    assert crash_everywhere(disk, promote, check) == {"slave", "master"}
