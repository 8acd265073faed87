"""Bad input against a running cluster, one for the module; test_bad_input.py has the rules for errors."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest

from .cluster import Cluster
from .test_bad_input import Row, arguments_of_a_broker, check, run


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with Cluster(tmp_path_factory.mktemp("bad-input"), settings={"auto-create-topics": "false"}) as running:
        code, text = run(["topic", "create", "orders", "-n", running.nameserver])
        assert code == 0, text
        yield running


WITH_CLUSTER = [
    Row("unknown topic", "send order hi -n {ns}", 1,
        ('topic "order" does not exist', "{ns}", 'Did you mean "orders"?', "ledgermq topic create order")),
    Row("topic without any likeness", "consume zebra --group g --count 1 -n {ns}", 1,
        ("zebra", "topic create zebra")),
    Row("topic exists", "topic create orders -n {ns}", 1, ("orders", "exists")),
    Row("bad topic name", "topic create bad.name! -n {ns}", 1, ("bad.name!",)),
    Row("empty topic name", "topic create '' -n {ns}", 1, ("not a valid topic name",)),
    Row("too many queues", "topic create wide --queues 5000 -n {ns}", 2, ("--queues", "1,024")),
    Row("topic type that is none", "topic create typed --type odd -n {ns}", 1, ("odd", "fifo")),
    Row("describe an unknown topic", "topic describe order -n {ns}", 1, ("order", "orders")),
    Row("delete an unknown topic", "topic delete nothing --yes -n {ns}", 1, ("nothing",)),
    Row("oversized body", "send orders --size 5000000 -n {ns}", 1,
        ("5,000,000", "4,194,304", "Nothing was sent")),
    Row("empty body", "send orders '' -n {ns}", 2, ("nothing to send", "--help")),
    Row("unknown group", "group describe nobody -n {ns}", 1, ("nobody",)),
    Row("bad group name", "group create bad.name! -n {ns}", 1, ("bad.name!",)),
    Row("reset to nonsense", "group reset nobody --topic orders --to nowhere -n {ns}", 2,
        ("nowhere", "earliest")),
    Row("transfer to nobody", "cluster transfer n9 -n {ns}", 1, ("n9", "n1, n2, n3")),
    Row("a messaging port as nameserver", "topic list -n {messaging}", 1,
        ("{messaging}", "not a nameserver", ":9876")),
    Row("status of a messaging port", "cluster status -n {messaging}", 3,
        ("{messaging}", "not a nameserver", "9876")),
    Row("leader of an unknown group", "cluster leader --group g9 -n {ns}", 3, ("g9", "g0")),
    Row("status of the messaging port", "cluster status --node {messaging}", 3, ("{messaging}",)),
    Row("dump into a foreign folder", "dump {data} -n {ns}", 1, ("{data}/n1", "Nothing was changed"),
        {"n1/mine": "x"}),
]  # fmt: skip  # fmt: skip


@pytest.mark.parametrize("row", WITH_CLUSTER, ids=lambda row: row.name)
def test_bad_input_against_a_cluster(row: Row, cluster: Cluster, tmp_path: Path) -> None:
    for name, content in row.files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(content)
    names = {
        "ns": cluster.nameserver,
        "data": str(tmp_path),
        "messaging": cluster.address("n1", "messaging"),
    }
    code, text = run([part.format(**names) for part in shlex.split(row.arguments)], row.environment)
    check(row, code, text, names)
    for name, content in row.files.items():
        assert (tmp_path / name).read_text() == content


def test_a_locked_folder_is_refused_while_its_node_runs(cluster: Cluster, tmp_path: Path) -> None:
    folder = cluster.folder / "n1"
    arguments = [*arguments_of_a_broker(tmp_path), "--data", str(folder)]
    arguments += ["--peers", ",".join(f"{n}=127.0.0.1:{p.ports['raft']}" for n, p in cluster.nodes.items())]
    code, text = run(arguments)
    check(Row("locked", "", 3, ("n1 will not start", str(folder))), code, text, {})
    assert cluster.nodes["n1"].running


def test_a_group_is_not_recovered_from_the_folder_of_a_running_node(cluster: Cluster) -> None:
    code, text = run(["cluster", "recover", "--data", str(cluster.folder / "n1"), "--yes-lose-data", "g0"])
    words = (
        str(cluster.folder / "n1"),
        "in use",
        "Stop that node first",
        "ledgermq cluster status",
        "nothing was changed",
    )
    check(Row("recover a running node", "", 1, words), code, text, {})
    assert cluster.nodes["n1"].running


def test_nothing_was_stored_by_any_of_this(cluster: Cluster) -> None:
    code, text = run(["topic", "list", "--json", "-n", cluster.nameserver])
    assert code == 0
    assert text.count('"topic":') == 1, text


def test_without_quorum_a_send_fails_in_its_time_and_status_says_why(tmp_path: Path) -> None:
    with Cluster(tmp_path) as cluster:
        ns = cluster.nameserver
        assert run(["topic", "create", "orders", "-n", ns])[0] == 0
        leader = cluster.wait_leader()
        first, second = (name for name in cluster.nodes if name != leader)
        cluster.kill(first)
        code, text = run(["cluster", "transfer", first, "-n", ns])
        row = Row(
            "transfer to a dead node", "", 1, (f"{first} cannot take over", f"ledgermq broker --node {first}")
        )
        check(row, code, text, {})
        cluster.kill(second)
        code, text = run(["send", "orders", "hi", "--timeout", "3", "-n", ns])
        row = Row("no quorum", "", 1, ('topic "orders" was not acknowledged', "ledgermq cluster status"))
        check(row, code, text, {})
        code, text = run(["cluster", "status", "--node", cluster.address(leader)])
        assert code == 2, text
        assert "NO QUORUM" in text and "2 of 3" in text
