"""The commands against a fake cluster: what they print, for people and for programs, and their exit codes."""

from __future__ import annotations

import importlib.util
import io
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ledgermq.client import cli_dump
from ledgermq.client.cli import run_cli
from ledgermq.proto import admin_pb2
from ledgermq.proto import route_pb2 as pb

from .fake_messaging import MessagingCluster
from .fakes import FakeGroup
from .served import Served, served


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> Iterator[Served[MessagingCluster]]:
    monkeypatch.setenv("COLUMNS", "200")
    with served(lambda: MessagingCluster(FakeGroup(topics={"orders": 2}), nodes=3)) as running:
        monkeypatch.setenv("LEDGERMQ_NAMESERVER", running.address)
        yield running


@pytest.fixture
def ledgermq(cluster: Served[MessagingCluster], capsys: pytest.CaptureFixture[str]) -> Any:
    """Run one command line; return its exit code, stdout and stderr."""

    def command(*arguments: str) -> tuple[int, str, str]:
        code = run_cli(list(arguments))
        printed = capsys.readouterr()
        return code, printed.out, printed.err

    return command


def test_a_topic_is_created_listed_described_and_deleted(ledgermq: Any) -> None:
    assert ledgermq("topic", "create", "new", "-q", "3") == (
        0, 'topic "new" is there with 3 queues. Next: ledgermq send new "hello"\n', "",
    )  # fmt: skip
    _, out, _ = ledgermq("topic", "list")
    assert [line.split() for line in out.splitlines()] == [
        ["TOPIC", "QUEUES", "TYPE", "RETENTION"], ["new", "3", "normal", "-"], ["orders", "2", "normal", "-"],
    ]  # fmt: skip
    assert json.loads(ledgermq("topic", "list", "--json")[1])[0]["queues"] == 3
    _, out, _ = ledgermq("topic", "describe", "new")
    assert len(out.splitlines()) == 4
    assert len(json.loads(ledgermq("topic", "describe", "new", "--json")[1])["offsets"]) == 3
    assert ledgermq("topic", "delete", "new", "--yes")[0] == 0
    code, _, err = ledgermq("topic", "describe", "new")
    assert (code, "ledgermq topic create new" in err) == (1, True)


def test_the_retention_of_a_topic_is_set_when_it_is_created_and_changed(
    ledgermq: Any, cluster: Served[MessagingCluster]
) -> None:
    assert ledgermq("topic", "create", "logs", "--retention-hours", "1.5")[0] == 0
    assert cluster.cluster.node("n1").group.retention_ms["logs"] == 5_400_000
    assert json.loads(ledgermq("topic", "list", "--json")[1])[0]["retention_ms"] == 5_400_000
    _, out, _ = ledgermq("topic", "list")
    assert out.splitlines()[1].split() == ["logs", "4", "normal", "1.5", "h"]
    assert ledgermq("topic", "update", "logs", "--retention-hours", "48") == (
        0, 'topic "logs" shows messages for 48 hours\n', "",
    )  # fmt: skip
    assert "as long as the log holds them" in ledgermq("topic", "update", "logs", "--retention-hours", "0")[1]
    assert cluster.cluster.node("n1").group.retention_ms["logs"] == 0
    code, _, err = ledgermq("topic", "update", "lags", "--retention-hours", "1")
    assert (code, "logs" in err) == (1, True)


def test_deleting_asks_and_a_no_changes_nothing(
    ledgermq: Any, cluster: Served[MessagingCluster], monkeypatch: pytest.MonkeyPatch
) -> None:
    for command in (
        ("topic", "delete", "orders"),
        ("group", "delete", "g"),
        ("admin", "clean", "--even-unexpired"),
    ):
        monkeypatch.setattr(sys, "stdin", io.StringIO("n\n"))
        code, _, err = ledgermq(*command)
        assert code == 1
        assert "stopped by the user" in err
    assert "orders" in cluster.cluster.groups[0].topics


def test_an_empty_list_names_the_command_that_fills_it(ledgermq: Any) -> None:
    assert "ledgermq consume TOPIC --group NAME" in ledgermq("group", "list")[1]
    ledgermq("topic", "delete", "orders", "-y")
    assert "ledgermq topic create orders" in ledgermq("topic", "list")[1]


def test_members_of_a_group_and_what_they_own_are_described(
    ledgermq: Any, cluster: Served[MessagingCluster]
) -> None:
    ledgermq("group", "create", "billing")
    ledgermq("send", "orders", "hello")
    ledgermq("group", "reset", "billing", "--topic", "orders", "--to", "earliest")
    cluster.cluster.groups[0].members.append(
        admin_pb2.GroupMember(member_id="worker-1", topics=["orders", "paid"], filter="a || b", queues=4)
    )
    lines = ledgermq("group", "describe", "billing")[1].splitlines()
    assert lines[0].split()[-1] == "OWNER"
    assert lines[1].split()[-1] == "worker-1"
    assert lines[-2].split() == ["MEMBER", "GROUP", "QUEUES", "TOPICS", "FILTER"]
    assert lines[-1].split(maxsplit=3)[::2] == ["worker-1", "4"]
    assert "orders, paid" in lines[-1]
    described = json.loads(ledgermq("group", "describe", "billing", "--json")[1])
    assert {queue["owner"] for queue in described["queues"]} == {"worker-1"}
    assert [(each["member"], each["allocation"]) for each in described["members"]] == [("worker-1", "sticky")]


def test_a_group_is_created_listed_described_reset_and_deleted(ledgermq: Any) -> None:
    code, out, _ = ledgermq("group", "create", "billing", "--from", "latest", "--fifo")
    assert (code, "ledgermq consume TOPIC --group billing" in out) == (0, True)
    assert json.loads(ledgermq("group", "list", "--json")[1]) == [
        {"group": "billing", "start": "latest", "fifo": True, "max_attempts": 0, "clients": 0}
    ]
    assert "consumed nothing yet" in ledgermq("group", "describe", "billing")[1]
    ledgermq("send", "orders", "hello", "--count", "4")
    assert ledgermq("group", "reset", "billing", "--topic", "orders", "--to", "earliest")[0] == 0
    described = json.loads(ledgermq("group", "describe", "billing", "--json")[1])
    assert sum(queue["behind"] for queue in described["queues"]) == 4
    assert len(ledgermq("group", "describe", "billing")[1].splitlines()) == 3
    assert ledgermq("group", "delete", "billing", "-y")[0] == 0
    code, _, err = ledgermq("group", "describe", "billing")
    assert (code, "ledgermq group create billing" in err) == (1, True)


def test_sending_prints_where_the_message_is(ledgermq: Any, cluster: Served[MessagingCluster]) -> None:
    code, out, _ = ledgermq("send", "orders", "hello", "--message-group", "a")
    assert code == 0
    assert out.startswith("stored 01")
    assert out.endswith(" of g0 at offset 0\n")
    assert "orders[" in out
    code, out, _ = ledgermq("send", "orders", "--size", "10", "--count", "5", "--tag", "t", "--key", "k")
    assert (code, out.startswith("stored 5 messages in")) == (0, True)
    receipts = json.loads(ledgermq("send", "orders", "x", "--json")[1])
    assert receipts[0]["topic"] == "orders"
    assert cluster.call(cluster.cluster.groups[0].stored) == 7


class Lines(io.TextIOWrapper):
    """A stdin with these bytes."""

    def __init__(self, content: bytes) -> None:
        super().__init__(io.BytesIO(content))


def test_every_line_of_stdin_is_a_message(
    ledgermq: Any, cluster: Served[MessagingCluster], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "stdin", Lines(b"one\n\ntwo\n" * 1000))
    code, out, err = ledgermq("send", "orders", "-")
    assert (code, out.startswith("stored 2,000 messages in")) == (0, True)
    assert err == "1,000 blank lines were left out: a message has a body\n"
    monkeypatch.setattr(sys, "stdin", Lines(b"last"))
    receipts = json.loads(ledgermq("send", "orders", "-", "--json")[1])
    assert [receipt["topic"] for receipt in receipts] == ["orders"]
    monkeypatch.setattr(sys, "stdin", Lines(b""))
    assert json.loads(ledgermq("send", "orders", "-", "--json")[1]) == []
    assert cluster.call(cluster.cluster.groups[0].stored) == 2001


def test_lines_before_one_that_is_too_long_are_sent_and_the_error_says_so(
    ledgermq: Any, cluster: Served[MessagingCluster], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "stdin", Lines(b"one\ntwo\n" + bytes(5_000_000) + b"\nfour\n"))
    code, out, err = ledgermq("send", "orders", "-", "--json")
    assert (code, len(json.loads(out))) == (1, 2)
    assert "line 3 of stdin has more than 4,194,304 bytes" in err
    assert "The lines before it were sent" in err
    assert cluster.call(cluster.cluster.groups[0].stored) == 2


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("send", "orders", "hi", "--tag", ""), "invalid tag: it is empty"),
        (("send", "orders", "hi", "--message-group", " "), "invalid message_group: it is empty"),
        (("send", "orders", "hi", "--key", ""), "invalid key: it is empty"),
        (("send", "orders", "hi", "--tag", "t" * 20_000), "have 20000 bytes, 16384 are allowed"),
        (("send", "or ders", "hi"), "Nothing was sent"),
        (("send", "orders", "-", "--count", "2"), "--count goes with BODY or --size"),
        (("consume", "orders", "--group", "g", "--tag", ""), "the tag filter is empty"),
    ],
)
def test_empty_or_endless_labels_are_refused_and_nothing_is_sent(
    ledgermq: Any, cluster: Served[MessagingCluster], arguments: tuple[str, ...], words: str
) -> None:
    code, out, err = ledgermq(*arguments)
    assert (code in (1, 2), out) == (True, "")
    assert words in err
    assert cluster.call(cluster.cluster.groups[0].stored) == 0


def test_consuming_prints_bodies_and_acknowledges_them(
    ledgermq: Any, cluster: Served[MessagingCluster]
) -> None:
    messages = cluster.cluster.messages
    messages.groups = cluster.cluster.groups[0].groups
    cluster.call(messages.add, b"a", b"b", b"c")
    code, out, _ = ledgermq("consume", "orders", "--group", "billing", "--count", "2")
    assert (code, out) == (0, "a\nb\n")
    code, out, _ = ledgermq("consume", "orders", "--group", "billing", "--count", "1", "--json")
    assert json.loads(out)["body"] == "c"
    assert sorted(messages.acked) == [b"a", b"b", b"c"]
    assert "billing" in cluster.cluster.groups[0].groups


def test_fewer_messages_than_asked_for_is_an_exit_code(
    ledgermq: Any, cluster: Served[MessagingCluster]
) -> None:
    cluster.call(cluster.cluster.messages.add, b"a")
    code, out, err = ledgermq("consume", "orders", "-g", "billing", "-c", "3", "--timeout", "0.02", "--quiet")
    assert (code, out) == (1, "")
    assert "received 1 message\n" in err
    assert "2 messages fewer than asked for. See: ledgermq topic describe orders" in err
    _, _, err = ledgermq("consume", "orders", "-g", "billing", "-c", "1", "--timeout", "0.02")
    assert "1 message fewer than asked for." in err


def test_cleaning_tells_what_is_deleted(ledgermq: Any, cluster: Served[MessagingCluster]) -> None:
    assert ledgermq("admin", "clean", "--dry-run", "--older-than-hours", "0.5") == (
        0,
        "g0: would delete 1 segments, 1,048,576 bytes\n    the log begins at entry 9 then\n    the newest segment always stays\n",
        "",
    )  # fmt: skip
    request = cluster.cluster.node("n1").cleaned
    assert request is not None
    assert (request.dry_run, request.older_than_ms) == (True, 1_800_000)
    answer = json.loads(ledgermq("admin", "clean", "--even-unexpired", "--yes", "--json")[1])
    assert answer[0]["segments"] == ["00000000000000000000"]


def test_the_status_is_an_exit_code(ledgermq: Any, cluster: Served[MessagingCluster]) -> None:
    code, out, _ = ledgermq("cluster", "status")
    assert (code, "HEALTHY" in out) == (0, True)
    report = json.loads(ledgermq("cluster", "status", "--json", "--wait", "30s")[1])
    assert (len(report["groups"]), report["error"]) == (1, "")
    node = cluster.cluster.node("n2").address
    assert ledgermq("cluster", "status", "--node", node)[0] == 0
    assert ledgermq("cluster", "status", "--node", "127.0.0.1:1")[0] == 3
    assert ledgermq("cluster", "status", "--nameserver", "127.0.0.1:1")[0] == 3


def test_the_leader_is_named_and_moved(ledgermq: Any, cluster: Served[MessagingCluster]) -> None:
    assert ledgermq("cluster", "leader", "-q")[:2] == (0, "n1\n")
    assert ledgermq("cluster", "transfer", "n3")[:2] == (0, "n3 leads\n")
    assert ledgermq("cluster", "leader", "--quiet")[1] == "n3\n"
    code, _, err = ledgermq("cluster", "transfer", "n3")
    assert (code, err) == (1, "error: it leads already.\n")
    code, _, err = ledgermq("cluster", "transfer", "n9")
    assert (code, "The nodes are n1, n2, n3" in err) == (1, True)
    assert ledgermq("cluster", "leader", "--group", "g7")[0] == 3


def test_the_port_of_another_service_is_named_as_the_mistake(
    ledgermq: Any, cluster: Served[MessagingCluster]
) -> None:
    code, _, err = ledgermq("cluster", "leader", "--node", cluster.cluster.messaging[0].address)
    assert (code, "is not the log port of a node" in err) == (3, True)


def test_a_dump_holds_every_node_and_replaces_the_one_before(
    ledgermq: Any, cluster: Served[MessagingCluster], tmp_path: Path
) -> None:
    for _ in range(2):
        code, out, _ = ledgermq("dump", str(tmp_path))
        assert (code, f"Next: ledgermq check {tmp_path}" in out) == (0, True)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["n1", "n2", "n3"]
    assert (tmp_path / "n1/commitlog/00").read_bytes() == b"abcdef"
    assert (tmp_path / "n1/manifest.json").read_bytes() == b"{}"


def test_a_node_that_does_not_answer_makes_the_dump_fail(
    ledgermq: Any, cluster: Served[MessagingCluster], tmp_path: Path
) -> None:
    cluster.run(cluster.cluster.node("n2").stop())
    code, _, err = ledgermq("dump", str(tmp_path))
    assert code == 1
    assert "there is no dump of n2" in err
    assert "See: ledgermq cluster status" in err
    assert sorted(path.name for path in tmp_path.iterdir()) == ["n1", "n3"]


@pytest.mark.parametrize(
    ("chunks", "words"),
    [
        ((("../evil", b"x"), ("manifest.json", b"{}")), "a file name that is not allowed"),
        ((("/etc/evil", b"x"), ("manifest.json", b"{}")), "a file name that is not allowed"),
        ((("commitlog/00", b"x"),), "ended without its manifest"),
    ],
)
def test_a_dump_that_cannot_be_right_is_an_error(
    ledgermq: Any, cluster: Served[MessagingCluster], tmp_path: Path, chunks: Any, words: str
) -> None:
    cluster.cluster.node("n1").dump = chunks
    code, _, err = ledgermq("dump", str(tmp_path / "d"))
    assert (code, words in err) == (1, True)
    assert [path.name for path in tmp_path.iterdir()] == ["d"]


def test_a_refused_dump_leaves_nothing_that_looks_complete(
    ledgermq: Any, cluster: Served[MessagingCluster], tmp_path: Path
) -> None:
    assert ledgermq("dump", str(tmp_path))[0] == 0
    cluster.cluster.node("n1").dump_refusal = pb.Refusal(code=pb.DISK_FULL, message="no")
    code, _, err = ledgermq("dump", str(tmp_path))
    assert (code, err) == (1, "error: no.\n")
    assert not (tmp_path / "n1/manifest.json").exists()


def test_a_silent_node_is_given_up(
    ledgermq: Any, cluster: Served[MessagingCluster], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cli_dump, "_CHUNK_SECONDS", 0.0)
    code, _, err = ledgermq("dump", str(tmp_path))
    assert (code, "It sent nothing for 0 s" in err) == (1, True)


@pytest.mark.parametrize("name", ["identity", "commitlog"])
@pytest.mark.parametrize("more", [(), ("--data", "stopped")])
def test_a_dump_is_not_written_into_the_data_folder_of_a_node(
    ledgermq: Any, tmp_path: Path, name: str, more: tuple[str, ...]
) -> None:
    (tmp_path / name).mkdir()
    code, _, err = ledgermq("dump", str(tmp_path), *more)
    assert (code, f"looks like the data folder of a node (it holds {name})" in err) == (1, True)
    assert [path.name for path in tmp_path.iterdir()] == [name]


def test_a_group_that_is_moved_to_a_time_to_come_is_at_the_end(ledgermq: Any) -> None:
    ledgermq("group", "create", "billing")
    for to, said in (
        ("9000-01-01T00:00:00", "at the end of topic"),
        ("2026-01-01T00:00:00", "at 2026-01-01T"),
    ):
        code, out, _ = ledgermq("group", "reset", "billing", "--topic", "orders", "--to", to)
        assert (code, f'"billing" continues {said}' in out) == (0, True), out


@pytest.mark.parametrize("group", [[], ["cluster"]])
def test_no_line_of_a_list_of_commands_is_cut(
    ledgermq: Any, monkeypatch: pytest.MonkeyPatch, group: list[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    _, out, _ = ledgermq(*group, "--help")
    listed = out.partition("Commands:\n")[2]
    assert len(listed.splitlines()) > 8 and "..." not in listed


def test_a_place_of_a_group_may_be_a_time(ledgermq: Any) -> None:
    for number, time in enumerate(("1769860800000", "2026-01-31T12:00:00+00:00")):
        assert ledgermq("group", "create", f"g{number}", "--from", time)[0] == 0
    groups = json.loads(ledgermq("group", "list", "--json")[1])
    assert [group["start"] for group in groups] == ["1769860800000"] * 2


def test_a_folder_with_other_files_is_not_touched(ledgermq: Any, tmp_path: Path) -> None:
    (tmp_path / "n1").mkdir()
    (tmp_path / "n1" / "thesis.txt").write_text("mine")
    code, _, err = ledgermq("dump", str(tmp_path))
    assert (code, "Nothing was changed" in err) == (1, True)
    assert (tmp_path / "n1" / "thesis.txt").read_text() == "mine"


@pytest.mark.parametrize(
    ("arguments", "module", "extra"),
    [
        (("up", "--data", "nowhere"), "prometheus_client", "server"),
        (("broker",), "pydantic_settings", "server"),
        (("dump", "out", "--data", "nowhere"), "sortedcontainers", "server"),
        (("check", "."), "pyspark", "spark"),
    ],
)
def test_a_missing_extra_is_named_with_the_command_that_installs_it(
    arguments: tuple[str, ...],
    module: str,
    extra: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    monkeypatch.chdir(tmp_path)
    real = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util,
        "find_spec",
        lambda name, *more: None if name == module else real(name, *more),
    )
    assert run_cli(list(arguments)) == 1
    err = capsys.readouterr().err
    assert f"needs the module {module}" in err
    assert err.rstrip().endswith(f"Install it: pip install 'ledgermq[{extra}]'")
    assert not list(tmp_path.iterdir())


def test_a_check_gets_all_options(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    asked: list[list[str]] = []

    def run(command: list[str], *, check: bool) -> subprocess.CompletedProcess[str]:
        asked.append(command[1:])
        return subprocess.CompletedProcess(command, 3)

    monkeypatch.setattr(cli_dump, "_require_spark", lambda: None)
    monkeypatch.setattr(subprocess, "run", run)
    options = ["--out", str(tmp_path / "report"), "--local", "2", "--strict", "--json"]
    assert run_cli(["check", str(tmp_path), *options]) == 3
    assert run_cli(["check", str(tmp_path), "--master", "spark://host:7077"]) == 3
    job = ["-m", "ledgermq.spark_jobs.verify", str(tmp_path)]
    assert asked == [[*job, *options], [*job, "--master", "spark://host:7077"]]
