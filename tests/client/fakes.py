"""Stand-ins for a broker group: real gRPC services over a log in memory, with faults on demand.

`FakeGroup` is the replicated state (it survives the death of a node); `FakeNode` is one server of it. It has
only the rules that clients depend on: offsets, detection of retries by sequence, refusals.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from typing import Any, Self

import grpc
from grpc import aio

from ledgermq.nameserver.service import NameServer, now_ms
from ledgermq.proto import admin_pb2, admin_pb2_grpc, log_pb2, log_pb2_grpc
from ledgermq.proto import route_pb2 as pb
from ledgermq.proto.call_metadata import meant_group
from ledgermq.proto.record import decode_section, seal_section, verify_section, walk_sections

from .fake_admin import FakeAdmin
from .fake_membership import OTHER_GROUP, Coordinator, FakeMembership


@dataclass
class FakeQueue:
    #: Base offset, count, bytes, log time.
    sections: list[tuple[int, int, bytes, int]] = field(default_factory=list)
    end: int = 0
    begin: int = 0
    lost: int = 0  # told to every group

    def at_time(self, timestamp: int) -> int:
        """Return the first offset stored at or after a time; the end when there is none."""
        return next((base for base, _, _, at in self.sections if at >= timestamp), self.end)


class FakeGroup:
    """What a broker group has stored."""

    def __init__(self, name: str = "g0", topics: dict[str, int] | None = None) -> None:
        self.name = name
        self.group_id = 0
        self.former_group_ids: tuple[int, ...] = ()
        self.topics: dict[str, tuple[int, int]] = {}  # name → (topic id, queues)
        self.queues: dict[tuple[int, int], FakeQueue] = {}
        self.sessions: dict[tuple[int, int, int], tuple[int, dict[int, tuple[int, int]]]] = {}
        self.committed: dict[tuple[str, str, int], int] = {}
        self.members: list[admin_pb2.GroupMember] = []  # of whatever consumer group is asked for
        self.retention_ms: dict[str, int] = {}
        self.keep_unread: dict[str, bool] = {}
        self.is_old = False  # knows neither `keep_unread` nor holds
        self.holds: dict[tuple[str, str, int], admin_pb2.HoldInfo] = {}  # by topic, name and queue id
        #: By consumer group and topic.
        self.parked: dict[tuple[str, str], list[admin_pb2.ParkedMessage]] = {}
        self.losses: list[admin_pb2.TopicProgress] = []  # of whatever topic is described
        self.holders: list[admin_pb2.LeaseHolder] = []  # of whatever consumer group is asked for
        self.groups: dict[str, admin_pb2.ConsumerGroupInfo] = {}
        self.coordinators: dict[str, Coordinator] = {}
        self.commits: list[tuple[str, int, int, int]] = []  # topic, queue id, offset, epoch: those taken
        self.fenced: list[tuple[str, int]] = []  # those that were refused
        self.committed_more = asyncio.Event()
        self.term = 1
        self.leader = "n1"
        self.zones: dict[str, str] = {}  # by node id
        self.permission = pb.READ_WRITE  # of every topic
        self.mode = pb.MODE_ACTIVE
        self.modes: list[pb.BrokerGroupMode] = []  # that were asked for, in order
        self.without_leader = False  # so it does not say how far consumers are
        self.asked_progress = asyncio.Event()
        self.types: dict[str, pb.TopicMessageType] = {}  # by topic; others are normal
        self.store_timestamp = 1  # of what is stored next
        self.grown = asyncio.Event()
        self._next_topic_id = 1
        for topic, queues in (topics or {}).items():
            self.create_topic(topic, queues)

    def park(self, group: str, topic: str, *messages: admin_pb2.ParkedMessage) -> None:
        """These messages failed for the last time."""
        self.parked.setdefault((group, topic), []).extend(messages)

    def create_topic(self, name: str, queues: int) -> None:
        self.topics[name] = (self._next_topic_id, queues)
        for queue_id in range(queues):
            self.queues[self._next_topic_id, queue_id] = FakeQueue()
        self._next_topic_id += 1

    def store(self, section: bytes) -> log_pb2.SectionResult:
        """Store one section, as the leader's state machine would."""
        header = decode_section(section)
        verify_section(section, 0, header)
        queue = self.queues.get((header.topic_id, header.queue_id))
        if queue is None:
            return log_pb2.SectionResult(
                refusal=pb.Refusal(code=pb.STALE_ROUTE, message="gone", retryable=True)
            )
        session = (header.producer_id, header.topic_id, header.queue_id)
        expected, known = self.sessions.setdefault(session, (0, {}))
        if header.base_sequence in known:
            base, count = known[header.base_sequence]
            return log_pb2.SectionResult(base_queue_offset=base, count=count, duplicate=True)
        if self.mode != pb.MODE_ACTIVE:
            refusal = pb.Refusal(
                code=pb.GROUP_DRAINING, message="drained", retryable=True, retry_after_ms=1000
            )
            return log_pb2.SectionResult(base_queue_offset=-1, count=header.count, refusal=refusal)
        if header.base_sequence != expected:
            return log_pb2.SectionResult(refusal=pb.Refusal(code=pb.SEQUENCE_GAP, message="gap"))
        base = queue.end
        sealed = bytearray(section)
        seal_section(sealed, base_queue_offset=base, entry_distance=64)
        queue.sections.append((base, header.count, bytes(sealed), self.store_timestamp))
        queue.end += header.count
        known[header.base_sequence] = (base, header.count)
        self.sessions[session] = (expected + header.count, known)
        self.grown.set()
        self.grown = asyncio.Event()
        return log_pb2.SectionResult(base_queue_offset=base, count=header.count)

    def coordinator(self, name: str) -> Coordinator:
        """Who owns which queue of a consumer group."""
        return self.coordinators.setdefault(name, Coordinator(self, name))

    def stored(self) -> int:
        return sum(queue.end for queue in self.queues.values())


class FakeNode(FakeMembership, FakeAdmin, log_pb2_grpc.LogServiceServicer):
    """One node: a server on a port of its own."""

    def __init__(self, node_id: str, group: FakeGroup) -> None:
        self.node_id = node_id
        self.group = group
        self.address = ""
        self.messaging_address = ""  # "": the same as `address`
        self.peers: dict[str, FakeNode] = {node_id: self}
        self.refusals: deque[pb.Refusal] = deque()  # answers to the next requests instead of storing them
        self.membership_refusals: list[pb.Refusal] = []
        self.commit_refusals: list[pb.Refusal] = []  # answers to the next commits
        self.register: Callable[[FakeGroup], None] = lambda group: None  # tells the nameserver of a new topic
        self.queries = []
        self.drop_answers = 0  # do it, then break the stream instead of answering
        self.requests: list[int] = []  # section counts of produce requests
        self.asked = asyncio.Event()  # a produce request came
        self.may_answer = asyncio.Event()  # cleared: they are stored, and the answers wait
        self.may_answer.set()
        self.suggests = ""  # the node that fetch answers name
        self.stale = False  # fetch answers say so
        self.running = asyncio.Event()  # cleared: it answers nothing, as a node that is stopped
        self.running.set()
        self.polled = asyncio.Event()  # a fetch came
        self.streams = 0  # of fetches
        self.max_wait_ms = 0  # of the last fetch
        self.fetches = 0  # fetches that were answered with messages
        self.meant: list[int] = []  # ids of the groups that callers meant
        self.stranger_pause_ms = 0  # for which senders that mean another group are told to wait
        self._server: aio.Server | None = None

    async def start(self, port: int = 0) -> Self:
        self._server = aio.server(
            options=(("grpc.so_reuseport", 0), ("grpc.max_receive_message_length", 1 << 26))
        )
        log_pb2_grpc.add_LogServiceServicer_to_server(self, self._server)
        admin_pb2_grpc.add_AdminServiceServicer_to_server(self, self._server)
        bound = self._server.add_insecure_port(f"127.0.0.1:{port}")
        self.address = f"127.0.0.1:{bound}"
        await self._server.start()
        return self

    async def stop(self) -> None:
        if self._server is not None:
            await self._server.stop(0)
            self._server = None

    @property
    def is_up(self) -> bool:
        return self._server is not None

    @property
    def leads(self) -> bool:
        return self.group.leader == self.node_id

    def _not_leader(self) -> pb.Refusal:
        leader = self.peers.get(self.group.leader)
        return pb.Refusal(
            code=pb.NOT_LEADER, message="not the leader", retryable=True, leader_id=self.group.leader,
            leader_address=leader.address if leader else "",
        )  # fmt: skip

    def _is_stranger(self, context: Any) -> bool:
        """Tell whether the call means another group of this name."""
        meant = meant_group(context.invocation_metadata())
        self.meant.append(meant)
        return bool(meant and self.group.group_id) and meant != self.group.group_id

    async def Produce(self, request_iterator: AsyncIterator[log_pb2.ProduceRequest], context: Any) -> Any:
        is_stranger = self._is_stranger(context)
        async for request in request_iterator:
            await self.running.wait()
            self.requests.append(request.section_count)
            self.asked.set()
            answer = log_pb2.ProduceResponse(request_id=request.request_id, store_timestamp=1)
            if is_stranger:
                answer.refusal.CopyFrom(OTHER_GROUP)
                answer.refusal.retry_after_ms = self.stranger_pause_ms
            elif self.refusals:
                answer.refusal.CopyFrom(self.refusals.popleft())
            elif not self.leads:
                answer.refusal.CopyFrom(self._not_leader())
            else:
                for position, header in walk_sections(request.sections, request.section_count):
                    answer.results.append(
                        self.group.store(request.sections[position : position + header.total_size])
                    )
                if self.drop_answers:
                    self.drop_answers -= 1
                    await context.abort(grpc.StatusCode.UNAVAILABLE, "the node died")
            await self.may_answer.wait()
            yield answer

    def _fetch(self, request: log_pb2.FetchRequest) -> log_pb2.FetchResponse:
        answer = log_pb2.FetchResponse(
            node_id=self.node_id, stale=self.stale, suggested_node_id=self.suggests
        )
        room = request.max_bytes or 1 << 20
        for wanted in request.positions:
            queue = self.group.queues.get((wanted.topic_id, wanted.queue_id))
            found = log_pb2.FetchedQueue(topic_id=wanted.topic_id, queue_id=wanted.queue_id)
            if queue is None:
                found.refusal.CopyFrom(pb.Refusal(code=pb.STALE_ROUTE, message="gone", retryable=True))
                answer.queues.append(found)
                continue
            found.begin_offset, found.end_offset = queue.begin, queue.end
            if not queue.begin <= wanted.offset <= queue.end:
                found.refusal.CopyFrom(pb.Refusal(code=pb.OFFSET_OUT_OF_RANGE, message="out of range"))
                answer.queues.append(found)
                continue
            for base, count, section, stamp in queue.sections:
                if base + count > wanted.offset and room > 0:
                    room -= len(section)
                    found.sections.add(section=section, store_timestamp=stamp, physical_offset=0)
            if found.sections:
                answer.queues.append(found)
                self.fetches += 1
        return answer

    async def Fetch(self, request: log_pb2.FetchRequest, context: Any) -> log_pb2.FetchResponse:
        self.max_wait_ms = request.max_wait_ms
        self.polled.set()
        await self.running.wait()
        grown = self.group.grown
        answer = self._fetch(request)
        if not answer.queues and request.max_wait_ms:
            try:
                await asyncio.wait_for(grown.wait(), request.max_wait_ms / 1000)
            except TimeoutError:
                return answer
            await self.running.wait()
            answer = self._fetch(request)
        return answer

    async def FetchStream(self, request_iterator: AsyncIterator[log_pb2.FetchRequest], context: Any) -> Any:
        is_stranger = self._is_stranger(context)
        self.streams += 1
        async for request in request_iterator:
            if is_stranger:
                yield log_pb2.FetchResponse(refusal=OTHER_GROUP, node_id=self.node_id)
                continue
            yield await self.Fetch(request, context)

    async def CommitOffsets(
        self, request: log_pb2.CommitOffsetsRequest, context: Any
    ) -> log_pb2.CommitOffsetsResponse:
        await self.running.wait()
        if self._is_stranger(context):
            return log_pb2.CommitOffsetsResponse(refusal=OTHER_GROUP)
        if self.commit_refusals:
            return log_pb2.CommitOffsetsResponse(refusal=self.commit_refusals.pop(0))
        coordinator = self.group.coordinators.get(request.group)
        for each in request.offsets:
            if coordinator is not None and coordinator.refuses(each):
                self.group.fenced.append((each.topic, each.queue_id))
                self.group.committed_more.set()
                refusal = pb.Refusal(
                    code=pb.FENCED, message=f"queue {each.topic}:{each.queue_id} is another's"
                )
                return log_pb2.CommitOffsetsResponse(refusal=refusal)
        for each in request.offsets:
            self.group.commits.append((each.topic, each.queue_id, each.offset, each.epoch))
            key = (request.group, each.topic, each.queue_id)
            if request.reset or each.offset > self.group.committed.get(key, -1):
                self.group.committed[key] = each.offset
        self.group.committed_more.set()
        return log_pb2.CommitOffsetsResponse()

    async def QueryOffsets(
        self, request: log_pb2.QueryOffsetsRequest, context: Any
    ) -> log_pb2.QueryOffsetsResponse:
        answer = log_pb2.QueryOffsetsResponse()
        topic_id, queues = self.group.topics[request.topic]
        for queue_id in range(queues):
            queue = self.group.queues[topic_id, queue_id]
            answer.offsets.add(
                topic=request.topic, queue_id=queue_id, begin_offset=queue.begin, end_offset=queue.end,
                time_offset=queue.at_time(request.timestamp) if request.timestamp else None,
                offset=self.group.committed.get((request.group, request.topic, queue_id), -1),
                lost=queue.lost,
            )  # fmt: skip
        return answer

    async def UpdateTopic(
        self, request: admin_pb2.UpdateTopicRequest, context: Any
    ) -> admin_pb2.UpdateTopicResponse:
        if refusal := self._no_topic(request.topic):
            return admin_pb2.UpdateTopicResponse(refusal=refusal)
        if request.HasField("retention_ms"):
            self.group.retention_ms[request.topic] = request.retention_ms
        if request.HasField("keep_unread"):
            self.group.keep_unread[request.topic] = request.keep_unread and not self.group.is_old
        return admin_pb2.UpdateTopicResponse(topic=self._info(request.topic))

    async def CreateTopic(
        self, request: admin_pb2.CreateTopicRequest, context: Any
    ) -> admin_pb2.CreateTopicResponse:
        if request.topic in self.group.topics and not (request.if_not_exists or request.perhaps_done):
            refusal = pb.Refusal(code=pb.ALREADY_EXISTS, message=f'topic "{request.topic}" exists already')
            return admin_pb2.CreateTopicResponse(refusal=refusal)
        if request.topic not in self.group.topics:
            self.group.create_topic(request.topic, request.queue_count or 4)
            self.group.types[request.topic] = request.message_type
            self.group.retention_ms[request.topic] = request.retention_ms
            self.group.keep_unread[request.topic] = request.keep_unread and not self.group.is_old
            self.register(self.group)
        await self._maybe_drop(context)
        return admin_pb2.CreateTopicResponse(topic=self._info(request.topic))

    async def _maybe_drop(self, context: Any) -> None:
        if self.drop_answers:
            self.drop_answers -= 1
            await context.abort(grpc.StatusCode.UNAVAILABLE, "the answer is lost")

    async def DeleteTopic(
        self, request: admin_pb2.DeleteTopicRequest, context: Any
    ) -> admin_pb2.DeleteTopicResponse:
        if self.group.topics.pop(request.topic, None) is None and not request.perhaps_done:
            refusal = pb.Refusal(code=pb.TOPIC_NOT_FOUND, message=f'topic "{request.topic}" does not exist')
            return admin_pb2.DeleteTopicResponse(refusal=refusal)
        await self._maybe_drop(context)
        return admin_pb2.DeleteTopicResponse()

    async def ListTopics(self, request: Any, context: Any) -> admin_pb2.ListTopicsResponse:
        return admin_pb2.ListTopicsResponse(topics=[self._info(name) for name in self.group.topics])

    async def DescribeTopic(self, request: Any, context: Any) -> admin_pb2.DescribeTopicResponse:
        if refusal := self._no_topic(request.topic):
            return admin_pb2.DescribeTopicResponse(refusal=refusal)
        offsets = await self.QueryOffsets(log_pb2.QueryOffsetsRequest(topic=request.topic), context)
        return admin_pb2.DescribeTopicResponse(
            topic=self._info(request.topic),
            queues=offsets.offsets,
            consumers=self.group.losses,
            holds=[
                each for (topic, _, _), each in sorted(self.group.holds.items()) if topic == request.topic
            ],
        )

    async def CreateGroup(
        self, request: admin_pb2.CreateGroupRequest, context: Any
    ) -> admin_pb2.CreateGroupResponse:
        if request.group.name in self.group.groups and not request.if_not_exists:
            refusal = pb.Refusal(code=pb.ALREADY_EXISTS, message="it exists already")
            return admin_pb2.CreateGroupResponse(refusal=refusal)
        self.group.groups.setdefault(request.group.name, request.group)
        return admin_pb2.CreateGroupResponse()

    async def ListGroups(self, request: Any, context: Any) -> admin_pb2.ListConsumerGroupsResponse:
        return admin_pb2.ListConsumerGroupsResponse(groups=list(self.group.groups.values()))

    def _info(self, name: str) -> pb.TopicInfo:
        topic_id, queues = self.group.topics[name]
        return pb.TopicInfo(
            name=name,
            topic_id=topic_id,
            queue_count=queues,
            permission=self.group.permission if self.group.mode == pb.MODE_ACTIVE else pb.READ,
            message_type=self.group.types.get(name) or pb.NORMAL,
            retention_ms=self.group.retention_ms.get(name, 0),
            keep_unread=self.group.keep_unread.get(name, False),
        )

    def route(self) -> pb.GroupRoute:
        """The group as this node would register it."""
        route = pb.GroupRoute(
            cluster="local", group=self.group.name, term=self.group.term, leader_id=self.group.leader,
            writable=self.group.mode == pb.MODE_ACTIVE, version=len(self.group.topics), mode=self.group.mode,
            group_id=self.group.group_id, former_group_ids=self.group.former_group_ids,
        )  # fmt: skip
        for node in self.peers.values():
            listener = pb.ListenerAddresses(
                name="default",
                log_address=node.address,
                messaging_address=node.messaging_address or node.address,
            )
            zone = self.group.zones.get(node.node_id, "")
            route.nodes.add(
                node_id=node.node_id, listeners=[listener], zone=zone, alive=node.is_up, voter=True
            )
        route.topics.extend(self._info(name) for name in self.group.topics)
        return route


class FakeCluster:
    """A real nameserver in this process, and groups of fake nodes that are registered there."""

    def __init__(self, *groups: FakeGroup, nodes: int = 1) -> None:
        self.groups = groups
        self.nodes: dict[tuple[str, str], FakeNode] = {}
        self._count = nodes
        self.nameserver = NameServer({"default": "127.0.0.1:0"}, 60_000)

    async def __aenter__(self) -> Self:
        await self.nameserver.start()
        for group in self.groups:
            await self.add(group)
        return self

    async def add(self, group: FakeGroup) -> None:
        """Start the nodes of a group, and register it."""
        members = [await FakeNode(f"n{i + 1}", group).start() for i in range(self._count)]
        for node in members:
            node.peers = {each.node_id: each for each in members}
            node.register = self.register
            node.set_mode = self.set_mode
            self.nodes[group.name, node.node_id] = node
        self.register(group)

    def set_mode(self, group: FakeGroup, mode: pb.BrokerGroupMode) -> None:
        """Drain a group, take it back, or remove it, and tell the nameserver."""
        group.mode = mode
        self.register(group)
        if mode == pb.MODE_REMOVED:
            for node in self._members(group):
                self.nameserver.table.remove("local", group.name, node.node_id)
            self.nameserver._changes.tell()

    async def lose(self, group: FakeGroup) -> None:
        """Stop all nodes of a group; the nameserver hears of it."""
        for node in self._members(group):
            await node.stop()
        self.register(group)
        for node in self._members(group):
            self.nameserver.table.suspect("local", group.name, node.node_id, now_ms(), group.group_id)
        self.nameserver._changes.tell()

    async def expire(self, group: FakeGroup) -> None:
        """Stop all nodes of a broker group, and let the nameserver drop it from its list."""
        for node in self._members(group):
            await node.stop()
            self.nameserver.table.unregister("local", group.name, node.node_id, group.group_id)
        self.nameserver._changes.tell()

    async def replace(self, group: FakeGroup, by: FakeGroup) -> None:
        """Start the nodes of a broker group at their addresses without data. The nameserver is not told."""
        for node in self._members(group):
            port = int(node.address.rpartition(":")[2])
            await node.stop()
            self.nameserver.table.unregister("local", group.name, node.node_id, group.group_id)
            node.group = by
            await node.start(port)

    async def revive(self, group: FakeGroup) -> None:
        """Start the nodes of a lost group again, on other ports, and register it."""
        for node in self._members(group):
            await node.start()
        self.register(group)

    def _members(self, group: FakeGroup) -> list[FakeNode]:
        return [node for (name, _), node in self.nodes.items() if name == group.name]

    async def __aexit__(self, *_: object) -> None:
        for node in self.nodes.values():
            await node.stop()
        await self.nameserver.stop(0)

    @property
    def address(self) -> str:
        return self.nameserver.addresses["default"]

    def node(self, node_id: str = "n1", group: str = "g0") -> FakeNode:
        return self.nodes[group, node_id]

    def register(self, group: FakeGroup) -> None:
        """Tell the nameserver what the group's leader knows, or its first node while there is none."""
        leader = self.nodes[group.name, group.leader or "n1"]
        self.nameserver.table.register(leader.node_id, "i1", leader.route(), True, now_ms())
        self.nameserver._changes.tell()
