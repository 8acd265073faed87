"""Two groups of one name: the second one is refused, and nothing that its nodes say touches the first."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from typing import Any

import pytest

from ledgermq.nameserver import service
from ledgermq.nameserver.registrations import MAX_STRANGERS, SHOWN_MS, Strangers
from ledgermq.nameserver.route_table import RouteTable
from ledgermq.nameserver.service import NameServer
from ledgermq.proto import nameserver_pb2 as ns
from ledgermq.proto import route_pb2 as pb

from .test_route_table import route
from .test_service import NO_CONTEXT, nameserver


def of_group(group_id: int, *former: int, nodes: str = "n1", **changes: Any) -> pb.GroupRoute:
    view = route(nodes=nodes, **changes)
    view.group_id = group_id
    view.former_group_ids.extend(former)
    return view


def table_of(group_id: int, *former: int) -> RouteTable:
    table = RouteTable()
    for node_id in ("n1", "n2"):
        table.register(node_id, "i", of_group(group_id, *former, nodes="n1 n2"), node_id == "n1", 0)
    return table


def registration(node_id: str, view: pb.GroupRoute, *, knows: bool = True, incarnation: str = "i") -> Any:
    return ns.RegisterRequest(
        node_id=node_id, incarnation=incarnation, route=view, is_leader=False, knows_group_ids=knows
    )


@pytest.mark.parametrize(
    ("known", "comes", "rivals"),
    [
        (of_group(7), of_group(8), ["n1", "n2"]),
        (of_group(7), of_group(7), []),
        (of_group(7), of_group(0), []),  # a build that does not say, or a node that does not know yet
        (of_group(0), of_group(8), []),
        (of_group(7), of_group(8, 7), []),  # recovered, or promoted
        (of_group(8, 6, 7), of_group(7), []),  # its old master is back
        (of_group(8, 7), of_group(9, 6), ["n1", "n2"]),
    ],
)
def test_who_belongs_to_a_group(known: pb.GroupRoute, comes: pb.GroupRoute, rivals: list[str]) -> None:
    assert table_of(known.group_id, *known.former_group_ids).rivals(comes) == rivals


def test_a_route_says_which_group_it_is_of() -> None:
    (view,) = table_of(7, 5).route("local", "orders")
    assert (view.group_id, list(view.former_group_ids)) == (7, [5])


def test_of_two_generations_the_later_one_is_shown() -> None:
    table = table_of(7)
    table.register("n2", "j", of_group(8, 7, nodes="n1 n2", term=9, leader="n2"), True, 5)
    (view,) = table.broker_groups("local")
    assert (view.group_id, list(view.former_group_ids), view.leader_id) == (8, [7], "n2")


def test_beats_and_goodbyes_of_another_node_of_that_name_are_not_its_own() -> None:
    table = table_of(7)
    assert not table.beat("local", "g0", "n2", 99, "n2", 5_000, 8), "it is told to register, and is refused"
    assert table.beat("local", "g0", "n1", 1, "n1", 5_000, 7)
    assert not table.suspect("local", "g0", "n1", 5_000, 8)
    assert not table.unregister("local", "g0", "n1", 8)
    assert not table.remove("local", "g0", "n1", 8)
    (view,) = table.broker_groups("local")
    assert [node.alive for node in view.nodes] == [True, True]
    assert (view.term, view.leader_id) == (1, "n1")
    assert table.expire(10_000) == [("local", "g0", "n2")], "beats of another one keep no node alive"


def test_a_node_that_has_no_group_yet_does_not_speak_for_the_one_whose_name_it_has() -> None:
    """The folders of the old group are lost, and the new one waits for a node."""
    table = table_of(7)
    for now in (1_000, 9_000):
        assert not table.beat("local", "g0", "n1", 0, "", now), "it registers again, and is not listed"
    assert not table.suspect("local", "g0", "n1", 9_000)
    assert not table.unregister("local", "g0", "n1")
    assert [key[2] for key in table.expire(10_000)] == ["n1", "n2"]


def test_a_build_that_knows_no_ids_registers_and_speaks_for_itself() -> None:
    table = table_of(7)
    assert not table.beat("local", "g0", "n2", 1, "n1", 1_000)
    table.register("n2", "j", of_group(0, nodes="n1 n2"), False, 1_000)
    assert table.beat("local", "g0", "n2", 1, "n1", 9_000)
    assert [key[2] for key in table.expire(10_000)] == ["n1"]
    assert table.beat("local", "g0", "n2", 1, "n1", 10_000, 7), "it was upgraded, and registers next"


def test_a_group_that_was_removed_takes_only_itself_off_the_list() -> None:
    table = table_of(7)
    assert not table.remove("local", "g0", "n1", 8)
    assert table.broker_groups("local")
    assert table.remove("local", "g0", "n1", 7) or table.remove("local", "g0", "n2", 7)


def test_a_master_that_is_gone_is_not_the_master_of_another_group() -> None:
    table = RouteTable()
    gone = of_group(7)
    gone.master_id, gone.generation = "n1", 3
    table.register("n1", "i", gone, True, 0)
    table.unregister("local", "g0", "n1", 7)
    table.register("n2", "i", of_group(8, nodes="n2", leader=""), False, 0)
    assert table.master("local", "g0") == (0, "")


async def test_a_stranger_is_refused_until_the_group_has_gone_and_is_shown_meanwhile() -> None:
    async with nameserver("internal", "external") as (_, stubs):
        stub = stubs["external"]
        await stub.Register(registration("n1", of_group(7)))
        answer = await stub.Register(registration("n1", of_group(8), incarnation="j"))
        assert (answer.refusal.code, answer.refusal.retryable) == (pb.OTHER_GROUP, True)
        assert "Stop it, or the others" in answer.refusal.message
        listed = await stub.ListGroups(ns.ListGroupsRequest())
        assert [view.group_id for view in listed.groups] == [7]
        assert [(each.node_id, each.log_address, each.group_id) for each in listed.strangers] == [
            ("n1", "127.0.0.1:18081", 8)
        ]
        await stub.Unregister(ns.UnregisterRequest(cluster="local", group="g0", node_id="n1", group_id=8))
        assert (await stub.ListGroups(ns.ListGroupsRequest())).groups
        await stub.Unregister(ns.UnregisterRequest(cluster="local", group="g0", node_id="n1", group_id=7))
        answer = await stub.Register(registration("n1", of_group(8), incarnation="j"))
        assert not answer.refusal.code
        listed = await stub.ListGroups(ns.ListGroupsRequest())
        assert [view.group_id for view in listed.groups] == [8]


async def test_the_end_of_a_strangers_stream_makes_no_node_suspect() -> None:
    async def beats(group_id: int) -> AsyncGenerator[ns.HeartbeatBeat]:
        yield ns.HeartbeatBeat(
            cluster="local", group="g0", node_id="n1", term=1, leader_id="n1", group_id=group_id
        )
        await asyncio.Event().wait()

    async with nameserver() as (server, stubs):
        await stubs["default"].Register(registration("n1", of_group(7)))
        calls = service.NameServerService(server.table, server._changes, "default")
        streams: dict[int, Any] = {each: calls.Heartbeat(beats(each), NO_CONTEXT) for each in (7, 8)}
        assert [(await anext(stream)).register_again for stream in streams.values()] == [False, True]
        await streams[8].aclose()
        assert server.table.broker_groups("local")[0].nodes[0].alive
        await streams[7].aclose()
        assert not server.table.broker_groups("local")[0].nodes[0].alive


async def test_a_node_that_has_no_group_yet_is_not_listed_among_those_that_have(stub: Any) -> None:
    """It may be one of another group, and would hide the node whose name it has.

    It is told who the master is.
    """
    known = of_group(7)
    known.master_id, known.generation = "n1", 2
    await stub.Register(registration("n1", known))
    answer = await stub.Register(registration("n1", of_group(0, leader=""), incarnation="j"))
    assert (answer.master_id, answer.generation, answer.refusal.code) == ("n1", 2, 0)
    (view,) = (await stub.ListGroups(ns.ListGroupsRequest())).groups
    assert view.leader_id == "n1"
    await stub.Register(registration("n2", of_group(0, nodes="n2", leader=""), knows=False))
    (view,) = (await stub.ListGroups(ns.ListGroupsRequest())).groups
    assert [node.node_id for node in view.nodes] == ["n1", "n2"], "an older build says no more than that"


async def test_what_a_stranger_said_before_it_knew_its_group_is_forgotten(stub: Any) -> None:
    await stub.Register(registration("n9", of_group(0, nodes="n9", leader="")))
    await stub.Register(registration("n1", of_group(7)))
    answer = await stub.Register(registration("n9", of_group(8, nodes="n9")))
    assert answer.refusal.code == pb.OTHER_GROUP
    (view,) = (await stub.ListGroups(ns.ListGroupsRequest())).groups
    assert [node.node_id for node in view.nodes] == ["n1"]


def test_a_node_that_came_without_data_belongs_to_what_the_others_know() -> None:
    """n3 was rejoined after the group 7 was recovered as 8; a node that was given up is still there."""
    table = RouteTable()
    table.register("n2", "i", of_group(7, nodes="n2", leader=""), False, 0)
    table.register("n1", "i", of_group(8, 7, nodes="n1 n3", leader="n3", term=4), False, 0)
    comes = of_group(8, nodes="n1 n3", leader="n3", term=4)
    assert table.rivals(comes) == []
    table.register("n3", "i", comes, True, 0)
    (view,) = table.broker_groups("local")
    assert (view.leader_id, view.group_id, list(view.former_group_ids)) == ("n3", 8, [7])
    assert table.rivals(of_group(9, nodes="n4")) == ["n1", "n2", "n3"]


def led(node_id: str) -> Any:
    """Register a leader of the group 8."""
    view = of_group(8, nodes=node_id, leader=node_id)
    return ns.RegisterRequest(
        node_id=node_id, incarnation="j", route=view, is_leader=True, knows_group_ids=True
    )


async def test_one_node_of_another_group_without_a_leader_does_not_keep_a_group_out_that_has_one(
    server: NameServer, stub: Any
) -> None:
    """The nameserver was started again, and the node that was left over was quicker."""
    stray = registration("n1", of_group(7, leader=""))
    await stub.Register(stray)
    answer = await stub.Register(registration("n2", of_group(8, nodes="n2", leader="n3")))
    assert answer.refusal.code == pb.OTHER_GROUP, "only the leader's own word counts"
    revision = server.table.revision
    assert not (await stub.Register(led("n3"))).refusal.code
    assert server.table.revision > revision
    (view,) = (await stub.ListGroups(ns.ListGroupsRequest())).groups
    assert (view.group_id, [node.node_id for node in view.nodes]) == (8, ["n3"])
    assert not server.table.beat("local", "g0", "n1", 1, "", 0, 7), "it registers again"
    assert (await stub.Register(stray)).refusal.code == pb.OTHER_GROUP


@pytest.mark.parametrize("is_told_by_beat", [True, False])
async def test_a_group_that_had_a_leader_keeps_its_name_also_during_an_election(
    server: NameServer, stub: Any, is_told_by_beat: bool
) -> None:
    leader = "" if is_told_by_beat else "n1"
    await stub.Register(registration("n1", of_group(7, leader=leader)))
    if is_told_by_beat:
        server.table.beat("local", "g0", "n1", 5, "n1", 0, 7)
    server.table.beat("local", "g0", "n1", 6, "", 0, 7)
    await stub.Register(registration("n1", of_group(7, leader="")))
    assert (await stub.Register(led("n3"))).refusal.code == pb.OTHER_GROUP


def test_strangers_are_bounded_and_forgotten() -> None:
    strangers = Strangers()
    for number in range(MAX_STRANGERS + 1):
        said = strangers.note(f"n{number}", of_group(8, nodes="n1"), number)
        assert said == (number < MAX_STRANGERS)  # many names fill no log
    assert len(strangers.lately("", "", 0)) == MAX_STRANGERS
    assert not strangers.note("n5", of_group(8), 100), "it was refused lately already"
    assert [each.node_id for each in strangers.lately("local", "", MAX_STRANGERS + SHOWN_MS)] == ["n5"]
    assert strangers.lately("other", "", 0) == []
    assert strangers.lately("local", "", 100 + SHOWN_MS) == []
