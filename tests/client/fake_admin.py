"""The part of a fake node that only `Admin` and the command line call."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import TYPE_CHECKING, Any

import grpc

from ledgermq.proto import admin_pb2 as pb
from ledgermq.proto import admin_pb2_grpc, log_pb2, route_pb2
from ledgermq.proto import rocketmq_v2_pb2 as v2
from ledgermq.proto.record import SECTION_HEADER_SIZE, decode_record, pack_message_id, record_positions

if TYPE_CHECKING:
    from .fakes import FakeGroup, FakeNode

DUMP = (
    ("commitlog/00", b"abc"),
    ("commitlog/00", b"def"),
    ("consumequeue/7/0", b"q"),
    ("manifest.json", b"{}"),
)


class FakeAdmin(admin_pb2_grpc.AdminServiceServicer):
    """Answers from the group's state; `FakeNode` is one."""

    node_id: str
    address: str
    group: FakeGroup
    running: asyncio.Event
    peers: dict[str, FakeNode]
    dump: tuple[tuple[str, bytes], ...] = DUMP  # (path, bytes) of each chunk
    dump_refusal: route_pb2.Refusal | None = None  # comes behind the first chunk
    cleaned: pb.CleanRequest | None = None
    queries: list[pb.QueryMessagesRequest]  # that this node was asked
    page = 1000  # messages of an answer at most
    unsearched = 0  # bytes, in every answer
    stale = False
    reading: tuple[pb.LiveReading, ...] = ()  # who reads here and stores no progress

    def _no_group(self, name: str) -> route_pb2.Refusal | None:
        if name in self.group.groups:
            return None
        return route_pb2.Refusal(
            code=route_pb2.GROUP_NOT_FOUND, message=f'consumer group "{name}" does not exist'
        )

    def _no_topic(self, name: str) -> route_pb2.Refusal | None:
        if name in self.group.topics:
            return None
        return route_pb2.Refusal(code=route_pb2.TOPIC_NOT_FOUND, message=f'topic "{name}" does not exist')

    async def SetHold(self, request: pb.SetHoldRequest, context: Any) -> pb.SetHoldResponse:
        if self.group.is_old:
            await context.abort(grpc.StatusCode.UNIMPLEMENTED, "Method not found!")
        if refusal := self._no_topic(request.topic):
            return pb.SetHoldResponse(refusal=refusal)
        answer = pb.SetHoldResponse()
        for each in request.queues:
            key = (request.topic, request.name, each.queue_id)
            new = pb.HoldInfo(name=request.name, queue_id=each.queue_id, advanced_ms=1_700_000_000_000)
            held = self.group.holds.setdefault(key, new)
            held.offset = max(held.offset, each.offset)
            answer.queues.append(held)
        return answer

    async def ReleaseHold(self, request: pb.ReleaseHoldRequest, context: Any) -> pb.ReleaseHoldResponse:
        if refusal := self._no_topic(request.topic):
            return pb.ReleaseHoldResponse(refusal=refusal)
        found = [key for key in self.group.holds if key[:2] == (request.topic, request.name)]
        for key in found:
            del self.group.holds[key]
        return pb.ReleaseHoldResponse(released=bool(found))

    async def DeleteGroup(self, request: pb.DeleteGroupRequest, context: Any) -> pb.DeleteGroupResponse:
        if refusal := self._no_group(request.name):
            return pb.DeleteGroupResponse(refusal=refusal)
        del self.group.groups[request.name]
        return pb.DeleteGroupResponse()

    async def DescribeGroup(self, request: pb.DescribeGroupRequest, context: Any) -> pb.DescribeGroupResponse:
        if refusal := self._no_group(request.name):
            return pb.DescribeGroupResponse(refusal=refusal)
        if request.topic and (refusal := self._no_topic(request.topic)):
            return pb.DescribeGroupResponse(refusal=refusal)
        answer = pb.DescribeGroupResponse(group=self.group.groups[request.name], members=self.group.members)
        for (group, topic, queue_id), offset in sorted(self.group.committed.items()):
            if group == request.name and request.topic in ("", topic):
                queue = self.group.queues[self.group.topics[topic][0], queue_id]
                answer.queues.add(
                    topic=topic, queue_id=queue_id, committed_offset=offset,
                    begin_offset=queue.begin, end_offset=queue.end, leased=len(self.group.holders),
                    parked=len(self.group.parked.get((group, topic), ())) if not queue_id else 0,
                    owner=self.group.members[0].member_id if self.group.members else "",
                )  # fmt: skip
        return answer

    async def GetDeliveries(self, request: pb.GetDeliveriesRequest, context: Any) -> pb.GetDeliveriesResponse:
        if refusal := self._no_group(request.group):
            return pb.GetDeliveriesResponse(refusal=refusal)
        parked = [
            message
            for (group, topic), messages in self.group.parked.items()
            if group == request.group and request.topic in ("", topic)
            for message in messages
        ]
        return pb.GetDeliveriesResponse(
            parked=parked, parked_count=len(parked), holders=self.group.holders, parked_limit=1024
        )

    async def ReleaseParked(self, request: pb.ReleaseParkedRequest, context: Any) -> pb.ReleaseParkedResponse:
        if refusal := self._no_group(request.group):
            return pb.ReleaseParkedResponse(refusal=refusal)
        released = 0
        for (group, topic), messages in self.group.parked.items():
            if group != request.group or request.topic not in ("", topic):
                continue
            places = {(each.queue_id, each.queue_offset) for each in request.places}
            left = [m for m in messages if places and (m.queue_id, m.queue_offset) not in places]
            released += len(messages) - len(left)
            messages[:] = left
        return pb.ReleaseParkedResponse(released=released)

    async def ResetOffsets(
        self, request: pb.ResetOffsetsRequest, context: Any
    ) -> log_pb2.CommitOffsetsResponse:
        if refusal := self._no_topic(request.topic) or self._no_group(request.group):
            return log_pb2.CommitOffsetsResponse(refusal=refusal)
        topic_id, queues = self.group.topics[request.topic]
        for queue_id in range(queues):
            queue = self.group.queues[topic_id, queue_id]
            at = queue.end if request.latest else queue.begin
            self.group.committed[request.group, request.topic, queue_id] = at
        return log_pb2.CommitOffsetsResponse()

    async def GetStatus(self, request: Any, context: Any) -> pb.GetStatusResponse:
        await self.running.wait()
        leads = self.group.leader == self.node_id
        answer = pb.GetStatusResponse(
            cluster="local", group=self.group.name, node_id=self.node_id,
            role="leader" if leads else "follower", term=self.group.term, leader_id=self.group.leader,
            voters=len(self.peers), voters_in_contact=len(self.peers) if leads else 0, flush="sync",
        )  # fmt: skip
        for node in self.peers.values():
            addresses = route_pb2.ListenerAddresses(log_address=node.address, messaging_address=node.address)
            role = "leader" if node.node_id == self.group.leader else "follower"
            answer.nodes.add(node_id=node.node_id, role=role, addresses=addresses)
        if request.readers:
            answer.readers.extend(self.reading)
        return answer

    async def TransferLeadership(
        self, request: pb.TransferLeadershipRequest, context: Any
    ) -> pb.TransferLeadershipResponse:
        if request.to_node == self.group.leader:
            refusal = route_pb2.Refusal(code=route_pb2.INVALID_ARGUMENT, message="it leads already")
            return pb.TransferLeadershipResponse(refusal=refusal)
        self.group.leader = request.to_node or "n2"
        self.group.term += 1
        return pb.TransferLeadershipResponse(leader_id=self.group.leader)

    set_mode: Callable[[FakeGroup, route_pb2.BrokerGroupMode], None] = staticmethod(lambda group, mode: None)

    async def SetBrokerGroupMode(
        self, request: pb.SetBrokerGroupModeRequest, context: Any
    ) -> pb.SetBrokerGroupModeResponse:
        removes = request.mode == route_pb2.MODE_REMOVED
        if removes and not request.force and self.group.mode == route_pb2.MODE_ACTIVE:
            refusal = route_pb2.Refusal(code=route_pb2.INVALID_ARGUMENT, message="drain it first")
            return pb.SetBrokerGroupModeResponse(refusal=refusal)
        asked = pb.GetProgressRequest(consumers=request.consumers)
        left = [f"{row.group} on {row.topic}" for row in self._progress(asked) if row.behind]
        if removes and not request.force and left:
            message = f"still holds messages: {', '.join(left)}"
            refusal = route_pb2.Refusal(code=route_pb2.INVALID_ARGUMENT, message=message)
            return pb.SetBrokerGroupModeResponse(refusal=refusal)
        changed = self.group.mode != request.mode
        self.group.modes.append(request.mode)
        self.set_mode(self.group, request.mode)
        since = 0 if request.mode == route_pb2.MODE_ACTIVE else 77
        return pb.SetBrokerGroupModeResponse(mode=request.mode, since_ms=since, changed=changed)

    async def GetProgress(self, request: pb.GetProgressRequest, context: Any) -> pb.GetProgressResponse:
        self.group.asked_progress.set()
        if request.broker_group not in ("", self.group.name):
            refusal = route_pb2.Refusal(
                code=route_pb2.STALE_ROUTE, message=f"this is node n1 of {self.group.name}", retryable=True
            )
            return pb.GetProgressResponse(refusal=refusal)
        if self.group.without_leader:
            refusal = route_pb2.Refusal(
                code=route_pb2.NO_QUORUM, message="no leader is known", retryable=True
            )
            return pb.GetProgressResponse(refusal=refusal)
        return pb.GetProgressResponse(mode=self.group.mode, topics=self._progress(request))

    def _progress(self, request: pb.GetProgressRequest) -> list[pb.TopicProgress]:
        found = []
        consumers = {(topic, group) for group, topic, _ in self.group.committed}
        consumers |= {(each.topic, each.group) for each in request.consumers}
        for topic, (topic_id, queues) in sorted(self.group.topics.items()):
            held = [self.group.queues[topic_id, number] for number in range(queues)]
            names = sorted(group for each, group in consumers if each == topic)
            held_count: int = sum(queue.end - queue.begin for queue in held)
            if not names and not request.group and held_count and request.topic in ("", topic):
                found.append(pb.TopicProgress(topic=topic, behind=held_count))
            for name in names:
                behind = sum(
                    queue.end - self.group.committed.get((name, topic, number), 0)
                    for number, queue in enumerate(held)
                )
                if request.group in ("", name) and request.topic in ("", topic):
                    parked = len(self.group.parked.get((name, topic), ()))
                    found.append(pb.TopicProgress(group=name, topic=topic, behind=behind, parked=parked))
        return found

    async def Clean(self, request: pb.CleanRequest, context: Any) -> pb.CleanResponse:
        self.cleaned = request
        return pb.CleanResponse(
            segments=["00000000000000000000"],
            bytes=1 << 20,
            log_start_index=9,
            note="the newest segment always stays",
        )

    def _stored(self) -> list[pb.StoredMessage]:
        """All messages, the newest first; their places in the log are made up."""
        names = {topic_id: name for name, (topic_id, _) in self.group.topics.items()}
        found = []
        for (topic_id, queue_id), queue in self.group.queues.items():
            for base, count, section, stored in queue.sections:
                body = section[SECTION_HEADER_SIZE:]
                for i, position in enumerate(record_positions(body, count).tolist()):
                    record = body[position : position + decode_record(body, position).size]
                    found.append(
                        pb.StoredMessage(
                            topic=names[topic_id], queue_id=queue_id, queue_offset=base + i,
                            store_timestamp=stored, record=record,
                        )
                    )  # fmt: skip
        found.sort(key=lambda each: (each.store_timestamp, each.topic, each.queue_id, each.queue_offset))
        for number, each in enumerate(found):
            each.physical_offset = 8 * (number + 1)
        return found[::-1]

    async def QueryMessages(self, request: pb.QueryMessagesRequest, context: Any) -> pb.QueryMessagesResponse:
        await self.running.wait()
        self.queries.append(request)
        if request.topic and (refusal := self._no_topic(request.topic)):
            return pb.QueryMessagesResponse(refusal=refusal)
        found = []
        for each in self._stored():
            record = decode_record(each.record)
            keys = v2.SystemProperties.FromString(bytes(record.system_run)).keys if request.key else ()
            if (
                request.topic in ("", each.topic)
                and (not request.message_id or record.message_id == pack_message_id(request.message_id)[0])
                and (not request.key or request.key in keys)
                and request.begin_ms <= each.store_timestamp
                and (not request.end_ms or each.store_timestamp < request.end_ms)
                and (not request.before_offset or each.physical_offset < request.before_offset)
            ):
                found.append(each)
        page = found[: min(request.limit, self.page)]
        return pb.QueryMessagesResponse(
            messages=page,
            next_before=page[-1].physical_offset if len(found) > len(page) else 0,
            unsearched_bytes=self.unsearched,
            stale=self.stale,
            node_id=self.node_id,
        )

    async def Dump(self, request: pb.DumpRequest, context: Any) -> AsyncIterator[pb.DumpChunk]:
        sizes: dict[str, int] = {}
        for path, data in self.dump:
            offset = sizes.get(path, 0)
            sizes[path] = offset + len(data)
            yield pb.DumpChunk(
                path=path, offset=offset, data=data, total_bytes=sum(len(d) for _, d in self.dump)
            )
            if self.dump_refusal is not None:
                yield pb.DumpChunk(refusal=self.dump_refusal)
                return
