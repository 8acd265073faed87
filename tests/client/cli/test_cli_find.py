"""`ledgermq message …` against a fake cluster: what is printed, for people and for programs, and the exit
codes.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime
from typing import Any

import pytest

from ledgermq.client import Message, Producer

from ..fakes import FakeCluster, FakeGroup
from ..served import Served, served
from .conftest import CommandLine

STORED_MS = 1_767_268_800_123


Cluster = Served[FakeCluster]


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> Iterator[Cluster]:
    with served(lambda: FakeCluster(FakeGroup(topics={"orders": 1}))) as running:
        monkeypatch.setenv("LEDGERMQ_NAMESERVER", running.address)
        yield running


@pytest.fixture
def ledgermq(cluster: Cluster, capfd: pytest.CaptureFixture[str]) -> CommandLine:
    return CommandLine(capfd, "message")


def send(cluster: Cluster, body: bytes, **options: Any) -> str:
    """Store one message, a millisecond after the one before; return its id."""

    async def work() -> str:
        (group,) = cluster.cluster.groups
        group.store_timestamp = max(group.store_timestamp + 1, STORED_MS)
        async with Producer(cluster.address) as producer:
            return (await producer.send(Message("orders", body, **options))).message_id

    return cluster.run(work())


def local(timestamp: int) -> str:
    return datetime.fromtimestamp(timestamp / 1000).isoformat(timespec="milliseconds")


def test_a_message_is_shown_with_everything_that_is_known_of_it(
    ledgermq: CommandLine, cluster: Cluster
) -> None:
    message_id = send(
        cluster, b"42 pieces\x1b[31m", tag="paid", keys=["o-1", "o-2"], properties={"shop": "north"},
        message_group="g",
    )  # fmt: skip
    code, out, err = ledgermq("get", message_id)
    lines = dict(line.split(None, 1) for line in out.splitlines()[1:] if line[:1].islower())
    assert (code, err, out.splitlines()[0]) == (0, "", f"message id    {message_id}")
    assert lines["where"] == "orders[0] of g0, offset 0"
    assert (lines["stored"], lines["tag"], lines["keys"]) == (local(STORED_MS), "paid", "o-1 o-2")
    assert (lines["properties"], lines["body"]) == ("shop=north", "14 bytes")
    assert out.splitlines()[-1] == "42 pieces\\x1b[31m", "nothing of a body moves the cursor"
    (one,) = ledgermq.json("get", message_id)
    assert (one["keys"], one["properties"], one["body"]) == (
        ["o-1", "o-2"],
        {"shop": "north"},
        "42 pieces\x1b[31m",
    )
    assert (one["topic"], one["broker_group"], one["store_timestamp"]) == ("orders", "g0", STORED_MS)
    assert ledgermq("get", message_id.lower()) == (code, out, err), "hex digits are the same in both cases"
    assert ledgermq("get", message_id, "--topic", "orders", "--body")[1] == "42 pieces\x1b[31m"


def test_an_id_that_nobody_stored_is_an_error_that_says_whether_everything_was_searched(
    ledgermq: CommandLine, cluster: Cluster
) -> None:
    code, out, err = ledgermq("get", "01" + 32 * "0")
    assert (code, out) == (1, "") and "no stored message has the id" in err and "never stored" in err
    for no_id in ("zzz", "01" + 31 * "0", "02" + 32 * "0"):
        code, _, err = ledgermq("get", no_id)
        assert code == 1 and "34 hexadecimal digits that begin with 01" in err and "never stored" not in err
    cluster.cluster.node().unsearched = 3 << 20
    code, _, err = ledgermq("get", "01" + 32 * "0")
    assert (
        code == 1
        and "not everything could be searched" in err
        and "3.0 MiB" in err
        and "Ask again later" in err
    )


def test_a_query_prints_a_row_for_each_message(ledgermq: CommandLine, cluster: Cluster) -> None:
    ids = [send(cluster, b"line\none " * 20, keys=["all", f"k{i}"], tag="t") for i in range(5)]
    code, out, err = ledgermq("query --topic orders --key all")
    head, *rows = [line.split() for line in out.splitlines()]
    assert (code, err) == (0, "")
    assert head == [
        "STORED",
        "MESSAGE",
        "ID",
        "BROKER",
        "GROUP",
        "QUEUE",
        "OFFSET",
        "TAG",
        "KEYS",
        "SIZE",
        "BODY",
    ]
    assert [row[1] for row in rows] == ids[::-1]
    assert rows[0][:8] == [local(STORED_MS + 4), ids[4], "g0", "0", "4", "t", "all", "k4"]
    assert rows[0][8] == "180" and rows[0][9].startswith("line\\x0aone") and rows[0][-1].endswith("…")
    assert len(ledgermq("query -t orders -k k3")[1].splitlines()) == 2
    assert ledgermq("query -t orders -k k9") == (0, "no messages found\n", "")
    begin, end = local(STORED_MS + 1), str(STORED_MS + 3)
    found = ledgermq("query -t orders --from", begin, "--to", end)[1].splitlines()[1:]
    assert [row.split()[1] for row in found] == ids[2:0:-1]


def test_a_query_that_is_cut_says_where_to_go_on(ledgermq: CommandLine, cluster: Cluster) -> None:
    ids = [send(cluster, b"x") for _ in range(5)]
    code, out, err = ledgermq("query --topic orders --limit 2")
    assert code == 0 and len(out.splitlines()) == 3
    go_on = local(STORED_MS + 4)
    assert err == f"there are more: raise --limit, or go on with --to {go_on}\n"
    rest = ledgermq("query --topic orders --to", go_on)[1].splitlines()[1:]
    assert [row.split()[1] for row in rest] == ids[3::-1], "the last one is repeated, none is left out"
    found = ledgermq.json("query --topic orders --limit 2")
    assert found["truncated"] and [each["message_id"] for each in found["messages"]] == ids[:2:-1]
    assert (found["unsearched_bytes"], found["silent_groups"], found["stale_groups"]) == (0, [], [])


def test_more_messages_of_a_millisecond_than_the_limit_are_no_endless_loop(
    ledgermq: CommandLine, cluster: Cluster
) -> None:
    send(cluster, b"older")
    (group,) = cluster.cluster.groups

    async def burst() -> None:
        group.store_timestamp += 1
        async with Producer(cluster.address) as producer:
            for _ in range(3):
                await producer.send("orders", b"x")

    cluster.run(burst())
    err = ledgermq("query --topic orders --limit 2")[2]
    assert err == (
        "there are more, of the same millisecond as the newest shown: raise --limit, or ask for one --key. "
        f"--to {local(STORED_MS + 1)} goes on before that millisecond and leaves out the rest of it\n"
    )
    code, out, err = ledgermq("query --topic orders --to", local(STORED_MS + 1))
    assert (code, len(out.splitlines()), "older" in out, err) == (0, 2, True, "")
    found = ledgermq.json("query --topic orders --limit 2")
    assert found["missing_from_ms"] == STORED_MS + 1
    assert ledgermq("query --topic orders --limit 4")[2] == ""


@pytest.mark.parametrize(
    "bounds",
    [
        ["--to", "1960-01-01"],
        ["--to", "1970-01-01T00:00:00+00:00"],
        ["--to", "earliest"],
        ["--from", "latest"],
    ],
)  # fmt: skip
def test_a_time_in_which_nothing_can_be_is_no_missing_bound(
    ledgermq: CommandLine, cluster: Cluster, bounds: list[str]
) -> None:
    send(cluster, b"x")
    assert ledgermq("query --topic orders", *bounds) == (0, "no messages found\n", "")


@pytest.mark.parametrize("bounds", [["--from", "1960-01-01"], ["--from", "earliest"], ["--to", "latest"]])
def test_a_bound_that_everything_keeps_leaves_nothing_out(
    ledgermq: CommandLine, cluster: Cluster, bounds: list[str]
) -> None:
    send(cluster, b"x")
    assert len(ledgermq("query --topic orders", *bounds)[1].splitlines()) == 2


def test_what_is_missing_goes_to_stderr(ledgermq: CommandLine, cluster: Cluster) -> None:
    send(cluster, b"x")
    cluster.cluster.node().unsearched = 1 << 20
    cluster.cluster.node().stale = True
    code, out, err = ledgermq("query --topic orders")
    assert code == 0 and len(out.splitlines()) == 2
    assert err.splitlines() == [
        "incomplete: broker group g0 has no leader: its newest may be missing",
        "incomplete: the index of 1.0 MiB of log is being made, messages there were not looked for",
    ]


def test_bad_questions_are_usage_errors(ledgermq: CommandLine, cluster: Cluster) -> None:
    for arguments in (
        ["query"],
        ["query", "--topic", "orders", "--limit", "0"],
        ["query", "--topic", "orders", "--key", " "],  # perhaps of an unset variable: not every message
        ["query", "--topic", "orders", "--from", "yesterday"],
        ["query", "--topic", "orders", "--from", "17"],
        ["get"],
    ):
        assert ledgermq(*arguments)[0] == 2, arguments
    code, _, err = ledgermq("query --topic order")
    assert code == 1 and 'Did you mean "orders"?' in err
    code, _, err = ledgermq("query --topic orders --from", str(STORED_MS), "--to", str(STORED_MS))
    assert code == 1 and f"nothing is between --from {STORED_MS} and --to {STORED_MS}" in err
