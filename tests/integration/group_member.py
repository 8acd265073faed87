"""A minimal member of a queue-exclusive consumer group over a real socket: it owns, hands over, commits.

It follows refusals to the leader, and rejoins with its id when a stream breaks; `crash` drops the connection
without a goodbye. It records commits: which member was accepted as the owner of which queue, in which epoch.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import grpc.aio

from ledgermq.proto import log_pb2, log_pb2_grpc, route_pb2

Queue = tuple[str, int]
_EOF: Any = vars(grpc.aio)["EOF"]  # missing in the type stubs


class ConsumerGroupMember:
    """Use inside a running loop: `start`, wait with `until`, then `leave` or `crash`."""

    def __init__(
        self, addresses: list[str], group: str, name: str, topics: list[str], **options: int | str
    ) -> None:
        self._addresses = itertools.cycle(addresses)
        self._address = next(self._addresses)
        self.first = log_pb2.MembershipRequest(group=group, member_id=name, topics=topics)
        for key, value in options.items():
            setattr(self.first, key, value)
        self.name = name
        self.owned: dict[Queue, int] = {}  # epoch
        self.offsets: dict[Queue, int] = {}
        self.members = 0
        self.warnings: list[str] = []
        self.refusals: list[route_pb2.Refusal] = []
        self.streams = 0  # that were begun
        self._answered = 0  # the last one that was answered
        self.hands_over = True
        self._call: Any = None
        self._stub: Any
        self._changed = asyncio.Condition()
        self._task: asyncio.Task[None]

    def start(self) -> None:
        self._task = asyncio.create_task(self._run())

    async def until(self, *queues: int, members: int = 0, timeout: float = 20.0) -> None:
        """Wait until it owns exactly these queues (of its one topic), and the group has so many members."""

        def there() -> bool:
            found = sorted(queue for _, queue in self.owned)
            return found == sorted(queues) and members in (0, self.members)

        await self.wait(there, f"{queues}", timeout)

    async def until_answered_on_stream(self, number: int) -> None:
        """Wait until its stream of that number, or a later one, was answered."""
        await self.wait(lambda: self._answered >= number, f"an answer on stream {number}")

    async def until_refused(self, code: int) -> None:
        """Wait until a stream was refused with that code."""
        await self.wait(lambda: any(each.code == code for each in self.refusals), f"refusal {code}")

    async def until_count(self, count: int, timeout: float = 20.0) -> None:
        """Wait until it owns so many queues."""
        await self.wait(lambda: len(self.owned) == count, f"{count} queues", timeout)

    async def wait(self, there: Callable[[], bool], what: str, timeout: float = 20.0) -> None:
        try:
            async with self._changed, asyncio.timeout(timeout):
                await self._changed.wait_for(there)
        except TimeoutError:
            raise AssertionError(
                f"{self.name} has {self.owned}, awaited: {what}; {self.refusals[-1:]}"
            ) from None

    async def commit(self, queue: Queue, offset: int, epoch: int | None = None) -> route_pb2.Refusal:
        """Commit under the epoch that it has, or another."""
        named = self.owned[queue] if epoch is None else epoch
        row = log_pb2.QueueOffset(topic=queue[0], queue_id=queue[1], offset=offset, epoch=named)
        request = log_pb2.CommitOffsetsRequest(group=self.first.group, offsets=[row])
        answer: log_pb2.CommitOffsetsResponse = await self._stub.CommitOffsets(request, timeout=5)
        return answer.refusal

    async def leave(self) -> None:
        """Leave in order: the queues that it owned pass to another member at once."""
        await self._call.write(log_pb2.MembershipRequest(leave=True))
        await self._task

    async def crash(self) -> None:
        """Go without a word."""
        self._task.cancel()
        with suppress(asyncio.CancelledError):
            await self._task

    async def _run(self) -> None:
        while True:
            async with grpc.aio.insecure_channel(self._address) as channel:
                self._stub = log_pb2_grpc.LogServiceStub(channel)
                try:
                    if await self._stream():
                        return
                except (grpc.aio.AioRpcError, asyncio.InvalidStateError):
                    self._address = next(self._addresses)
            await asyncio.sleep(0.02)  # between attempts, while there is no leader

    async def _stream(self) -> bool:
        """One stream, to its end; return whether it left."""
        call = self._call = self._stub.Membership()
        beats: asyncio.Task[None] | None = None
        try:
            await call.write(self.first)
            self.streams += 1
            while (answer := await call.read()) is not _EOF:
                if answer.HasField("refusal"):
                    self.refusals.append(answer.refusal)
                    await self._notify()
                    self._address = answer.refusal.leader_address or next(self._addresses)
                    return False
                if not answer.heartbeat_interval_ms:
                    await self._take(answer)
                    return True
                beats = beats or asyncio.create_task(self._beat(call, answer.heartbeat_interval_ms / 1000))
                await self._take(answer)
        finally:
            if beats is not None:
                beats.cancel()
        self._address = next(self._addresses)
        return False

    async def _beat(self, call: Any, interval: float) -> None:
        while True:
            await asyncio.sleep(interval)
            await call.write(log_pb2.MembershipRequest())

    async def _take(self, answer: log_pb2.MembershipResponse) -> None:
        self.owned = {(each.topic, each.queue_id): each.epoch for each in answer.owned}
        for each in answer.owned:
            self.offsets[each.topic, each.queue_id] = each.offset
        self.members, self.warnings = answer.members, list(answer.warnings)
        self._answered = self.streams
        await self._notify()
        if answer.revoked and self.hands_over:
            await self._call.write(log_pb2.MembershipRequest(released=answer.revoked))

    async def _notify(self) -> None:
        async with self._changed:
            self._changed.notify_all()
