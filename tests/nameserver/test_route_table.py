"""The route table: what brokers said, who leads, who lives."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ledgermq.nameserver.route_table import MAX_GONE_BROKER_GROUPS, RouteTable
from ledgermq.proto import route_pb2 as pb


def route(
    term: int = 1,
    leader: str = "n1",
    version: int = 1,
    topics: tuple[str, ...] = ("orders",),
    nodes: str = "n1",
) -> pb.GroupRoute:
    view = pb.GroupRoute(
        cluster="local", group="g0", term=term, leader_id=leader, version=version, writable=True
    )
    for node_id in nodes.split():
        node = view.nodes.add(node_id=node_id, alive=True, voter=True)
        node.listeners.add(name="internal", log_address=f"{node_id}:8082")
        node.listeners.add(name="external", log_address=f"127.0.0.1:1808{node_id[1]}")
    view.topics.extend(pb.TopicInfo(name=name, topic_id=7, queue_count=4) for name in topics)
    return view


def table_with(*node_ids: str) -> RouteTable:
    table = RouteTable()
    for node_id in node_ids:
        table.register(node_id, "i", route(nodes=" ".join(node_ids)), node_id == "n1", 0)
    return table


@pytest.fixture
def table() -> RouteTable:
    return table_with("n1", "n2")


def alive(table: RouteTable) -> dict[str, bool]:
    return {node.node_id: node.alive for node in table.broker_groups("local")[0].nodes}


def test_a_registered_topic_has_a_route() -> None:
    (view,) = table_with("n1").route("local", "orders")
    assert view.leader_id == "n1"
    assert [info.name for info in view.topics] == ["orders"]


def test_an_unknown_topic_has_no_route_but_similar_names() -> None:
    table = table_with("n1")
    assert table.route("local", "order") == []
    assert table.similar_topics("local", "order") == ["orders"]


def test_the_addresses_are_those_of_the_listener_that_was_asked() -> None:
    table = table_with("n1")
    for name, address in (("internal", "n1:8082"), ("external", "127.0.0.1:18081"), ("unknown", "n1:8082")):
        (node,) = table.broker_groups("local", name)[0].nodes
        assert [each.log_address for each in node.listeners] == [address]


def test_a_node_stands_where_it_says_itself_and_else_where_the_leader_says() -> None:
    table, view = RouteTable(), route(nodes="n1 n2 n3")
    for node, zone in zip(view.nodes, ("east", "old", "west"), strict=True):
        node.zone = zone
    table.register("n1", "i", view, True, 0)
    moved = route(nodes="n2")
    moved.nodes[0].zone = "north"
    table.register("n2", "i", moved, False, 0)
    (shown,) = table.route("local", "orders")
    assert [node.zone for node in shown.nodes] == ["east", "north", "west"]


def test_a_new_leader_wins_by_its_term_even_when_the_old_one_registers_again(table: RouteTable) -> None:
    table.register("n2", "i", route(term=2, leader="n2", nodes="n1 n2", topics=("new",)), True, 10)
    table.register("n1", "i", route(term=1, leader="n1", version=99, nodes="n1 n2"), True, 20)
    view = table.broker_groups("local")[0]
    assert (view.term, view.leader_id) == (2, "n2")
    assert [info.name for info in view.topics] == ["new"]


def test_the_leaders_view_of_topics_counts_more_than_a_followers_of_the_same_term(table: RouteTable) -> None:
    table.register("n2", "i", route(version=50, topics=(), nodes="n1 n2"), False, 10)
    assert [info.name for info in table.broker_groups("local")[0].topics] == ["orders"]


def test_a_beat_brings_news_of_an_election(table: RouteTable) -> None:
    assert table.beat("local", "g0", "n2", 5, "n2", 10)
    assert table.broker_groups("local")[0].leader_id == "n2"


def test_a_beat_of_an_unknown_node_asks_for_a_registration() -> None:
    assert not RouteTable().beat("local", "g0", "n1", 1, "n1", 0)


def test_a_closed_stream_makes_a_node_suspect_and_a_beat_clears_it(table: RouteTable) -> None:
    assert table.suspect("local", "g0", "n2", 10)
    assert alive(table) == {"n1": True, "n2": False}
    table.beat("local", "g0", "n2", 1, "n1", 20)
    assert alive(table) == {"n1": True, "n2": True}


def test_a_suspect_leader_is_no_leader(table: RouteTable) -> None:
    table.suspect("local", "g0", "n1", 10)
    assert table.broker_groups("local")[0].leader_id == ""


def test_the_leaders_later_word_that_a_suspect_lives_counts(table: RouteTable) -> None:
    table.suspect("local", "g0", "n2", 10)
    table.register("n1", "i", route(nodes="n1 n2"), True, 20)
    assert alive(table)["n2"]


def test_a_silent_node_is_dropped_after_the_expiry() -> None:
    table = table_with("n1")
    assert table.expire(9_999) == []
    assert table.expire(10_000) == [("local", "g0", "n1")]
    assert table.clusters() == []


def test_a_goodbye_removes_a_node_at_once() -> None:
    table = table_with("n1")
    assert table.unregister("local", "g0", "n1")
    assert table.broker_groups("local") == []


def test_the_revision_stays_when_nothing_visible_changes(table: RouteTable) -> None:
    before = table.revision
    table.register("n1", "i", route(nodes="n1 n2"), True, 50)
    table.beat("local", "g0", "n1", 1, "n1", 60)
    assert table.revision == before


def test_the_only_cluster_needs_no_name() -> None:
    table = table_with("n1")
    assert table.the_cluster("") == "local"
    other = route()
    other.cluster = "remote"
    table.register("n9", "i", other, True, 0)
    assert table.the_cluster("") == ""


# --- against a dumb model -----------------------------------------------------------------------------------


@dataclass
class Step:
    kind: str
    node: str
    term: int
    leader: str
    wait: int


steps = st.lists(
    st.builds(
        Step,
        st.sampled_from(["register", "beat", "suspect", "unregister", "expire"]),
        st.sampled_from(["n1", "n2", "n3"]),
        st.integers(1, 4),
        st.sampled_from(["", "n1", "n2", "n3"]),
        st.integers(0, 6_000),
    ),
    max_size=40,
)


class Model:
    """Keeps every event and answers by looking at all of them again."""

    def __init__(self) -> None:
        self.events: list[tuple[int, Step]] = []

    def living(self, now: int) -> set[str]:
        """Nodes that are known, heard within the expiry and whose stream did not close since."""
        heard: dict[str, int] = {}
        suspect: set[str] = set()
        for at, step in self.events:
            if step.kind == "expire":
                for node in [n for n, when in heard.items() if at - when >= 10_000]:
                    del heard[node]
                    suspect.discard(node)
            elif step.kind == "register" or (step.kind == "beat" and step.node in heard):
                heard[step.node] = at
                suspect.discard(step.node)
            elif step.kind == "suspect" and step.node in heard:
                suspect.add(step.node)
            elif step.kind == "unregister":
                heard.pop(step.node, None)
                suspect.discard(step.node)
        return set(heard) - suspect

    def term(self) -> int:
        """The newest term that a node that is still known has spoken of since its registration."""
        terms: dict[str, int] = {}
        last: dict[str, int] = {}
        for at, step in self.events:
            if step.kind == "expire":
                for node in [n for n in terms if at - last[n] >= 10_000]:
                    del terms[node]
            elif step.kind == "register":
                terms[step.node] = max(step.term, terms.get(step.node, 0))
                last[step.node] = at
            elif step.kind == "beat" and step.node in terms:
                terms[step.node] = max(step.term, terms[step.node])
                last[step.node] = at
            elif step.kind == "unregister":
                terms.pop(step.node, None)
        return max(terms.values(), default=0)


@settings(max_examples=300, deadline=None)
@given(steps)
def test_the_table_agrees_with_a_model_that_replays_everything(script: list[Step]) -> None:
    table, model, now = RouteTable(), Model(), 0
    for step in script:
        now += step.wait
        revision, before = table.revision, table.broker_groups("local")
        if step.kind == "register":
            # The registration names only its own node, so that life depends on the nameserver's own eyes
            # alone.
            table.register(step.node, "i", route(step.term, step.leader, nodes=step.node), False, now)
        elif step.kind == "beat":
            table.beat("local", "g0", step.node, step.term, step.leader, now)
        elif step.kind == "suspect":
            table.suspect("local", "g0", step.node, now)
        elif step.kind == "unregister":
            table.unregister("local", "g0", step.node)
        else:
            table.expire(now)
        model.events.append((now, step))
        views = table.broker_groups("local")
        assert (table.revision > revision) >= (views != before), "a change was not announced"
        assert {n.node_id for v in views for n in v.nodes if n.alive} == model.living(now)
        assert (views[0].term if views else 0) == model.term()


def test_a_group_whose_last_node_left_is_remembered_only_for_those_who_ask_for_it(
    table: RouteTable,
) -> None:
    table.unregister("local", "g0", "n1")
    assert table.gone_broker_groups("local") == []
    table.expire(10_000)
    assert table.broker_groups("local") == []
    assert table.route("local", "orders") == []
    (gone,) = table.gone_broker_groups("", "external")
    assert [(node.node_id, node.alive) for node in gone.nodes] == [("n1", False), ("n2", False)]
    assert gone.nodes[1].listeners[0].log_address == "127.0.0.1:18082"
    assert not gone.leader_id
    assert not gone.topics
    table.register("n1", "i", route(), True, 11_000)
    assert table.gone_broker_groups("local") == []


def test_so_many_groups_that_left_are_remembered_and_no_more() -> None:
    table = RouteTable()
    for number in range(MAX_GONE_BROKER_GROUPS + 1):
        view = route()
        view.group = f"g{number:03}"
        table.register("n1", "i", view, True, 0)
        table.unregister("local", view.group, "n1")
    names = [view.group for view in table.gone_broker_groups("local")]
    assert names == [f"g{number:03}" for number in range(1, MAX_GONE_BROKER_GROUPS + 1)]


def test_of_a_group_that_left_it_is_remembered_when_it_was_heard_last_and_which_topics_it_had(
    table: RouteTable,
) -> None:
    table.beat("local", "g0", "n2", 1, "n1", 700)
    table.expire(12_000)
    (gone,) = table.remembered("local")
    assert (gone.heard_at, [info.name for info in gone.topics]) == (700, ["orders"])
    assert table.remembered("elsewhere") == []


def test_a_group_that_is_lost_for_good_is_forgotten_and_a_node_of_it_that_comes_back_registers_anew(
    table: RouteTable,
) -> None:
    assert table.nodes_of("local", "g0") == ["n1", "n2"]
    table.expire(10_000)
    assert table.nodes_of("local", "g0") == []
    revision = table.revision
    assert table.forget("local", "g0")
    assert not table.forget("local", "g0")
    assert table.gone_broker_groups("") == table.remembered("") == []
    assert table.revision == revision, "no answer for clients changes by that"
    assert not table.beat("local", "g0", "n2", 1, "n1", 11_000), "it has to register again"
    table.register("n2", "i", route(nodes="n1 n2"), False, 11_001)
    assert alive(table)["n2"]


def test_a_removed_group_is_forgotten_with_its_dead_nodes_and_that_it_was_here(table: RouteTable) -> None:
    table.suspect("local", "g0", "n2", 1)
    revision = table.revision
    assert table.remove("local", "g0", "n1")
    assert table.revision == revision + 1
    assert table.broker_groups("local") == table.gone_broker_groups("local") == []
    assert not table.remove("local", "g0", "n1")
    assert not table.beat("local", "g0", "n1", 1, "n1", 2), "it has to register again"
    table.register("n1", "i", route(), True, 3)
    assert table.broker_groups("local")
    table.unregister("local", "g0", "n1")
    assert table.gone_broker_groups("local")
    assert not table.remove("local", "g0", "n1"), "no answer for clients changes by that"
    assert table.gone_broker_groups("local") == []


def drained(version: int = 5) -> pb.GroupRoute:
    found = route(version=version, nodes="n1 n2 n3")
    found.mode, found.writable = pb.MODE_DRAINING, False
    return found


def test_who_was_away_when_a_group_was_taken_back_takes_only_itself_out_of_it() -> None:
    """Or who was of a group that had the name before."""
    table = table_with("n1", "n2", "n3")
    table.remove("local", "g0", "n3")
    assert not table.beat("local", "g0", "n3", 1, "n1", 2), "it is forgotten"
    (view,) = table.broker_groups("local")
    assert {"n1", "n2"} <= {node.node_id for node in view.nodes if node.alive}


def test_the_first_goodbye_of_a_drained_group_takes_all_of_it() -> None:
    table = RouteTable()
    for name in ("n1", "n2", "n3"):
        table.register(name, "i", drained(), False, 1)
    assert table.remove("local", "g0", "n3")
    assert table.broker_groups("local") == []


def test_the_mode_of_a_group_is_that_of_its_newest_view(table: RouteTable) -> None:
    drained = route(version=5, nodes="n1 n2")
    drained.mode, drained.writable = pb.MODE_DRAINING, False
    table.register("n1", "i", drained, True, 1)
    (view,) = table.broker_groups("local")
    assert (view.mode, view.writable) == (pb.MODE_DRAINING, False)


def mastered(node_id: str, master: str, generation: int) -> pb.GroupRoute:
    view = route(leader="", nodes=node_id)
    view.replication, view.master_id, view.generation = "async_master", master, generation
    return view


def test_the_master_of_the_latest_generation_is_named() -> None:
    table = RouteTable()
    assert table.master("local", "g0") == (0, "")
    table.register("n1", "i", mastered("n1", "n1", 0), False, 0)
    table.register("n2", "i", mastered("n2", "n2", 1), False, 0)
    assert table.master("local", "g0") == (1, "n2")
    (view,) = table.broker_groups("local")
    assert (view.master_id, view.generation) == ("n2", 1)


def test_a_slave_that_asks_does_not_make_the_master_forgotten() -> None:
    table = RouteTable()
    table.register("n1", "i", mastered("n1", "n1", 3), False, 0)
    table.unregister("local", "g0", "n1")
    assert table.master("local", "g0") == (3, "n1")
    table.register("n2", "", pb.GroupRoute(cluster="local", group="g0"), False, 0)
    assert table.master("local", "g0") == (3, "n1")
