"""Durable copies on slaves, and waiting for them."""

from __future__ import annotations

from ledgermq.raft.drive.copies import Copies
from ledgermq.raft.types import LogIndex

from ..core_cluster import Cluster


def leading(*, held: tuple[str, ...] = ()) -> tuple[Cluster, Copies]:
    """A master whose slaves of these names do not flush."""
    cluster = Cluster("n1", "n2", "n3", non_voters=("n2", "n3"))
    cluster.elect("n1")
    cluster.propose("n1")
    for name in held:
        cluster.hold_disk(name)
    return cluster, Copies(cluster["n1"])


def test_only_what_is_flushed_counts() -> None:
    cluster, copies = leading(held=("n3",))
    before, last = cluster["n1"].last_index, cluster.propose("n1")
    assert (copies.held_by(before), copies.held_by(last)) == (2, 1)
    cluster.release_disk("n3")
    cluster.settle()
    assert copies.held_by(last) == 2


async def test_who_waits_is_woken_by_enough_slaves() -> None:
    cluster, copies = leading(held=("n2", "n3"))
    last = cluster.propose("n1")
    one, both, next_one = (
        copies.wait(last, 1),
        copies.wait(last, 2),
        copies.wait(LogIndex(last + 1), 1),
    )
    cluster.release_disk("n2")
    cluster.settle()
    copies.look()
    assert (one.done(), both.done(), next_one.done()) == (True, False, False)
    cluster.release_disk("n3")
    cluster.settle()
    cluster.propose("n1")
    copies.look()
    assert [await each for each in (one, both, next_one)] == [True, True, True]


async def test_who_gave_up_holds_nobody_up() -> None:
    cluster, copies = leading(held=("n2", "n3"))
    last = cluster.propose("n1")
    gone, waits = copies.wait(last, 2), copies.wait(last, 1)
    gone.cancel()
    cluster.release_disk("n2")
    cluster.settle()
    copies.look()
    assert await waits


async def test_a_node_that_leads_no_longer_cannot_tell() -> None:
    cluster, copies = leading(held=("n2", "n3"))
    waits = copies.wait(cluster.propose("n1"), 1)
    cluster["n1"].leave()
    copies.end()
    assert not await waits
    assert not await copies.wait(LogIndex(1), 1)
    assert copies.held_by(LogIndex(1)) == 0
