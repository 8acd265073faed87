"""sync_master: what an answer waits for, and what it says when that does not come."""

from __future__ import annotations

import asyncio
import time

import pytest

from ledgermq.broker.cluster.slaves import SlaveGate, SlavesAwayError, SlavesLackItError, SlaveTimeoutError
from ledgermq.broker.config import load
from ledgermq.broker.node import promise_of
from ledgermq.broker.refusals import refusal_of
from ledgermq.proto import route_pb2
from ledgermq.raft.drive.copies import Copies
from ledgermq.raft.errors import ProposalLostError
from ledgermq.raft.types import LogIndex
from tests.raft.core_cluster import Cluster


class Master:
    """n1 with the slaves n2 and n3, in contact with so many of them."""

    def __init__(self, in_contact: int = 2) -> None:
        self.cluster = Cluster("n1", "n2", "n3", non_voters=("n2", "n3"))
        self.cluster.elect("n1")
        self.copies = Copies(self.cluster["n1"])
        self.contacts = in_contact
        self.silence_ms = [0, 0]  # of those

    @property
    def is_leader(self) -> bool:
        return self.cluster["n1"].leading is not None

    @property
    def commit_index(self) -> LogIndex:
        return self.cluster["n1"].commit_index

    def in_contact(self, silence_ms: int) -> int:
        return sum(silence < silence_ms for silence in self.silence_ms[: self.contacts])

    def store(self, *, held_by: int) -> LogIndex:
        """Commit an entry that only so many slaves flush."""
        for name in ("n2", "n3")[held_by:]:
            self.cluster.hold_disk(name)
        return self.cluster.propose("n1")

    def gate(self, needed: int = 1, timeout_ms: int = 60_000) -> SlaveGate:
        return SlaveGate(self, needed, timeout_ms)

    async def waiting(self, index: int, **gate: int) -> asyncio.Task[None]:
        """Return a producer's wait for its answer, which has begun."""
        waits = asyncio.create_task(self.gate(**gate).wait(index, time.monotonic()))
        await asyncio.sleep(0)
        assert not waits.done()
        return waits


async def test_what_enough_slaves_hold_is_answered_at_once() -> None:
    master = Master(in_contact=0)  # whether they are in contact does not matter
    await master.gate().wait(master.store(held_by=1), time.monotonic())


@pytest.mark.parametrize(
    ("needed", "held_by", "last", "is_repeat"), [(2, 1, "n3", False), (1, 0, "n2", True)]
)
async def test_the_answer_waits_for_as_many_slaves_as_are_needed(
    needed: int, held_by: int, last: str, is_repeat: bool
) -> None:
    """The entry of a repeat is not known any more: it waits for all that is committed."""
    master = Master()
    index = master.store(held_by=held_by)
    waits = await master.waiting(0 if is_repeat else index, needed=needed)
    master.cluster.release_disk(last)
    master.cluster.settle()
    master.copies.look()
    await waits


async def test_a_slave_that_does_not_confirm_in_time() -> None:
    master = Master()
    index = master.store(held_by=0)
    with pytest.raises(SlaveTimeoutError, match="only 0 of 1 slaves"):
        await master.gate(timeout_ms=20).wait(index, time.monotonic())
    assert master.commit_index == index, "it is kept"


async def test_a_slave_that_is_silent_since_the_commit_is_slow_and_not_away() -> None:
    master = Master()
    index = master.store(held_by=0)
    waits = await master.waiting(index, timeout_ms=20)
    master.silence_ms = [25, 25]
    with pytest.raises(SlaveTimeoutError):
        await waits
    with pytest.raises(SlavesAwayError):  # the next one need not wait for it
        await master.gate(timeout_ms=20).wait(index, time.monotonic())


async def test_a_slave_that_goes_meanwhile_is_away() -> None:
    master = Master()
    waits = await master.waiting(master.store(held_by=0), timeout_ms=20)
    master.contacts = 0
    with pytest.raises(SlavesAwayError):
        await waits


async def test_the_time_counts_from_the_commit_and_ends_with_the_callers() -> None:
    master = Master()
    index = master.store(held_by=0)
    with pytest.raises(SlaveTimeoutError):
        await master.gate().wait(index, time.monotonic() - 61)
    with pytest.raises(SlaveTimeoutError):
        await master.gate().wait(index, time.monotonic(), remaining=0.01)


async def test_too_few_slaves_in_contact_are_not_waited_for() -> None:
    master = Master(in_contact=0)
    with pytest.raises(SlavesAwayError, match="0 of 1 slaves that must have it are in contact"):
        await master.gate().wait(master.store(held_by=0), time.monotonic())


def test_in_contact_are_those_that_were_heard_while_a_message_would_wait() -> None:
    master = Master()
    master.silence_ms = [8000, 100]
    assert master.gate(timeout_ms=3000).in_contact == 1
    assert master.gate(timeout_ms=9000).in_contact == 2


async def test_a_master_that_is_replaced_meanwhile_cannot_tell() -> None:
    master = Master()
    waits = await master.waiting(master.store(held_by=0))
    master.cluster["n1"].leave()
    master.copies.end()
    with pytest.raises(ProposalLostError):
        await waits


async def test_a_master_that_was_replaced_before_cannot_tell_either() -> None:
    """Not "kept": its successor may lack the entry. Nor when no slave is in contact any more."""
    master = Master(in_contact=0)
    index = master.store(held_by=1)
    master.cluster["n1"].leave()
    for entry in (index, 0):
        with pytest.raises(ProposalLostError):
            await master.gate().wait(entry, time.monotonic())


async def test_a_master_that_is_replaced_in_the_moment_of_the_timeout_cannot_tell() -> None:
    master = Master()
    waits = await master.waiting(master.store(held_by=0), timeout_ms=20)
    master.cluster["n1"].leave()  # the shell has not told those who wait yet
    with pytest.raises(ProposalLostError):
        await waits


def test_who_is_not_in_contact_with_its_slaves_does_not_know_whether_it_is_still_the_master() -> None:
    master = Master()
    master.gate(needed=2).check_contact()
    master.silence_ms = [0, 500]  # for so long n3 may have followed another master
    master.gate().check_contact()
    with pytest.raises(ProposalLostError, match="only 1 of 2 slaves"):
        master.gate(needed=2).check_contact()
    master.cluster["n1"].leave()
    with pytest.raises(ProposalLostError, match="leads no longer"):
        master.gate().check_contact()


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (SlaveTimeoutError(1, 0, 3000), route_pb2.SLAVE_TIMEOUT),
        (SlavesAwayError(2, 1), route_pb2.SLAVES_AWAY),
    ],
)
def test_the_refusal_says_that_it_is_kept_and_that_a_repeat_is_safe(
    error: SlavesLackItError, code: route_pb2.RefusalCode
) -> None:
    refusal = refusal_of(error)
    assert (refusal.code, refusal.retryable) == (code, True)
    assert "kept" in refusal.message and "stored once" in refusal.message
    assert refusal.retry_after_ms > 0


def test_sync_master_promises_disks_only_with_a_synchronous_flush() -> None:
    settings = {"replication": "sync_master", "peers": "n1=h:1,n2=h:2", "master": "n1"}
    assert promise_of(load(None, settings)) == ""
    assert promise_of(load(None, {"flush": "async_timed"})) == ""
    warning = promise_of(load(None, {**settings, "flush": "async_timed"}))
    assert "not on their disks" in warning and "flush = sync" in warning
