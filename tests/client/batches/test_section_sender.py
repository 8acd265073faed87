"""The sender repeats what may be missing, in order, and ends when nothing else can help."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from ledgermq.client.batches.row_packer import PackedRequest, PartAddress, RowPacker
from ledgermq.client.batches.section_sender import MAX_OPEN, SectionSender
from ledgermq.client.cluster.channels import Channels
from ledgermq.client.cluster.routes import Routes
from ledgermq.client.errors import AttemptEndedError, RefusedError, SendTimeoutError
from ledgermq.client.produce.encoding import RecordEncoder
from ledgermq.client.produce.message_ids import MessageIdSource
from ledgermq.proto import route_pb2 as pb
from ledgermq.proto.record import decode_section

from ..fakes import FakeCluster, FakeGroup, FakeNode

COUNT = 30


class Rig:
    """A sender to the broker group g0, and requests of two messages each."""

    def __init__(self, cluster: FakeCluster, sender: SectionSender) -> None:
        self.cluster = cluster
        self.group: FakeGroup = cluster.groups[0]
        self.sender = sender
        encoder, address = RecordEncoder("orders", born_host="here"), PartAddress(1, 1, 77, 1 << 31)
        packer = RowPacker(encoder, address, MessageIdSource(b"123456", 1), first=0)
        self.requests: list[PackedRequest] = []
        for number in range(COUNT):
            assert not list(packer.bodies([b"%d" % number, b"x"], 5))
            self.requests += packer.rest()

    @property
    def leader(self) -> FakeNode:
        return self.cluster.node(self.group.leader)

    async def send(self) -> None:
        for request in self.requests:
            await self.sender.put(request)
        await self.sender.drain()

    def check(self) -> None:
        """Check that all messages are stored once and in order."""
        queue = self.group.queues[1, 0]
        assert queue.end == 2 * COUNT
        sequences = [decode_section(section).base_sequence for _, _, section, _ in queue.sections]
        assert sequences == list(range(0, 2 * COUNT, 2))


@asynccontextmanager
async def rig(*, nodes: int = 1, timeout_s: float = 60.0) -> AsyncIterator[Rig]:
    async with FakeCluster(FakeGroup("g0", {"orders": 1}), nodes=nodes) as cluster:
        channels = Channels()
        routes = Routes(cluster.address, channels)
        await routes.get("orders")
        sender = SectionSender(
            lambda: routes.broker_group("orders", "g0"), channels,
            lambda: routes.get("orders", refresh=True), "orders", timeout_s,
        )  # fmt: skip
        try:
            yield Rig(cluster, sender)
        finally:
            await sender.close()
            await routes.close()
            await channels.close()


def refusal(code: pb.RefusalCode, *, retryable: bool = False) -> pb.Refusal:
    return pb.Refusal(code=code, message="refused by the test", retryable=retryable, retry_after_ms=1)


async def test_requests_are_stored_in_order() -> None:
    async with rig() as found:
        await found.send()
        found.check()
        assert len(found.leader.requests) == COUNT


@pytest.mark.parametrize(
    "code", [pb.TOO_MANY_REQUESTS, pb.DISK_FULL, pb.OUTCOME_UNKNOWN, pb.SEQUENCE_GAP, pb.SLAVE_TIMEOUT]
)
async def test_what_was_refused_for_now_is_sent_again_with_all_behind_it(code: pb.RefusalCode) -> None:
    async with rig() as found:
        found.leader.refusals.extend(
            refusal(code, retryable=code in (pb.TOO_MANY_REQUESTS, pb.DISK_FULL)) for _ in range(3)
        )
        await found.send()
        found.check()


async def test_what_was_stored_without_an_answer_is_stored_once() -> None:
    async with rig() as found:
        found.leader.drop_answers = 3
        await found.send()
        found.check()


async def test_a_new_leader_gets_what_the_old_one_did_not_acknowledge() -> None:
    async with rig(nodes=3) as found:
        old = found.leader
        old.may_answer.clear()
        sending = asyncio.create_task(found.send())
        await old.asked.wait()
        found.group.leader, found.group.term = "n2", 2
        await old.stop()
        found.cluster.register(found.group)
        await sending
        found.check()


@pytest.mark.parametrize(
    ("code", "error"),
    [(pb.STALE_PRODUCER_EPOCH, AttemptEndedError), (pb.GROUP_DRAINING, RefusedError),
     (pb.STALE_ROUTE, RefusedError), (pb.MESSAGE_TOO_LARGE, RefusedError)],
)  # fmt: skip
async def test_a_final_refusal_ends_the_sender_for_good(code: pb.RefusalCode, error: type[Exception]) -> None:
    async with rig() as found:
        found.leader.refusals.append(refusal(code))
        with pytest.raises(error, match="refused by the test"):
            await found.send()
        with pytest.raises(error):
            await found.sender.put(found.requests[0])


async def test_no_more_requests_are_taken_than_may_be_open() -> None:
    async with rig() as found:
        found.leader.may_answer.clear()
        for request in found.requests[:MAX_OPEN]:
            await found.sender.put(request)
        waiting = asyncio.create_task(found.sender.put(found.requests[MAX_OPEN]))
        await found.leader.asked.wait()
        assert not waiting.done()
        found.leader.may_answer.set()
        await waiting
        await found.sender.drain()


async def test_without_an_answer_the_sender_gives_up_and_says_why() -> None:
    async with rig(timeout_s=0.2) as found:
        await found.leader.stop()
        with pytest.raises(SendTimeoutError, match=r'topic "orders" was not acknowledged within 200 ms'):
            await found.send()
