"""One Membership stream: its first word, what it is told, how it ends."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import grpc.aio
import pytest

from ledgermq.broker.cluster.members import Members
from ledgermq.broker.config import BrokerConfig
from ledgermq.broker.metrics import Metrics
from ledgermq.broker.native import membership as membership_service
from ledgermq.broker.native.membership import Memberships, changed_subscription, join_command
from ledgermq.broker.service.answers import Refusals
from ledgermq.broker.service.broker_group_identity import BrokerGroupIdentity
from ledgermq.broker.service.creation import Creation
from ledgermq.broker.state.commands import CreateTopic, LeaveConsumerGroup
from ledgermq.proto import log_pb2, route_pb2
from ledgermq.proto.log_pb2 import MembershipRequest, MembershipResponse, QueueOwnership
from ledgermq.proto.route_pb2 import NodeInfo

from ..leading_node import Leader, settle

EOF: Any = vars(grpc.aio)["EOF"]


class Call:
    """The member's side of a stream: `say` something, look at what was `told`."""

    def __init__(self, leader: Leader) -> None:
        self._requests: asyncio.Queue[Any] = asyncio.Queue()
        self.told: list[MembershipResponse] = []
        replica: Any = SimpleNamespace(state=leader.node.state)
        pipeline: Any = leader
        raft: Any = SimpleNamespace(config=SimpleNamespace(reign=None))
        memberships = Memberships(
            leader.coordination,
            leader.leadership,
            replica,
            Creation(BrokerConfig(), replica, pipeline, leader.leadership),
            BrokerGroupIdentity(BrokerConfig(), raft),
            Refusals(raft, leader.leadership, Members(NodeInfo(), ()), Metrics()),
        )
        self.task = asyncio.ensure_future(memberships.handler("")(None, self))

    def invocation_metadata(self) -> tuple[()]:
        return ()

    async def read(self) -> Any:
        return await self._requests.get()

    async def write(self, answer: MembershipResponse) -> None:
        self.told.append(answer)

    async def say(self, **fields: Any) -> None:
        self._requests.put_nowait(MembershipRequest(**fields).SerializeToString())
        await settle()

    async def join(self, name: str, **fields: Any) -> None:
        await self.say(**{"group": "billing", "member_id": name, "topics": ["orders"], **fields})

    async def close(self) -> None:
        """Close the member's half."""
        self._requests.put_nowait(EOF)
        await self.task

    @property
    def last(self) -> MembershipResponse:
        return self.told[-1]

    @property
    def refusal(self) -> tuple[int, bool, str]:
        found = self.last.refusal
        return found.code, found.retryable, found.message


def ids(rows: Any) -> list[int]:
    return [each.queue_id for each in rows]


async def test_a_member_is_told_what_it_owns_and_from_where_and_only_what_is_new() -> None:
    leader = Leader(queues=2)
    leader.node.fill(leader.topic, 0, 3)
    call = Call(leader)
    await call.join("a", session_timeout_ms=900)
    told = call.last
    assert ids(told.owned) == [0, 1]
    membership = leader.node.state.memberships.get(leader.group)
    assert membership is not None
    epoch = membership.of((leader.topic, 0)).epoch
    assert told.owned[0] == QueueOwnership(topic="orders", topic_id=leader.topic, queue_id=0, epoch=epoch)
    assert (told.members, told.heartbeat_interval_ms, list(told.revoked)) == (1, 300, [])
    count = len(call.told)
    await call.say()
    leader.apply(CreateTopic("unrelated", 1))
    await settle()
    assert len(call.told) == count
    await call.close()


async def test_members_are_told_when_only_one_of_them_is_orderly() -> None:
    leader = Leader(queues=2)
    calls = [Call(leader) for _ in range(3)]
    for call, name, fields in zip(calls, "abc", ({"orderly": False}, {"orderly": True}, {}), strict=True):
        await call.join(name, **fields)
    for call in calls:
        (text,) = call.last.warnings
        assert 'consumer group "billing" differ in orderly: "b" keeps' in text
    await asyncio.gather(*(call.close() for call in calls))


async def test_a_queue_is_handed_over_by_its_epoch() -> None:
    leader = Leader(queues=2)
    a, b = Call(leader), Call(leader)
    await a.join("a")
    await b.join("b")
    assert ids(a.last.revoked) == [1]
    assert ids(b.last.owned) == []
    await a.say(released=a.last.revoked)
    assert (ids(a.last.owned), ids(a.last.revoked), ids(b.last.owned)) == ([0], [], [1])
    await asyncio.gather(a.close(), b.close())


async def test_who_leaves_hears_that_it_is_done_and_nothing_of_it_is_left() -> None:
    leader = Leader()
    call = Call(leader)
    await call.join("a")
    await call.say(leave=True)
    await call.task
    assert call.last == MembershipResponse()
    assert leader.node.state.memberships.group_ids() == []
    assert not leader.coordination._streams


async def test_who_closes_its_half_may_come_back() -> None:
    leader = Leader()
    first = Call(leader)
    await first.join("a")
    await first.close()
    assert not first.last.HasField("refusal")
    await leader.tick(2.5)
    again = Call(leader)
    await again.join("a")
    assert again.last.owned == first.last.owned
    await again.close()


async def test_another_subscription_replaces_the_first() -> None:
    leader = Leader(queues=1)
    leader.node.topic("paid", 1)
    call = Call(leader)
    await call.join("a", filter="x")
    await call.say(topics=["paid", "orders"])
    assert {each.topic for each in call.last.owned} == {"orders", "paid"}
    found = leader.node.state.memberships.get(leader.group)
    assert found is not None
    assert (found.members["a"].topics, found.members["a"].filter) == (("orders", "paid"), "")
    await call.close()


async def test_a_stream_that_says_nothing_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(membership_service, "FIRST_REQUEST_SECONDS", 0.0)
    call = Call(Leader())
    await call.task
    assert call.refusal[:2] == (route_pb2.INVALID_ARGUMENT, False)


async def test_a_later_request_that_cannot_be_is_refused_and_ends_the_stream() -> None:
    leader = Leader()
    call = Call(leader)
    await call.join("a")
    await call.say(topics=["no topic!"])
    await call.task
    assert call.refusal[:2] == (route_pb2.INVALID_ARGUMENT, False)
    assert not leader.coordination._streams


@pytest.mark.parametrize("field", ["member_id", "zone", "filter"])
async def test_what_would_forge_lines_of_a_log_or_steer_a_terminal_is_refused(field: str) -> None:
    call = Call(Leader())
    await call.say(**{"group": "billing", "member_id": "a", "topics": ["orders"], field: "a\n\x1b[2J"})
    await call.task
    assert call.refusal[:2] == (route_pb2.INVALID_ARGUMENT, False)
    assert "control character" in call.refusal[2]
    assert "\x1b" not in call.refusal[2]


async def test_no_more_queues_are_handed_over_than_a_member_can_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(membership_service, "RELEASED_MAX", 2)
    call = Call(Leader())
    await call.join("a", released=[QueueOwnership(topic_id=1)] * 3)
    await call.task
    assert "3 queues are released at once; at most 2" in call.refusal[2]


async def test_bytes_that_are_no_request_are_refused() -> None:
    call = Call(Leader())
    call._requests.put_nowait(b"\xff\xff")
    await call.task
    assert "cannot be decoded" in call.refusal[2]


async def test_a_stream_that_loses_its_leader_is_told_who_leads_now(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(membership_service, "ELECTION_PATIENCE_S", 3600.0)
    leader = Leader()
    call = Call(leader)
    await call.join("a")
    leader.leadership.on_lost()
    await settle()
    assert not call.task.done(), "no leader is known yet"
    leader.leadership.on_changed("n2", 2)
    await call.task
    assert (call.last.refusal.code, call.last.refusal.leader_id) == (route_pb2.NOT_LEADER, "n2")


async def test_a_node_that_does_not_lead_refuses_at_once() -> None:
    leader = Leader()
    leader.leadership.on_lost()
    leader.leadership.on_changed("n2", 2)
    call = Call(leader)
    await call.join("a")
    await call.task
    assert (call.last.refusal.code, call.last.refusal.leader_id) == (route_pb2.NOT_LEADER, "n2")


async def test_a_group_comes_into_being_by_its_first_member() -> None:
    leader = Leader()
    call = Call(leader)
    await call.join("a", group="new")
    assert len(call.last.owned) == 4
    assert leader.node.state.groups.find("new") is not None
    await call.close()


async def test_a_member_that_was_taken_out_is_refused_and_may_come_again() -> None:
    leader = Leader()
    call = Call(leader)
    await call.join("a")
    leader.apply(LeaveConsumerGroup(leader.group, ("a",)))
    await call.task
    assert call.refusal[:2] == (route_pb2.FENCED, True)


def test_defaults_and_the_order_of_topics() -> None:
    request = log_pb2.MembershipRequest(member_id="a", topics=["b", "a", "b"], zone="z", allocation="circle")
    join = join_command(7, request)
    assert (join.topics, join.session_timeout_ms, join.release_ms) == (("a", "b"), 3000, 1000)
    later = changed_subscription(join, log_pb2.MembershipRequest(topics=["c"], filter="x"))
    assert (later.topics, later.filter, later.zone, later.allocation) == (("c",), "x", "z", "circle")
