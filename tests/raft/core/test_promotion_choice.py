"""Choice of a slave with everything that sync_master confirmed, over random histories of cores.

An entry is confirmed once the master has committed it and the required number of slaves holds it. Then the
master is lost for good, and as many slaves as may be missing do not answer.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping

import pytest

from ledgermq.client.admin.log_ends import nodes_with_most
from ledgermq.proto import admin_pb2 as pb
from ledgermq.raft.core.outputs import Role
from ledgermq.raft.drive.copies import Copies
from ledgermq.raft.types import LogIndex

from ..core_cluster import Cluster

SLAVES = ("n2", "n3", "n4")
Choose = Callable[[Mapping[str, pb.GetStatusResponse]], str]


class History:
    """Events of a broker group until its master is lost. `needed`: min_insync_slaves."""

    def __init__(self, seed: int, needed: int) -> None:
        self.rng = random.Random(seed)
        self.needed = needed
        self.cluster = Cluster("n1", *SLAVES, non_voters=SLAVES)
        self.confirmed: dict[int, int] = {}  # index -> term
        self.cluster.elect("n1")

    def run(self) -> History:
        for _ in range(60):
            self.rng.choice(
                (self._propose, self._propose, self._propose, self._disk, self._cut, self._crash, self._wait)
            )()
            self._confirm()
        return self

    def _propose(self) -> None:
        if self.cluster["n1"].role is Role.LEADER:
            self.cluster.propose("n1", self.rng.randint(1, 3))

    def _disk(self) -> None:
        name = self.rng.choice(("n1", *SLAVES))
        if self.cluster.members[name].held is None:
            self.cluster.hold_disk(name)
        else:
            self.cluster.release_disk(name)

    def _cut(self) -> None:
        near = [name for name in SLAVES if self.rng.random() < 0.5]
        self.cluster.partition(["n1", *near], *[[name] for name in SLAVES if name not in near])

    def _crash(self) -> None:
        name = self.rng.choice(("n1", *SLAVES))
        self.cluster.crash(name)
        self.cluster.restart(name)
        self._wait()

    def _wait(self) -> None:
        self.cluster.tick(100)

    def _confirm(self) -> None:
        """Like SlaveGate."""
        master = self.cluster["n1"]
        if master.role is Role.LEADER:
            copies = Copies(master)
            for index in range(max(self.confirmed, default=0) + 1, master.commit_index + 1):
                if copies.held_by(LogIndex(index)) >= self.needed:
                    self.confirmed[index] = int(master.log.term(LogIndex(index)) or 0)

    def on_disk(self, name: str) -> list[int]:
        """Return the terms of the entries that survive a power cut, from index 1."""
        return self.cluster.members[name].disk_terms

    def answers(self) -> dict[str, pb.GetStatusResponse]:
        """Return the reports of the answering slaves.

        Fewer may be missing than must hold a confirmed entry, by one.
        """
        there = self.rng.sample(SLAVES, len(SLAVES) - self.needed + 1)
        return {
            name: pb.GetStatusResponse(
                node_id=name, master_id="n1", last_index=len(disk), last_term=disk[-1] if disk else 0
            )
            for name in there
            for disk in [self.on_disk(name)]
        }

    def lost_with(self, choose: Choose) -> list[int]:
        """Return the confirmed entries that are lost if the chosen slave becomes the master."""
        disk = self.on_disk(choose(self.answers()))
        return [i for i, term in self.confirmed.items() if i > len(disk) or disk[i - 1] != term]


def the_most(answers: Mapping[str, pb.GetStatusResponse]) -> str:
    names, _ = nodes_with_most(answers)
    return names[0]


def the_longest(answers: Mapping[str, pb.GetStatusResponse]) -> str:
    return max(answers, key=lambda name: answers[name].last_index)


@pytest.mark.parametrize("needed", [1, 2, 3])
def test_the_slave_with_the_most_has_everything_that_was_confirmed(needed: int) -> None:
    confirmed = 0
    for seed in range(60):
        history = History(seed, needed).run()
        confirmed += len(history.confirmed)
        assert not history.lost_with(the_most), f"seed {seed}"
    assert confirmed > 60, "there was something to lose"


def test_by_length_something_would_be_lost() -> None:
    """So these histories can tell the two apart."""
    assert any(History(seed, 1).run().lost_with(the_longest) for seed in range(60))


def test_a_slave_that_holds_what_the_master_lost_is_longer_and_has_less() -> None:
    cluster = Cluster("n1", "n2", "n3", non_voters=("n2", "n3"))
    cluster.elect("n1")
    cluster.propose("n1")
    cluster.partition(["n1", "n3"], ["n2"])
    cluster.hold_disk("n1")
    cluster.propose("n1", 5)  # n3 flushes them first
    cluster.crash("n1")
    cluster.partition(["n1", "n2"], ["n3"])
    cluster.restart("n1")
    cluster.tick(100)
    last = cluster.propose("n1", 2)
    assert Copies(cluster["n1"]).held_by(last) == 1, "confirmed"
    answers = {
        name: pb.GetStatusResponse(
            node_id=name,
            master_id="n1",
            last_index=cluster[name].last_index,
            last_term=cluster[name].last_term,
        )
        for name in ("n2", "n3")
    }
    assert answers["n3"].last_index > answers["n2"].last_index
    assert the_most(answers) == "n2" and the_longest(answers) == "n3"
