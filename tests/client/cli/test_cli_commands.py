"""The commands against a fake cluster: what they print, for people and for programs, and their exit codes."""

from __future__ import annotations

import importlib.util
import io
import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer.main

from ledgermq.client.admin import dump
from ledgermq.client.cli import dump as cli_dump
from ledgermq.client.cli import run_cli
from ledgermq.client.cli import spark as cli_spark
from ledgermq.client.cli.command_line import build_app
from ledgermq.proto import admin_pb2
from ledgermq.proto import route_pb2 as pb
from ledgermq.proto.dump_manifest import decode_manifest
from tests.spark_jobs.dump_maker import make_dumps

from ..fake_messaging import MessagingCluster
from ..fakes import FakeGroup
from ..served import Served, served
from .conftest import CommandLine
from .test_interrupts import leaves

Cluster = Served[MessagingCluster]


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> Iterator[Cluster]:
    monkeypatch.setenv("COLUMNS", "200")
    with served(lambda: MessagingCluster(FakeGroup(topics={"orders": 2}), nodes=3)) as running:
        monkeypatch.setenv("LEDGERMQ_NAMESERVER", running.address)
        yield running


def test_a_topic_is_created_listed_described_and_deleted(ledgermq: CommandLine) -> None:
    assert ledgermq("topic create new -q 3") == (
        0, 'topic "new" is there with 3 queues. Next: ledgermq send new "hello"\n', "",
    )  # fmt: skip
    _, out, _ = ledgermq("topic list")
    assert [line.split() for line in out.splitlines()] == [
        ["TOPIC", "QUEUES", "TYPE", "RETENTION"], ["new", "3", "normal", "-"], ["orders", "2", "normal", "-"],
    ]  # fmt: skip
    assert ledgermq.json("topic list")[0]["queues"] == 3
    _, out, _ = ledgermq("topic describe new")
    assert len(out.splitlines()) == 4
    assert len(ledgermq.json("topic describe new")["offsets"]) == 3
    assert ledgermq("topic delete new --yes")[0] == 0
    assert "ledgermq topic create new" in ledgermq.err("topic describe new")


@pytest.mark.parametrize(
    ("line", "wanted"),
    [
        (
            "topic create new --queues 0",
            "'--queues' / '-q': it must be a whole number from 1 to 1,024, not '0'.",
        ),
        ("topic create new --queues 1025", "from 1 to 1,024, not '1025'."),
        ("topic create new --queues many", "from 1 to 1,024, not 'many'."),
        ("topic create new --retention-hours -1", "it must be a number from 0 to 876,000, not '-1'."),
        ("group create new --max-attempts 0", "a whole number from 1 to 2,147,483,647, not '0'."),
        ("send orders x --rate -1", "a whole number from 0 on, not '-1'."),
    ],
)
def test_a_number_that_is_out_of_range_is_refused_and_no_default_taken(
    ledgermq: CommandLine, line: str, wanted: str
) -> None:
    assert wanted in ledgermq.err(line, code=2)
    assert "new" not in ledgermq.out("topic list") + ledgermq.out("group list")


def test_the_retention_of_a_topic_is_set_when_it_is_created_and_changed(
    ledgermq: CommandLine, cluster: Cluster
) -> None:
    assert ledgermq("topic create logs --retention-hours 1.5")[0] == 0
    assert cluster.cluster.node("n1").group.retention_ms["logs"] == 5_400_000
    assert ledgermq.json("topic list")[0]["retention_ms"] == 5_400_000
    _, out, _ = ledgermq("topic list")
    assert out.splitlines()[1].split() == ["logs", "4", "normal", "1.5", "h"]
    assert ledgermq("topic update logs --retention-hours 48") == (
        0, 'topic "logs" shows messages for 48 hours\n', "",
    )  # fmt: skip
    assert "as long as the log holds them" in ledgermq("topic update logs --retention-hours 0")[1]
    assert cluster.cluster.node("n1").group.retention_ms["logs"] == 0
    assert "logs" in ledgermq.err("topic update lags --retention-hours 1")


def test_a_topic_is_told_to_keep_what_is_unread_and_says_so(ledgermq: CommandLine, cluster: Cluster) -> None:
    group = cluster.cluster.node("n1").group
    assert ledgermq("topic create logs --keep-unread")[0] == 0
    assert group.keep_unread["logs"]
    assert ledgermq("topic list")[1].splitlines()[1].split()[3:] == ["-,", "unread", "kept"]
    assert "keeps what a consumer group has still to read" in ledgermq("topic describe logs")[1]
    assert ledgermq("topic update logs --no-keep-unread") == (
        0, 'topic "logs" lets retention delete what is unread\n', "",
    )  # fmt: skip
    assert (group.keep_unread["logs"], group.retention_ms["logs"]) == (False, 0)
    assert "keep" not in ledgermq("topic describe logs")[1]
    code, _, err = ledgermq("topic update logs")
    assert (code != 0, "nothing to change was named" in err) == (True, True)
    group.is_old = True
    for words in (("update", "logs"), ("create", "late")):
        code, _, err = ledgermq("topic", *words, "--keep-unread")
        assert (code != 0, "does not keep what is unread in g0" in err) == (True, True), (
            "an older node says nothing"
        )


def test_what_was_deleted_of_a_topic_that_nobody_consumes_is_told(
    ledgermq: CommandLine, cluster: Cluster
) -> None:
    cluster.cluster.node("n1").group.losses = [admin_pb2.TopicProgress(topic="orders", lost=1234)]
    _, out, _ = ledgermq("topic describe orders")
    assert "retention deleted 1,234 messages in g0; no consumer group consumes the topic there" in out


def test_a_topic_is_held_shown_and_released(ledgermq: CommandLine, cluster: Cluster) -> None:
    queue = cluster.cluster.node("n1").group.queues
    assert ledgermq("topic hold orders --name lake --offset 5 --queue 1") == (
        0,
        'hold "lake" of topic "orders": retention waits for its holder\n'
        "hold lake: waits at offset 5 of queue 1 in g0\n",
        "",
    )
    assert [each["offset"] for each in ledgermq.json("topic hold orders --name all --offset latest")["holds"]]
    (audit,) = ledgermq.json("topic hold orders --name audit --offset earliest -q 0 --broker-group g0")[
        "holds"
    ]
    assert (audit["queue_id"], audit["offset"]) == (0, next(iter(queue.values())).begin)
    holds = cluster.cluster.node("n1").group.holds
    holds["orders", "lake", 1].lost = 1234
    holds["orders", "audit", 0].expired = True
    out = ledgermq("topic describe orders")[1]
    assert (
        "hold lake: waits at offset 5 of queue 1 in g0, overridden: 1,234 messages that it waited for" in out
    )
    assert (
        "hold audit: waits at offset 0 of queue 0 in g0, expired: its holder is silent since 2023-11-" in out
    )
    described = ledgermq.json("topic describe orders")["holds"]
    assert [(each["name"], each["queue_id"]) for each in described] == [
        ("all", 0), ("all", 1), ("audit", 0), ("lake", 1),
    ]  # fmt: skip
    assert described[3] == {
        "name": "lake", "broker_group": "g0", "queue_id": 1, "offset": 5,
        "advanced_ms": 1_700_000_000_000, "overridden": True, "lost": 1234, "expired": False,
    }  # fmt: skip
    assert ledgermq("topic release orders --name lake") == (
        0, 'hold "lake" of topic "orders" is released\n', "",
    )  # fmt: skip
    err = ledgermq.err("topic release orders --name lake")
    assert 'topic "orders" has no hold "lake"' in err and "ledgermq topic describe orders" in err


@pytest.mark.parametrize(
    ("line", "code", "wanted"),
    [
        ("topic hold orders --name lake --offset soon", 2, "neither a queue offset, nor earliest or latest"),
        ("topic hold orders --name lake --offset 5 -q 7", 1, "topic orders has no queue 7"),
        (
            "topic hold orders --name lake --offset 5 --broker-group g7",
            1,
            "has no queue in g7. It has some in g0",
        ),
        ("topic hold orders --name a/b --offset 5", 1, "the character '/' is not allowed"),
        ("topic hold order --name lake --offset 5", 1, 'topic "order" does not exist'),
        ("topic release order --name lake", 1, 'topic "order" does not exist'),
    ],
)
def test_what_cannot_be_held_is_one_clear_error(
    ledgermq: CommandLine, line: str, code: int, wanted: str
) -> None:
    assert wanted in ledgermq.err(line, code=code)


def test_deleting_asks_and_a_no_changes_nothing(
    ledgermq: CommandLine, cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert ledgermq("group create g")[0] == 0
    for command in (
        ("topic", "delete", "orders"),
        ("group", "delete", "g"),
        ("admin", "clean", "--even-unexpired"),
    ):
        monkeypatch.setattr(sys, "stdin", io.StringIO("n\n"))
        assert "stopped by the user" in ledgermq.err(*command)
    assert "orders" in cluster.cluster.groups[0].topics


def test_an_empty_list_names_the_command_that_fills_it(ledgermq: CommandLine) -> None:
    assert "ledgermq consume TOPIC --group NAME" in ledgermq("group list")[1]
    ledgermq("topic delete orders -y")
    assert "ledgermq topic create orders" in ledgermq("topic list")[1]


def test_members_of_a_group_and_what_they_own_are_described(ledgermq: CommandLine, cluster: Cluster) -> None:
    ledgermq("group create billing")
    ledgermq("send orders hello")
    ledgermq("group reset billing --topic orders --to earliest")
    cluster.cluster.groups[0].members.append(
        admin_pb2.GroupMember(member_id="worker-1", topics=["orders", "paid"], filter="a || b", queues=4)
    )
    lines = ledgermq("group describe billing")[1].splitlines()
    assert lines[0].split()[-1] == "OWNER"
    assert lines[1].split()[-1] == "worker-1"
    assert lines[-2].split() == ["MEMBER", "BROKER", "GROUP", "QUEUES", "TOPICS", "FILTER"]
    assert lines[-1].split(maxsplit=3)[::2] == ["worker-1", "4"]
    assert "orders, paid" in lines[-1]
    described = ledgermq.json("group describe billing")
    assert {queue["owner"] for queue in described["queues"]} == {"worker-1"}
    assert [(each["member"], each["allocation"]) for each in described["members"]] == [("worker-1", "sticky")]


def test_a_topic_says_who_lost_messages_of_it(ledgermq: CommandLine, cluster: Cluster) -> None:
    cluster.cluster.groups[0].losses.append(admin_pb2.TopicProgress(group="billing", lost=1234, parked=2))
    out = ledgermq("topic describe orders")[1]
    assert 'group "billing" in g0: retention deleted 1,234 messages before it had consumed them' in out
    assert "2 messages are parked for it (ledgermq group describe billing)" in out
    described = ledgermq.json("topic describe orders")
    assert described["consumers"] == [{"group": "billing", "broker_group": "g0", "lost": 1234, "parked": 2}]


def test_a_topic_of_a_type_that_is_not_built_is_refused(ledgermq: CommandLine) -> None:
    for kind in ("delay", "transaction", "lite", "priority"):
        err = ledgermq.err("topic create later --type", kind)
        assert f"topics of type {kind} are not built yet" in err
        assert "Use one of normal, fifo, mixed" in err
    assert "later" not in ledgermq("topic list")[1]
    assert ledgermq("topic create com.acme.later --type mixed")[0] == 0


def test_who_holds_leases_and_what_is_parked_is_described_and_released(
    ledgermq: CommandLine, cluster: Cluster
) -> None:
    ledgermq("group create billing")
    ledgermq("send orders hello")
    ledgermq("group reset billing --topic orders --to earliest")
    group = cluster.cluster.groups[0]
    holder = admin_pb2.LeaseHolder
    group.holders += [
        holder(topic="orders", client_id="h1@77", leases=3, oldest_ms=1_700_000_000_000, by_session=True),
        holder(topic="orders", leases=1, ended=True),
    ]
    for number in range(25):
        message = admin_pb2.ParkedMessage(topic="orders", attempts=17, message_id=f"01{number:02}")
        message.queue_id, message.queue_offset = number % 2, number
        group.park("billing", "orders", message)
    out = ledgermq("group describe billing")[1]
    lines = [line.split() for line in out.splitlines()]
    assert ["h1@77", "orders", "g0", "3"] in [line[:4] for line in lines]
    assert ["(not", "known)", "orders", "g0", "1", "-", "ended:"] in [line[:7] for line in lines]
    assert ["0103", "orders", "g0", "1", "3", "17"] in [line[:6] for line in lines]
    assert "5 more are parked" in out and "ledgermq group release billing --all" in out
    described = ledgermq.json("group describe billing")
    assert (described["parked_count"], len(described["parked"])) == (25, 25)
    assert described["parked"][3]["offset"] == 3
    assert [(each["client"], each["leases"]) for each in described["holders"]] == [("h1@77", 3), ("", 1)]
    assert ledgermq("group release billing")[0] == 2, "one or all"
    assert "no parked message of consumer group billing has the id 0199" in ledgermq.err(
        "group release billing --message 0199"
    )
    assert ledgermq("group release billing --message 0103")[:2] == (
        0, '1 messages are delivered again to consumer group "billing"\n',
    )  # fmt: skip
    released = ledgermq("group release billing --all --topic orders --json")[1]
    assert json.loads(released) == {"group": "billing", "released": 24}
    assert "nothing is parked" in ledgermq("group release billing --all")[1]
    assert 'Did you mean "billing"?' in ledgermq.err("group release biling --all")


def test_a_group_is_created_listed_described_reset_and_deleted(ledgermq: CommandLine) -> None:
    assert "ledgermq consume TOPIC --group billing" in ledgermq.out(
        "group create billing --from latest --fifo"
    )
    assert ledgermq.json("group list") == [
        {"group": "billing", "start": "latest", "fifo": True, "max_attempts": 0, "clients": 0}
    ]
    assert "consumed nothing yet" in ledgermq("group describe billing")[1]
    ledgermq("send orders hello --count 4")
    assert ledgermq("group reset billing --topic orders --to earliest")[0] == 0
    described = ledgermq.json("group describe billing")
    assert sum(queue["behind"] for queue in described["queues"]) == 4
    assert len(ledgermq("group describe billing")[1].splitlines()) == 3
    assert ledgermq("group delete billing -y")[0] == 0
    assert "ledgermq group create billing" in ledgermq.err("group describe billing")


def test_sending_prints_where_the_message_is(ledgermq: CommandLine, cluster: Cluster) -> None:
    out = ledgermq.out("send orders hello --message-group a")
    assert out.startswith("stored 01")
    assert out.endswith(" of g0 at offset 0\n")
    assert "orders[" in out
    code, out, _ = ledgermq("send orders --size 10 --count 5 --tag t --key k")
    assert (code, out.startswith("stored 5 messages in")) == (0, True)
    receipts = ledgermq("send orders x --count 3 --json")[1].splitlines()
    assert [json.loads(line)["topic"] for line in receipts] == ["orders"] * 3, "a line each (NDJSON)"
    assert cluster.call(cluster.cluster.groups[0].stored) == 9


class Lines(io.TextIOWrapper):
    """A stdin with these bytes."""

    def __init__(self, content: bytes) -> None:
        super().__init__(io.BytesIO(content))


def test_every_line_of_stdin_is_a_message(
    ledgermq: CommandLine, cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "stdin", Lines(b"one\n\ntwo\n" * 1000))
    code, out, err = ledgermq("send orders -")
    assert (code, out.startswith("stored 2,000 messages in")) == (0, True)
    assert err == "1,000 blank lines were left out: a message has a body\n"
    monkeypatch.setattr(sys, "stdin", Lines(b"last"))
    assert ledgermq.json("send orders -")["topic"] == "orders"
    monkeypatch.setattr(sys, "stdin", Lines(b""))
    assert ledgermq("send orders - --json")[1] == ""
    assert cluster.call(cluster.cluster.groups[0].stored) == 2001


def test_lines_before_one_that_is_too_long_are_sent_and_the_error_says_so(
    ledgermq: CommandLine, cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "stdin", Lines(b"one\ntwo\n" + bytes(5_000_000) + b"\nfour\n"))
    code, out, err = ledgermq("send orders - --json")
    assert (code, [json.loads(line)["topic"] for line in out.splitlines()]) == (1, ["orders"] * 2)
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
    ledgermq: CommandLine, cluster: Cluster, arguments: tuple[str, ...], words: str
) -> None:
    code, out, err = ledgermq(*arguments)
    assert (code in (1, 2), out) == (True, "")
    assert words in err
    assert cluster.call(cluster.cluster.groups[0].stored) == 0


def test_consuming_prints_bodies_and_acknowledges_them(ledgermq: CommandLine, cluster: Cluster) -> None:
    messages = cluster.cluster.messages
    messages.groups = cluster.cluster.groups[0].groups
    cluster.call(messages.add, b"a", b"b", b"c", b"d")
    code, out, _ = ledgermq("consume orders --group billing --count 2")
    assert (code, out) == (0, "a\nb\n")
    code, out, _ = ledgermq("consume orders --group billing --count 2 --json")
    assert [json.loads(line)["body"] for line in out.splitlines()] == ["c", "d"], "a line each (NDJSON)"
    assert sorted(messages.acked) == [b"a", b"b", b"c", b"d"]
    assert "billing" in cluster.cluster.groups[0].groups


def test_fewer_messages_than_asked_for_is_an_exit_code(ledgermq: CommandLine, cluster: Cluster) -> None:
    cluster.call(cluster.cluster.messages.add, b"a")
    code, out, err = ledgermq("consume orders -g billing -c 3 --timeout 0.02 --quiet")
    assert (code, out) == (1, "")
    assert "received 1 message\n" in err
    assert "2 messages fewer than asked for. See: ledgermq topic describe orders" in err
    _, _, err = ledgermq("consume orders -g billing -c 1 --timeout 0.02")
    assert "1 message fewer than asked for." in err


def test_cleaning_tells_what_is_deleted(ledgermq: CommandLine, cluster: Cluster) -> None:
    assert ledgermq("admin clean --dry-run --older-than-hours 0.5") == (
        0,
        "g0: would delete 1 segments, 1,048,576 bytes\n    the log begins at entry 9 then\n"
        "    the newest segment always stays\n",
        "",
    )  # fmt: skip
    request = cluster.cluster.node("n1").cleaned
    assert request is not None
    assert (request.dry_run, request.older_than_ms) == (True, 1_800_000)
    answer = ledgermq.json("admin clean --even-unexpired --yes")
    assert answer[0]["segments"] == ["00000000000000000000"]


def test_the_status_is_an_exit_code(ledgermq: CommandLine, cluster: Cluster) -> None:
    assert "HEALTHY" in ledgermq.out("cluster status")
    report = json.loads(ledgermq("cluster status --json --wait 30s")[1])
    assert (len(report["groups"]), report["error"]) == (1, "")
    node = cluster.cluster.node("n2").address
    assert ledgermq("cluster status --node", node)[0] == 0
    assert ledgermq("cluster status --node 127.0.0.1:1")[0] == 3
    assert ledgermq("cluster status --nameserver 127.0.0.1:1")[0] == 3


def test_the_leader_is_named_and_moved(ledgermq: CommandLine, cluster: Cluster) -> None:
    assert ledgermq("cluster leader -q")[:2] == (0, "n1\n")
    assert ledgermq("cluster transfer n3")[:2] == (0, "n3 leads\n")
    assert ledgermq("cluster leader --quiet")[1] == "n3\n"
    code, _, err = ledgermq("cluster transfer n3")
    assert (code, err) == (1, "error: it leads already.\n")
    assert "The nodes are n1, n2, n3" in ledgermq.err("cluster transfer n9")
    assert ledgermq("cluster leader --group g7")[0] == 3


def test_the_port_of_another_service_is_named_as_the_mistake(ledgermq: CommandLine, cluster: Cluster) -> None:
    code, _, err = ledgermq("cluster leader --node", cluster.cluster.messaging[0].address)
    assert (code, "is not the log port of a node" in err) == (3, True)


def test_a_dump_holds_every_node_and_replaces_the_one_before_only_when_that_is_asked_for(
    ledgermq: CommandLine, cluster: Cluster, tmp_path: Path
) -> None:
    for flags in ((), ("--overwrite",)):
        assert f"Next: ledgermq check {tmp_path}" in ledgermq.out("dump", str(tmp_path), *flags)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["n1", "n2", "n3"]
    assert (tmp_path / "n1/commitlog/00").read_bytes() == b"abcdef"
    assert (tmp_path / "n1/manifest.json").read_bytes() == b"{}"
    (tmp_path / "n1/commitlog/00").write_bytes(b"the backup of yesterday")
    code, _, err = ledgermq("dump", str(tmp_path))
    assert (code, "holds a dump already. Nothing was changed" in err, "--overwrite" in err) == (1, True, True)
    assert (tmp_path / "n1/commitlog/00").read_bytes() == b"the backup of yesterday"


def test_a_dump_is_told_to_programs(ledgermq: CommandLine, cluster: Cluster, tmp_path: Path) -> None:
    make_dumps(tmp_path / "made", nodes=("n1",))
    manifest = (tmp_path / "made/n1/manifest.json").read_bytes()
    cluster.cluster.node("n1").dump = (("manifest.json", manifest),)
    cluster.run(cluster.cluster.node("n2").stop())
    code, out, err = ledgermq("dump", str(tmp_path / "out"), "--json")
    told = json.loads(out)
    assert (code, told["missing"], "there is no dump of n2" in err) == (1, ["n2"], True)
    first, third = told["dumps"]
    assert first == {
        **decode_manifest(manifest).summary(), "folder": str(tmp_path / "out/n1"),
    } and (first["node"], first["restorable"]) == ("n1", True)  # fmt: skip
    assert third == {"folder": str(tmp_path / "out/n3")}, (
        "its manifest is of a version that is not known here"
    )


def test_a_node_that_does_not_answer_makes_the_dump_fail(
    ledgermq: CommandLine, cluster: Cluster, tmp_path: Path
) -> None:
    cluster.run(cluster.cluster.node("n2").stop())
    err = ledgermq.err("dump", str(tmp_path))
    assert "there is no dump of n2" in err
    assert "See: ledgermq cluster status" in err
    assert sorted(path.name for path in tmp_path.iterdir()) == ["n1", "n3"]


def test_the_older_dump_of_a_node_that_does_not_answer_is_not_mixed_with_new_ones(
    ledgermq: CommandLine, cluster: Cluster, tmp_path: Path
) -> None:
    assert ledgermq("dump", str(tmp_path))[0] == 0
    cluster.run(cluster.cluster.node("n2").stop())
    (tmp_path / "n1/commitlog/00").write_bytes(b"yesterday")
    code, _, err = ledgermq("dump", str(tmp_path), "--overwrite")
    assert (code, "n2 does not answer" in err, "holds an older dump of it" in err) == (1, True, True)
    assert (tmp_path / "n1/commitlog/00").read_bytes() == b"yesterday", "nothing was begun"


@pytest.mark.parametrize(
    ("chunks", "words"),
    [
        ((("../evil", b"x"), ("manifest.json", b"{}")), "a file name that is not allowed"),
        ((("/etc/evil", b"x"), ("manifest.json", b"{}")), "a file name that is not allowed"),
        ((("commitlog/00", b"x"),), "ended without its manifest"),
    ],
)
def test_a_dump_that_cannot_be_right_is_an_error(
    ledgermq: CommandLine, cluster: Cluster, tmp_path: Path, chunks: Any, words: str
) -> None:
    cluster.cluster.node("n1").dump = chunks
    assert words in ledgermq.err("dump", str(tmp_path / "d"))
    assert [path.name for path in tmp_path.iterdir()] == ["d"]


def test_a_refused_dump_leaves_nothing_that_looks_complete(
    ledgermq: CommandLine, cluster: Cluster, tmp_path: Path
) -> None:
    assert ledgermq("dump", str(tmp_path))[0] == 0
    cluster.cluster.node("n1").dump_refusal = pb.Refusal(code=pb.DISK_FULL, message="no")
    code, _, err = ledgermq("dump", str(tmp_path), "--overwrite")
    assert (code, err) == (1, "error: no.\n")
    assert not (tmp_path / "n1/manifest.json").exists()


def test_a_silent_node_is_given_up(
    ledgermq: CommandLine, cluster: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dump, "_CHUNK_SECONDS", 0.0)
    assert "It sent nothing for 0 s" in ledgermq.err("dump", str(tmp_path))


@pytest.mark.parametrize("name", ["identity", "commitlog"])
@pytest.mark.parametrize("more", [(), ("--data", "stopped")])
def test_a_dump_is_not_written_into_the_data_folder_of_a_node(
    ledgermq: CommandLine, tmp_path: Path, name: str, more: tuple[str, ...]
) -> None:
    (tmp_path / name).mkdir()
    assert f"looks like the data folder of a node (it holds {name})" in ledgermq.err(
        "dump", str(tmp_path), *more
    )
    assert [path.name for path in tmp_path.iterdir()] == [name]


def test_a_group_that_is_moved_to_a_time_to_come_is_at_the_end(ledgermq: CommandLine) -> None:
    ledgermq("group create billing")
    for to, said in (
        ("9000-01-01T00:00:00", "at the end of topic"),
        ("2026-01-01T00:00:00", "at 2026-01-01T"),
    ):
        assert f'"billing" continues {said}' in ledgermq.out("group reset billing --topic orders --to", to)


@pytest.mark.parametrize("group", [[], ["cluster"]])
def test_no_line_of_a_list_of_commands_is_cut(
    ledgermq: CommandLine, monkeypatch: pytest.MonkeyPatch, group: list[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    _, out, _ = ledgermq(*group, "--help")
    listed = out.partition("Commands:\n")[2]
    assert len(listed.splitlines()) > 8 and "..." not in listed


def test_a_place_of_a_group_may_be_a_time(ledgermq: CommandLine) -> None:
    for number, time in enumerate(("1769860800000", "2026-01-31T12:00:00+00:00")):
        assert ledgermq("group create", f"g{number}", "--from", time)[0] == 0
    groups = ledgermq.json("group list")
    assert [group["start"] for group in groups] == ["1769860800000"] * 2


def test_a_folder_with_other_files_is_not_touched(ledgermq: CommandLine, tmp_path: Path) -> None:
    (tmp_path / "n1").mkdir()
    (tmp_path / "n1" / "thesis.txt").write_text("mine")
    assert "Nothing was changed" in ledgermq.err("dump", str(tmp_path))
    assert (tmp_path / "n1" / "thesis.txt").read_text() == "mine"


@pytest.mark.parametrize(
    ("arguments", "module", "extra"),
    [
        (("up", "--data", "nowhere"), "prometheus_client", "server"),
        (("broker",), "pydantic", "server"),
        (("dump", "out", "--data", "nowhere"), "uvloop", "server"),
        (("check", "."), "pyspark", "spark"),
        (("topic", "list"), "typer", "cli"),
        (("--help",), "rich", "cli"),
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
    verb = "spark" if extra == "spark" else "setup"
    assert err.rstrip().endswith(f"Install it: pip install 'ledgermq[{extra}]' (in a clone: make {verb})")
    assert not list(tmp_path.iterdir())


def test_a_check_gets_all_options(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    asked: list[list[str]] = []

    def run_to_end(command: list[str]) -> int:
        asked.append(command[1:])
        return 3

    monkeypatch.setattr(cli_dump, "require_spark", lambda *_: None)
    monkeypatch.setattr(cli_dump, "run_to_end", run_to_end)
    options = ["--out", str(tmp_path / "report"), "--local", "2", "--strict", "--duplicates", "--json"]
    servers = ["--nameserver", "10.0.0.1:9876"]
    assert run_cli(["check", str(tmp_path), *servers, *options]) == 3
    assert run_cli(["check", str(tmp_path), *servers, "--master", "spark://host:7077"]) == 3
    job = ["-m", "ledgermq.spark_jobs.verify", str(tmp_path), *servers]
    assert asked == [[*job, *options], [*job, "--master", "spark://host:7077"]]


#: Commands that run until somebody stops them, the demo for people, and one that prints nothing but lines of
#: JSON.
NO_JSON = {"spark shell", "up", "broker", "nameserver", "demo", "message export"}


def test_a_question_cannot_be_asked_in_json(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_cli(["cluster", "recover", "--data", str(tmp_path), "--json"]) == 1
    assert "--yes-lose-data GROUP --json" in capsys.readouterr().err


def test_a_query_gets_all_options_and_may_begin_with_a_dash(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[list[str]] = []

    def run_to_end(command: list[str]) -> int:
        asked.append(command[1:])
        return 1

    monkeypatch.setattr(cli_spark, "require_spark", lambda *_: None)
    monkeypatch.setattr(cli_spark, "run_to_end", run_to_end)
    line = ["spark", "sql", "-n", "h:1", "--local", "3", "--limit", "9", "--json", "--", "--x\nSELECT 1"]
    assert run_cli(line) == 1
    assert asked == [
        ["-m", "ledgermq.spark_jobs.topics.query", "sql", "--nameserver", "h:1", "--local", "3", "--limit",
         "9", "--json", "--", "--x\nSELECT 1"]
    ]  # fmt: skip


def test_an_analysis_gets_all_options(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[list[str]] = []

    def run_to_end(command: list[str]) -> int:
        asked.append(command[1:])
        return 1

    monkeypatch.setattr(cli_spark, "require_spark", lambda *_: None)
    monkeypatch.setattr(cli_spark, "run_to_end", run_to_end)
    job = ["-m", "ledgermq.spark_jobs.topics.analyze", "--nameserver", "h:1"]
    times = ["--from", "1767225600000", "--to", "1767229200000"]
    options = ["--out", "x", "--top", "5", "--json"]
    assert (
        run_cli(["spark", "analyze", "orders,payments", "-n", "h:1", "--local", "3", *times, *options]) == 1
    )
    assert run_cli(["spark", "analyze", "orders", "-n", "h:1"]) == 1
    assert asked[0] == [*job, "--local", "3", *times, *options, "--", "orders,payments"]
    assert asked[1][:-5] == [*job, "--out"] and asked[1][-4:] == ["--top", "20", "--", "orders"]
    assert re.fullmatch(r"analysis-\d{8}-\d{6}", asked[1][-5])


@pytest.mark.parametrize(
    ("times", "code", "text"),
    [
        (("--from", "yesterday"), 2, "nor a time like 2026-01-31T12:00:00"),
        (("--to", "5"), 2, "a number is a time in ms since 1970"),
        (("--from", "2026-02-01", "--to", "2026-01-31"), 1, "The end is not after the beginning"),
    ],
)
def test_times_of_an_analysis_are_checked_first(
    command_line: CommandLine, times: tuple[str, ...], code: int, text: str
) -> None:
    assert text in " ".join(command_line.err("spark analyze orders", *times, code=code).split())


def test_every_command_that_reports_has_json() -> None:
    commands = leaves(typer.main.get_command(build_app()))
    without = {
        name for name, each in commands.items() if "--json" not in [o for p in each.params for o in p.opts]
    }
    assert without == NO_JSON


@pytest.mark.parametrize(
    ("arguments", "found"),
    [
        (("topic", "create", "new", "--queues", "4"), {"topic": "new", "queues": 4, "down_groups": []}),
        (
            ("topic", "update", "orders", "--retention-hours", "2"),
            {"topic": "orders", "retention_ms": 7_200_000},
        ),
        (("topic", "delete", "orders", "--yes"), {"topic": "orders", "deleted": True}),
        (("group", "create", "g"), {"group": "g", "down_groups": []}),
    ],
)
def test_what_a_command_has_done_is_told_to_programs(
    ledgermq: CommandLine, cluster: Cluster, arguments: tuple[str, ...], found: dict[str, Any]
) -> None:
    code, out, err = ledgermq(*arguments, "--json")
    assert (code, err, json.loads(out)) == (0, "", found)


@pytest.mark.parametrize(("kind", "name"), [("topic", "orders"), ("group", "billing")])
def test_a_question_that_nobody_can_answer_changes_nothing(
    ledgermq: CommandLine,
    cluster: Cluster,
    monkeypatch: pytest.MonkeyPatch,
    kind: str,
    name: str,
) -> None:
    assert ledgermq(kind, "create", name, "--if-not-exists")[0] == 0
    monkeypatch.setattr("sys.stdin", io.StringIO(""))
    code, _, err = ledgermq(kind, "delete", name)
    assert code == 1 and "nothing was changed" in err and "--yes" in err


@pytest.mark.parametrize("agreed", [(), ("--yes",)])
@pytest.mark.parametrize("kind", ["topic", "group"])
def test_what_is_not_there_is_not_asked_about_nor_created_but_names_like_it_are_told(
    ledgermq: CommandLine, cluster: Cluster, kind: str, agreed: tuple[str, ...]
) -> None:
    assert ledgermq(kind, "create", "orders", "--if-not-exists")[0] == 0
    what = {"topic": "topic", "group": "consumer group"}[kind]
    code, out, err = ledgermq(kind, "delete", "oders", *agreed)
    assert (code, out, err) == (
        1,
        "",
        f'error: {what} "oders" does not exist: there is nothing to delete. Did you mean "orders"? See all: '
        f"ledgermq {kind} list\n",
    )


def test_the_library_needs_nothing_of_the_command_line_and_the_server() -> None:
    absent = ("typer", "rich", "pygments", "click", "pydantic", "uvloop", "prometheus_client", "pyspark")
    script = (
        f"import sys\nsys.modules |= dict.fromkeys({absent!r})\nimport ledgermq.client, "
        "ledgermq.client.sync\nprint(len(ledgermq.client.__all__))"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert done.returncode == 0 and int(done.stdout) > 20, done.stderr


def test_a_live_check_takes_digests_first_and_checks_them(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    asked: list[list[str]] = []
    taken: list[tuple[str, Path, bool, bool]] = []

    async def dump_all(
        nameserver: str,
        nodes: list[str],
        to: Path,
        overwrite: bool,
        quiet: bool,
        *,
        digests: bool,
        reread: bool,
    ) -> tuple[list[Path], list[str]]:
        taken.append((nameserver, to, digests, reread))
        to.mkdir()
        return [to / "n1"], ["n2"]

    def run_to_end(command: list[str]) -> int:
        asked.append(command[1:])
        return 3

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(cli_dump, "require_spark", lambda *_: None)
    monkeypatch.setattr(cli_dump, "run_to_end", run_to_end)
    monkeypatch.setattr(cli_dump, "_dump_all", dump_all)
    assert run_cli(["check", "--live", "h:1", "DIGESTS"]) == 3
    assert run_cli(["check", "--live", "h:1", "--reread"]) == 3
    assert taken[0] == ("h:1", Path("DIGESTS"), True, False)
    assert re.fullmatch(r"check-\d{8}-\d{6}", str(taken[1][1])) and taken[1][3]
    assert [each[2:5] for each in asked] == [[str(each[1]), "--nameserver", "h:1"] for each in taken]
    assert "n2 does not answer" in capsys.readouterr().err


OVERTAKEN = pb.Refusal(code=pb.INTERNAL, message="a segment was deleted", retryable=True)
GONE = pb.Refusal(code=pb.OFFSET_OUT_OF_RANGE, message="retention deleted them")


@pytest.mark.parametrize(
    ("refusals", "again", "code"),
    [
        ((OVERTAKEN,), 1, 0), ((None, GONE, OVERTAKEN), 2, 0), ((OVERTAKEN,) * 4, 4, 0),
        ((OVERTAKEN,) * 5, 4, 1), ((pb.Refusal(code=pb.INTERNAL, message="the disk is broken"),), 0, 1),
    ],
)  # fmt: skip
def test_digests_are_taken_again_while_retention_deletes_what_they_are_about(
    ledgermq: CommandLine, cluster: Cluster, tmp_path: Path, refusals: Any, again: int, code: int
) -> None:
    make_dumps(tmp_path / "made", digests=True)
    for name in ("n1", "n2", "n3"):
        made = tmp_path / "made" / name
        paths = [path for path in sorted(made.rglob("*")) if path.is_file() and path.name != "manifest.json"]
        files = [
            (str(path.relative_to(made)), path.read_bytes()) for path in [*paths, made / "manifest.json"]
        ]
        cluster.cluster.node(name).dump = tuple(files)
    cluster.cluster.node("n2").dump_refusals = refusals
    found, _, err = ledgermq("dump --digests", str(tmp_path / "out"))
    assert (found, err.count("taking all digests again")) == (code, again)
    assert (f"({again + 1} of 5)" in err) == bool(again)
    if code:
        assert err.splitlines()[-1] == f"error: {refusals[0].message}."
    else:
        assert (tmp_path / "out/n2/manifest.json").read_bytes() == cluster.cluster.node("n2").dump[-1][1]
        assert list((tmp_path / "out").glob("n2/fetched/*"))


def test_only_digests_can_be_read_anew(ledgermq: CommandLine, tmp_path: Path) -> None:
    assert "--reread is for digests" in ledgermq.err("dump --reread", str(tmp_path / "out"))


def test_digests_are_not_searched_for_duplicates(ledgermq: CommandLine) -> None:
    assert "ledgermq check DIR --duplicates" in ledgermq.err("check --live h:1 --duplicates")


def test_a_check_of_nothing_is_refused(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert run_cli(["check"]) != 0
    assert "ledgermq check DIR, or --live NAMESERVER" in capsys.readouterr().err


def lake_jobs(monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """Let jobs of a lake be only asked for; return what follows the name of the job."""
    asked: list[list[str]] = []

    def run_to_end(command: list[str]) -> int:
        assert command[1:3] == ["-m", "ledgermq.spark_jobs.lake.lake_command"]
        asked.append(command[3:])
        return 1

    monkeypatch.setattr(cli_spark, "require_spark", lambda *_: None)
    monkeypatch.setattr(cli_spark, "run_to_end", run_to_end)
    return asked


def test_the_jobs_of_a_lake_get_all_options(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = lake_jobs(monkeypatch)
    servers = ["--nameserver", "10.0.0.1:9876"]
    assert (
        run_cli(["spark", "archive", "a,b", "--to", "lake", *servers, "--every", "2m", "--hold", "--json"])
        == 1
    )
    assert run_cli(["spark", "archive", "a", "--to", "l", *servers, "--once", "--no-fail-on-data-loss"]) == 1
    assert run_cli(["spark", "archive", "--to", "lake", "--compact", *servers, "--local", "1"]) == 1
    assert run_cli(["spark", "archive", "--verify", "lake", "--topic", "a", *servers]) == 1
    times = ["--from", "1700000000000", "--to", "1700000000001", "--write-id", "w"]
    assert run_cli(["spark", "restore", "lake", "--topic", "a", "--into", "-b", *times, *servers]) == 1
    assert asked == [
        ["archive", *servers, "--to=lake", "--every=120.0", "--max-messages=1000000", "--hold=archive",
         "--json", "--", "a,b"],
        ["archive", *servers, "--to=l", "--every=0.0", "--max-messages=1000000", "--no-fail-on-data-loss",
         "--", "a"],
        ["compact", *servers, "--local", "1", "--", "lake"],
        ["verify", *servers, "--topic=a", "--", "lake"],
        ["restore", *servers, "--topic=a", "--into=-b", "--offsets=", "--write-id=w",
         "--first-ms=1700000000000", "--end-ms=1700000000001", "--", "lake"],
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["a"], "say what and where"),
        (["--to", "lake"], "name the topics to archive"),
        (["a", "--verify", "lake"], "--verify PATH goes with --topic"),
        (["a", "--to", "lake", "--every", "0"], "--every takes 100ms to 24h"),
        (["a", "--to", "lake", "--table-format", "delta"], 'writeStream.format("delta")'),
        (["a", "--to", "lake", "--table-format", "csv"], 'there is no table format "csv"'),
    ],
)
def test_what_cannot_be_archived_is_said_before_a_job_starts(
    arguments: list[str], text: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    asked = lake_jobs(monkeypatch)
    monkeypatch.setenv("COLUMNS", "400")
    assert run_cli(["spark", "archive", *arguments]) == 2
    assert text in capsys.readouterr().err
    assert asked == []
