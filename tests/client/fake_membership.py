"""The part of a fake node that shares queues out to the members of consumer groups.

`Coordinator` is the replicated state of one consumer group in one broker group. Queues are shared out evenly,
in the order in which members came. Nothing happens by time: tests end sessions (`expire`) and deadlines
(`fence`).
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from ledgermq.proto import log_pb2
from ledgermq.proto import route_pb2 as pb

if TYPE_CHECKING:
    from .fakes import FakeGroup

Key = tuple[str, int]  # topic and queue id
#: To a call that means another group of this name.
OTHER_GROUP = pb.Refusal(code=pb.OTHER_GROUP, message="another group", retryable=True, retry_after_ms=10)


@dataclass
class Member:
    member_id: str
    topics: list[str]
    filter: str = ""
    orderly: bool | None = None
    watchers: set[asyncio.Event] = field(default_factory=set)  # one for each of its streams
    stream: int = 0  # which of its streams counts
    left: bool = False
    gone: bool = False  # its stream ends; it may come back

    def tell(self) -> None:
        for each in self.watchers:
            each.set()


class Coordinator:
    """Who owns which queue of a consumer group."""

    def __init__(self, group: FakeGroup, name: str) -> None:
        self.members: dict[str, Member] = {}
        self.owners: dict[Key, tuple[str, int]] = {}  # → member and epoch
        self.revoked: set[Key] = set()
        self.beats = 0  # signs of life
        self.released: list[Key] = []
        self.lose_releases = 0  # so many requests with released queues are not heard
        self.warnings: list[str] = []
        self.changed = asyncio.Event()  # for tests that wait for something of the above
        self._group = group
        self._name = name
        self._index = 100

    def join(self, request: log_pb2.MembershipRequest) -> Member:
        member = self.members.get(request.member_id)
        if member is None:
            member = self.members[request.member_id] = Member(request.member_id, list(request.topics))
        member.topics, member.filter = list(request.topics), request.filter
        member.orderly = request.orderly if request.HasField("orderly") else None
        member.stream += 1
        self.share_out()
        return member

    def hear(self, member: Member, request: log_pb2.MembershipRequest) -> None:
        if request.topics:
            member.topics, member.filter = list(request.topics), request.filter
        if request.released and self.lose_releases:
            self.lose_releases -= 1
            self.changed.set()
            return
        for each in request.released:
            key = (each.topic, each.queue_id)
            if key in self.revoked and self.owners[key] == (member.member_id, each.epoch):
                self.released.append(key)
                self.fence(key)
        if request.leave:
            member.left = True
            self.expire(member.member_id)
        elif not request.topics and not request.released:
            self.beats += 1
        self.share_out()

    def expire(self, member_id: str) -> None:
        """The member is gone: its queues have no owner."""
        member = self.members.pop(member_id)
        member.gone = True
        member.tell()
        for key in [key for key, (owner, _) in self.owners.items() if owner == member_id]:
            self.fence(key)
        self.share_out()

    def fence(self, key: Key) -> None:
        """Take a queue from its owner, whatever that does."""
        del self.owners[key]
        self.revoked.discard(key)
        self.share_out()

    def share_out(self) -> None:
        """Give free queues to members, and ask for those that should be another's."""
        for number, key in enumerate(self._keys()):
            takers = [member for member in self.members.values() if key[0] in member.topics]
            if not takers:
                continue
            wanted = takers[number * len(takers) // len(self._keys())].member_id
            owner, _ = self.owners.get(key, ("", 0))
            self.revoked.discard(key)
            if not owner:
                self._index += 1
                self.owners[key] = (wanted, self._index)
            elif owner != wanted:
                self.revoked.add(key)
        self.tell()

    def tell(self) -> None:
        for member in self.members.values():
            member.tell()
        self.changed.set()

    def _keys(self) -> list[Key]:
        topics = self._group.topics.items()
        return [(topic, queue_id) for topic, (_, count) in topics for queue_id in range(count)]

    def answer(self, member: Member) -> log_pb2.MembershipResponse:
        answer = log_pb2.MembershipResponse(
            members=len(self.members), heartbeat_interval_ms=50, warnings=self.warnings
        )
        for key, (owner, epoch) in self.owners.items():
            if owner == member.member_id:
                answer.owned.append(self._ownership(key, epoch))
                if key in self.revoked:
                    answer.revoked.append(self._ownership(key, epoch))
        return answer

    def _ownership(self, key: Key, epoch: int) -> log_pb2.QueueOwnership:
        topic, queue_id = key
        topic_id = self._group.topics[topic][0]
        queue = self._group.queues[topic_id, queue_id]
        where = (self._name, topic, queue_id)
        if where not in self._group.committed:
            start = self._group.groups[self._name].start_position
            self._group.committed[where] = queue.end if start == "latest" else queue.begin
        return log_pb2.QueueOwnership(
            topic=topic,
            topic_id=topic_id,
            queue_id=queue_id,
            epoch=epoch,
            offset=self._group.committed[where],
        )

    def refuses(self, each: log_pb2.QueueOffset) -> bool:
        """Whether a commit is not that of the owner."""
        _, epoch = self.owners.get((each.topic, each.queue_id), ("", 0))
        return bool(self.members or each.epoch) and each.epoch != epoch

    def owned_by(self, member_id: str) -> list[Key]:
        return sorted(key for key, (owner, _) in self.owners.items() if owner == member_id)


class FakeMembership(ABC):
    """Serves the streams of members; `FakeNode` is one."""

    group: FakeGroup
    running: asyncio.Event
    membership_refusals: list[pb.Refusal]  # answers to the next streams

    @property
    @abstractmethod
    def leads(self) -> bool: ...

    @abstractmethod
    def _not_leader(self) -> pb.Refusal: ...

    @abstractmethod
    def _is_stranger(self, context: Any) -> bool: ...

    def _still_leads(self) -> bool:
        return self.leads

    async def Membership(
        self, request_iterator: AsyncIterator[log_pb2.MembershipRequest], context: Any
    ) -> AsyncIterator[log_pb2.MembershipResponse]:
        first = await anext(request_iterator)
        await self.running.wait()
        if self._is_stranger(context):
            yield log_pb2.MembershipResponse(refusal=OTHER_GROUP)
            return
        if not self.leads:
            yield log_pb2.MembershipResponse(refusal=self._not_leader())
            return
        if self.membership_refusals:
            yield log_pb2.MembershipResponse(refusal=self.membership_refusals.pop(0))
            return
        coordinator = self.group.coordinator(first.group)
        member = coordinator.join(first)
        stream = member.stream

        async def listen() -> None:
            async for request in request_iterator:
                if self.leads and member.stream == stream and not member.left:
                    coordinator.hear(member, request)

        changed = asyncio.Event()
        member.watchers.add(changed)
        listening = asyncio.create_task(listen())
        try:
            while not (member.left or member.gone) and self._still_leads():
                await self.running.wait()
                changed.clear()
                yield coordinator.answer(member)
                await changed.wait()
            if not (member.left or member.gone):
                yield log_pb2.MembershipResponse(refusal=self._not_leader())
        finally:
            member.watchers.discard(changed)
            listening.cancel()
            await asyncio.gather(listening, return_exceptions=True)
