"""Ports, folder and flags of a local cluster; nothing is started here."""

from __future__ import annotations

import asyncio
import itertools
import json
import socket
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from ledgermq.client.cli.up import after_a_kill
from ledgermq.client.errors import LedgerMQError, UsageError
from ledgermq.client.local import cluster as local_cluster
from ledgermq.client.local import ports as local_ports
from ledgermq.client.local.cluster import LocalCluster, broker_flags, broker_groups_there
from ledgermq.client.local.plan import LocalPlan, new_plan, read_plan
from ledgermq.client.local.ports import NodePorts, PortReservations
from ledgermq.client.local.processes import ProcessEndedError, ServerProcess, require_running
from ledgermq.nameserver.service import NameServer
from ledgermq.proto import route_pb2


def made(folder: Path, *arguments: Any, **options: Any) -> LocalPlan:
    """Prepare a folder, and release it."""
    cluster = LocalCluster(folder)
    try:
        return cluster.prepare(*arguments, **options)
    finally:
        cluster.stop()


def test_nodes_get_the_known_ports_and_ten_more_each() -> None:
    found = list(itertools.islice(local_ports.node_ports(free=lambda port: True), 3))
    assert found == [
        NodePorts(8081, 8082, 20911, 5557),
        NodePorts(8091, 8092, 20921, 5567),
        NodePorts(8101, 8102, 20931, 5577),
    ]


def test_a_busy_port_moves_the_whole_node_to_the_next_free_set() -> None:
    found = local_ports.node_ports(free=lambda port: port != 5567)
    assert [ports.messaging for ports in itertools.islice(found, 3)] == [8081, 8101, 8111]


def test_the_nameserver_takes_the_next_free_port() -> None:
    assert local_ports.nameserver_port(free=lambda port: port not in (9876, 9877)) == 9878


def test_a_plan_survives_the_file(tmp_path: Path) -> None:
    plan = LocalPlan(9876, {"g0": {"n1": NodePorts(), "n2": NodePorts().shifted(10)}})
    (tmp_path / "cluster.json").write_text(plan.to_json())
    assert read_plan(tmp_path / "cluster.json") == plan


def test_a_plan_of_a_newer_format_is_refused_with_both_versions(tmp_path: Path) -> None:
    path = tmp_path / "cluster.json"
    path.write_text(
        LocalPlan(9876, {"g0": {"n1": NodePorts()}}).to_json().replace('"format": 1', '"format": 9')
    )
    with pytest.raises(UsageError, match=r"format 9; this version of LedgerMQ knows 1 to 3"):
        read_plan(path)


def test_a_damaged_plan_names_the_file(tmp_path: Path) -> None:
    path = tmp_path / "cluster.json"
    path.write_text("{")
    with pytest.raises(UsageError, match=r"cluster\.json cannot be read"):
        read_plan(path)


def test_a_folder_keeps_its_number_of_nodes(tmp_path: Path) -> None:
    plan = made(tmp_path, 3, free_ports_only=True)
    with pytest.raises(UsageError, match="a cluster of 3 nodes, not of 5"):
        made(tmp_path, 5)
    assert made(tmp_path, None) == plan


def test_a_plan_of_several_groups_survives_the_file(tmp_path: Path) -> None:
    plan = new_plan(3, PortReservations(tmp_path / "ports"), 2, free_ports_only=True)
    (tmp_path / "cluster.json").write_text(plan.to_json())
    assert read_plan(tmp_path / "cluster.json") == plan
    assert {group: list(nodes) for group, nodes in plan.groups.items()} == {
        "g0": ["n1", "n2", "n3"],
        "g1": ["n4", "n5", "n6"],
    }


def test_one_group_is_written_as_versions_before_several_groups_read_it(tmp_path: Path) -> None:
    content = json.loads(LocalPlan(9876, {"g0": {"n1": NodePorts()}}).to_json())
    assert content["format"] == 1
    assert content["nodes"] == {"n1": {"messaging": 8081, "log": 8082, "raft": 20911, "http": 5557}}


def test_a_folder_of_one_group_gets_another_beside_it(tmp_path: Path) -> None:
    before = made(tmp_path, 3, free_ports_only=True)
    second = LocalCluster(tmp_path)
    after = second.prepare(None, 2)
    assert read_plan(tmp_path / "cluster.json") == before, "whether the name is free is not known yet"
    second.keep_plan()
    second.stop()
    assert after.groups["g0"] == before.groups["g0"]
    assert list(after.groups["g1"]) == ["n4", "n5", "n6"]
    assert second.added == ("g1",)
    ports = [port for node in after.nodes.values() for port in node.all()]
    assert len(set(ports)) == 24
    again = LocalCluster(tmp_path)
    assert again.prepare(None) == after
    assert again.added == ()
    again.stop()


@pytest.mark.parametrize(("group", "node"), [("g1", "n9"), ("g7", "n5")])
async def test_a_group_is_not_added_under_a_name_that_one_has_which_joined_the_cluster(
    tmp_path: Path, group: str, node: str
) -> None:
    """Its folder is another one: only the nameserver hears of it, a moment after it was started."""
    before = made(tmp_path, 3, free_ports_only=True)
    second = LocalCluster(tmp_path)
    second.prepare(None, 2)
    server = NameServer({"default": before.nameserver}, 10_000)
    checking = asyncio.create_task(asyncio.to_thread(second.check_added))
    await server.start()
    route = route_pb2.GroupRoute(cluster="local", group=group)
    route.nodes.add(node_id=node, alive=True)
    server.table.register(node, "i", route, True, 0)
    with pytest.raises(UsageError, match=rf"{group} \({node}\) belongs to this cluster already") as refused:
        await checking
    assert f"ledgermq up --data OTHER --join {before.nameserver}" in refused.value.next_step
    second.stop()
    await server.stop(0)
    assert read_plan(tmp_path / "cluster.json") == before


async def test_a_group_is_added_when_no_other_has_its_name() -> None:
    server = NameServer({"default": "127.0.0.1:0"}, 10_000)
    await server.start()
    server.table.register("n1", "i", route_pb2.GroupRoute(cluster="local", group="g0"), True, 0)
    address = server.addresses["default"]
    assert await asyncio.to_thread(broker_groups_there, address, ["g1"], ["n4"], 0.3) == {}
    await server.stop(0)


def test_a_folder_is_not_started_with_fewer_groups_than_it_has(tmp_path: Path) -> None:
    plan = made(tmp_path, 1, 2, free_ports_only=True)
    with pytest.raises(
        UsageError, match=r"holds 2 broker groups \(g0, g1\), not 1.*Nothing was changed.*up --data"
    ):
        made(tmp_path, None, 1)
    assert read_plan(tmp_path / "cluster.json") == plan


def test_a_folder_that_joins_a_cluster_goes_on_with_its_names_and_has_no_nameserver(tmp_path: Path) -> None:
    known = ("127.0.0.1:9999", frozenset({"g0", "g3", "east"}), frozenset({"n1", "n12", "left"}))
    first = LocalCluster(tmp_path)
    first.joins = known
    plan = first.prepare(3, 2)
    assert {group: list(nodes) for group, nodes in plan.groups.items()} == {
        "g4": ["n13", "n14", "n15"],
        "g5": ["n16", "n17", "n18"],
    }
    assert first.nameserver is None
    assert all("127.0.0.1:9999" in process.arguments for process in first.nodes.values())
    first.stop()
    assert read_plan(tmp_path / "cluster.json") == plan
    assert made(tmp_path, None).groups == plan.groups, "the nameserver is kept in the folder"


def test_the_groups_of_a_folder_stay_in_their_cluster(tmp_path: Path) -> None:
    own, joined = LocalCluster(tmp_path / "own"), LocalCluster(tmp_path / "joined")
    own.prepare(1, free_ports_only=True)
    own.stop()
    joined.joins = ("127.0.0.1:9999", frozenset({"g0"}), frozenset({"n1"}))
    joined.prepare(1)
    joined.stop()
    for folder, groups, text in (
        ("own", None, "belong to a cluster of their own"),
        ("joined", None, "belong to the cluster at 127.0.0.1:9999"),
    ):
        other = LocalCluster(tmp_path / folder)
        other.joins = ("127.0.0.1:7777", frozenset(), frozenset())
        with pytest.raises(UsageError, match=f"{text}.*Nothing was changed"):
            other.prepare(None, groups)
        other.stop()
    with pytest.raises(UsageError, match=r"a joined folder gets no more.*--join 127\.0\.0\.1:9999"):
        made(tmp_path / "joined", None, 2)


def test_nodes_are_told_the_voters_of_their_own_group_only(tmp_path: Path) -> None:
    plan = new_plan(3, PortReservations(tmp_path), 2, free_ports_only=True)
    flags = broker_flags("g1", "n5", plan.nodes["n5"], plan, Path("data/n5"))
    peers = flags[flags.index("--peers") + 1].split(",")
    assert [peer.partition("=")[0] for peer in peers] == ["n4", "n5", "n6"]
    assert flags[flags.index("--group") + 1] == "g1"


def test_a_folder_keeps_its_replication_and_its_first_nodes_are_the_masters(tmp_path: Path) -> None:
    plan = made(tmp_path, 2, 2, replication="async_master", free_ports_only=True)
    assert read_plan(tmp_path / "cluster.json") == plan
    for name, master in {"n1": "n1", "n2": "n1", "n3": "n3", "n4": "n3"}.items():
        group = next(group for group, nodes in plan.groups.items() if name in nodes)
        flags = broker_flags(group, name, plan.nodes[name], plan, tmp_path)
        assert flags[flags.index("--master") + 1] == master
    again = LocalCluster(tmp_path)
    assert again.prepare(None, replication="sync_master").replication == "sync_master"
    again.stop()
    with pytest.raises(UsageError, match="fixed when a broker group is made"):
        made(tmp_path, None, replication="quorum")


def test_groups_that_join_a_cluster_have_the_replication_that_was_asked_for(tmp_path: Path) -> None:
    cluster = LocalCluster(tmp_path)
    cluster.joins = ("127.0.0.1:9999", frozenset({"g0"}), frozenset({"n1"}))
    plan = cluster.prepare(2, replication="sync_master")
    cluster.stop()
    flags = broker_flags("g1", "n3", plan.nodes["n3"], plan, tmp_path)
    assert flags[flags.index("--replication") + 1] == "sync_master"
    assert flags[flags.index("--master") + 1] == "n2"
    assert read_plan(tmp_path / "cluster.json") == plan


def test_a_folder_in_use_is_refused_with_the_process(tmp_path: Path) -> None:
    first = LocalCluster(tmp_path)
    first.prepare(1, free_ports_only=True)
    with pytest.raises(UsageError, match="in use by another ledgermq"):
        LocalCluster(tmp_path).prepare(1)
    first.stop()


def test_every_node_is_told_all_voters(tmp_path: Path) -> None:
    plan = new_plan(3, PortReservations(tmp_path), free_ports_only=True)
    flags = broker_flags("g0", "n2", plan.nodes["n2"], plan, Path("data/n2"))
    assert flags[flags.index("--peers") + 1].count("=") == 3
    assert flags[flags.index("--node") + 1] == "n2"


def test_clusters_that_are_prepared_at_the_same_moment_get_different_ports(tmp_path: Path) -> None:
    """Nothing listens yet when the second one chooses."""
    clusters = [LocalCluster(tmp_path / name) for name in ("a", "b")]
    try:
        plans = [cluster.prepare(3) for cluster in clusters]
        ports = [port for plan in plans for node in plan.nodes.values() for port in node.all()]
        ports += [plan.nameserver_port for plan in plans]
        assert len(set(ports)) == len(ports) == 26
        for cluster in clusters:
            cluster.stop()
        again = LocalCluster(tmp_path / "b")
        clusters.append(again)
        assert again.prepare(None) == plans[1]
    finally:
        for cluster in clusters:
            cluster.stop()


def test_a_port_is_reserved_until_it_is_given_back(tmp_path: Path) -> None:
    first, second = PortReservations(tmp_path), PortReservations(tmp_path)
    (port,) = first.unlisted(1)
    assert not second.take(port)
    assert not first.take(port)
    first.release()
    assert second.take(port)
    second.release()


def test_a_port_that_somebody_listens_on_cannot_be_reserved(tmp_path: Path) -> None:
    reserved = PortReservations(tmp_path)
    with socket.create_server(("127.0.0.1", 0)) as busy:
        assert not reserved.take(busy.getsockname()[1])


def test_what_a_kill_of_the_first_node_means_is_told_as_it_is() -> None:
    """A group whose master is gone stores nothing: it does not "stay"."""
    one = {"n1": NodePorts()}
    both = {**one, "n2": NodePorts().shifted(10)}
    assert after_a_kill("n1", LocalPlan(9876, {"g0": one})) == "n1 goes; it is restarted here"
    assert "one of two is no majority" in after_a_kill("n1", LocalPlan(9876, {"g0": both}))
    three = {**both, "n3": NodePorts().shifted(20)}
    said = after_a_kill("n1", LocalPlan(9876, {"g0": three}))
    assert said == "n1 goes, the broker group stays; it is restarted here"
    for replication in ("async_master", "sync_master"):
        said = after_a_kill("n1", LocalPlan(9876, {"g0": both}, replication=replication))
        assert "stays" not in said
        assert "none be stored until it is back" in said and "ledgermq cluster promote NODE" in said


def test_a_rejoin_of_a_node_that_was_never_there_makes_no_folder(tmp_path: Path) -> None:
    folder = tmp_path / "new"
    with pytest.raises(UsageError, match='no node "n9"'):
        LocalCluster(folder).prepare(3, free_ports_only=True, rejoin="n9")
    assert not folder.exists()


def test_a_rejoin_of_an_unknown_node_leaves_a_folder_as_it_was(tmp_path: Path) -> None:
    made(tmp_path, 3, free_ports_only=True)
    before = (tmp_path / "cluster.json").read_bytes()
    with pytest.raises(UsageError, match="The nodes are n1, n2, n3"):
        made(tmp_path, None, 2, rejoin="n9")
    assert (tmp_path / "cluster.json").read_bytes() == before
    third = LocalCluster(tmp_path)
    assert list(third.prepare(None, rejoin="n2").nodes) == ["n1", "n2", "n3"]
    third.stop()


@pytest.mark.parametrize("made_as", ["async_master", "sync_master"])  # versions before made the latter, too
def test_a_folder_of_one_node_is_not_started_as_sync_master(tmp_path: Path, made_as: str) -> None:
    made(tmp_path, 1, free_ports_only=True, replication=made_as)
    with pytest.raises(UsageError, match="--replication async_master"):
        made(tmp_path, None, replication="sync_master")
    third = LocalCluster(tmp_path)
    assert third.prepare(None, replication="async_master").replication == "async_master"
    third.stop()


def scripted(folder: Path, **scripts: str) -> LocalCluster:
    """A cluster whose processes run these lines of Python; the others wait to be ended."""
    cluster = LocalCluster(folder)
    cluster.prepare(3, free_ports_only=True)
    assert cluster.nameserver is not None
    for process in (cluster.nameserver, *cluster.nodes.values()):
        process.arguments = ["-c", scripts.get(process.name, "import time; time.sleep(600)")]
    return cluster


@pytest.mark.parametrize("name", ["n2", "nameserver"])
def test_the_process_that_ended_is_named_and_not_the_one_that_waits_for_it(tmp_path: Path, name: str) -> None:
    cluster = scripted(tmp_path, **{name: "print('port 5567 is in use'); raise SystemExit(3)"})
    log = tmp_path / "logs" / f"{name}.log"
    log.parent.mkdir()
    log.write_text("a line of the last run\n")
    try:
        with pytest.raises(ProcessEndedError) as ended:
            cluster.start()
    finally:
        cluster.stop()
    assert (ended.value.name, ended.value.code) == (name, 3)
    said = str(ended.value)
    assert f"{name} ended (exit code 3):\nport 5567 is in use" in said and str(log) in said
    assert "n1 " not in said and "the last run" not in said


def test_when_several_ended_all_are_named(tmp_path: Path) -> None:
    processes = [ServerProcess(name, ["-c", "print('no')"], tmp_path / name) for name in ("n1", "n2")]
    for process in processes:
        process.start()
        assert process.wait(60)
    with pytest.raises(ProcessEndedError, match=r"n1 ended \(exit code 0\); n2 ended, too:\nno"):
        require_running(processes)


class Waits(LocalCluster):
    """Its nodes answer what the test says, one answer per question."""

    def __init__(self, folder: Path, *answers: str) -> None:
        super().__init__(folder)
        self.answers = list(answers)

    def not_ready(self, name: str) -> str:
        return self.answers.pop(0)


def test_a_node_that_verifies_its_log_is_waited_for_and_what_it_does_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    times = itertools.count(0, 9)
    monkeypatch.setattr(local_cluster, "time", SimpleNamespace(monotonic=lambda: next(times), sleep=id))
    said: list[tuple[str, str]] = []
    verifies = [f"starting: verifies its log: segment {n} of 12" for n in range(1, 13)]
    Waits(tmp_path, *verifies, "").wait_ready("n1", 60, lambda *what: said.append(what))
    assert said == [("n1", text) for text in verifies], "108 s were no reason to give up"
    stuck = Waits(tmp_path, *["no leader is known: waits for a majority"] * 99)
    stuck.nodes["n1"] = ServerProcess("n1", [], tmp_path / "n1.log")
    monkeypatch.setattr(local_cluster, "require_running", lambda processes: None)
    with pytest.raises(LedgerMQError, match="n1 is not ready after 63 s: no leader is known: waits for a"):
        stuck.wait_ready("n1", 60)
