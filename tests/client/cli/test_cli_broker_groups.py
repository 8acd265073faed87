"""`ledgermq cluster add-group|drain|undrain|remove-group` and `group lag`, against fake groups."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from ledgermq.client.admin.broker_groups import Left
from ledgermq.client.cli import broker_groups as cli_broker_groups
from ledgermq.proto import admin_pb2
from ledgermq.proto import route_pb2 as pb
from ledgermq.proto.admin_pb2 import ConsumerGroupInfo

from ..fakes import FakeCluster, FakeGroup, FakeQueue
from ..served import Served, served
from .conftest import CommandLine

Cluster = Served[FakeCluster]


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> Iterator[Cluster]:
    """g0 has two topics: five messages of one, of which billing has finished two, and three that nobody
    consumes.
    """
    monkeypatch.setenv("COLUMNS", "200")
    old = FakeGroup("g0", {"orders": 1, "lonely": 1})
    old.groups["billing"] = ConsumerGroupInfo(name="billing", start_position="earliest", max_attempts=5)
    old.committed["billing", "orders", 0] = 2
    old.queues[1, 0] = FakeQueue(end=5)
    old.queues[2, 0] = FakeQueue(end=3)
    with served(lambda: FakeCluster(old, FakeGroup("g1"))) as running:
        monkeypatch.setenv("LEDGERMQ_NAMESERVER", running.address)
        yield running


def test_a_group_is_filled_and_says_what_it_got_and_what_was_there(ledgermq: CommandLine) -> None:
    assert "g1: would create 2 topics: lonely, orders" in ledgermq.out("cluster add-group g1 --dry-run")
    code, out, _ = ledgermq("cluster add-group g1 --topics orders")
    assert "g1: created 1 topics: orders" in out
    assert "g1: created 1 consumer groups: billing" in out
    code, out, _ = ledgermq("cluster add-group g1 --json")
    found = json.loads(out)
    assert (code, found["topics_created"], found["topics_existing"]) == (0, ["lonely"], ["orders"])
    assert found["consumer_groups_existing"] == ["billing"]


def test_conflicts_are_errors_and_the_exit_code_says_so(ledgermq: CommandLine, cluster: Cluster) -> None:
    cluster.call(cluster.cluster.groups[1].create_topic, "orders", 7)
    code, out, err = ledgermq("cluster add-group g1")
    assert code == 1
    assert "created 1 topics: lonely" in out
    assert (
        'topic "orders" differs (g0: 1 queues, normal; g1: 7 queues, normal). Nothing was changed there'
        in err
    )


def test_a_drain_says_what_is_left_and_who_consumes_nothing(ledgermq: CommandLine) -> None:
    assert (
        "no other broker group takes messages of: orders (g1 does not have it), lonely (g1"
        in ledgermq.err("cluster drain g0")
    )
    assert ledgermq("cluster add-group g1")[0] == 0
    code, out, _ = ledgermq("cluster drain g0")
    assert code == 0, "nobody asked to wait"
    assert "g0 takes no new messages. Take it back: ledgermq cluster undrain g0" in out
    assert 'no consumer group consumes topic "lonely": 3 messages are in g0 alone' in out
    assert ["billing", "orders", "3", "0", "0"] in [line.split() for line in out.splitlines()]
    assert "(it did not before either)" in ledgermq.out("cluster drain g0 --wait --timeout 0s", code=1)
    code, out, _ = ledgermq("cluster drain g0 --undo")
    assert (code, out) == (0, "g0 takes messages\n")
    assert ledgermq("cluster undrain g0")[1] == "g0 takes messages (it did before, too)\n"


def test_a_drain_that_waits_ends_when_consumers_have_everything(
    ledgermq: CommandLine, cluster: Cluster
) -> None:
    group = cluster.cluster.groups[0]
    assert ledgermq("cluster add-group g1")[0] == 0
    group.committed["billing", "orders", 0] = 5
    out = ledgermq.out("cluster drain g0 --wait")
    assert "consumers have everything that they consume" in out
    assert "Next: ledgermq cluster remove-group g0 --force" in out
    group.queues[2, 0] = FakeQueue()
    assert "consumers have everything. Next: ledgermq cluster remove-group g0\n" in ledgermq.out(
        "cluster drain g0 --wait"
    )


def test_an_interrupted_wait_says_that_the_group_goes_on_being_drained(
    ledgermq: CommandLine, cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("ledgermq.client.cli.broker_groups._waiting_text", interrupt)
    assert ledgermq("cluster add-group g1")[0] == 0
    code, _, err = ledgermq("cluster drain g0 --wait")
    assert code == 130
    assert "g0 goes on being drained. Take it back: ledgermq cluster undrain g0" in err
    assert cluster.cluster.groups[0].mode == pb.MODE_DRAINING


# --- what happens while a drain waits -----------------------------------------------------------------------
@pytest.fixture
def meanwhile(
    ledgermq: CommandLine, cluster: Cluster, monkeypatch: pytest.MonkeyPatch, few_rounds: None
) -> Callable[[Callable[[], object]], tuple[int, str, str]]:
    """Drain g0, and do something as soon as the command waits for consumers."""
    assert ledgermq("cluster add-group g1")[0] == 0
    monkeypatch.setattr(cli_broker_groups, "_POLL_S", 0.01)

    def drain(happens: Callable[[], object], timeout: str = "20s") -> tuple[int, str, str]:
        rounds = []

        def wait(left: Left) -> str:
            rounds.append(left)
            assert len(rounds) == 1, "it waits on, whatever has happened"
            cluster.call(happens)
            return "billing"

        monkeypatch.setattr(cli_broker_groups, "_waiting_text", wait)
        answer: tuple[int, str, str] = ledgermq("cluster drain g0 --wait --timeout", timeout)
        return answer

    return drain


@pytest.mark.parametrize("consumed", [5, 2])
def test_a_wait_ends_when_the_group_is_taken_back_and_says_so(
    meanwhile: Any, cluster: Cluster, consumed: int
) -> None:
    group = cluster.cluster.groups[0]

    def taken_back() -> None:
        group.committed["billing", "orders", 0] = consumed
        cluster.cluster.set_mode(group, pb.MODE_ACTIVE)

    code, out, err = meanwhile(taken_back)
    assert code == 1
    assert "g0 was taken back meanwhile and takes messages" in err
    assert "consumers have everything" not in out


@pytest.mark.parametrize(("consumed", "code"), [(5, 0), (2, 1)])
def test_a_wait_ends_when_the_group_is_removed_and_says_what_was_not_consumed(
    meanwhile: Any, cluster: Cluster, consumed: int, code: int
) -> None:
    group = cluster.cluster.groups[0]

    def removed() -> None:
        group.committed["billing", "orders", 0] = consumed
        cluster.cluster.set_mode(group, pb.MODE_REMOVED)

    found, out, err = meanwhile(removed)
    assert found == code
    assert "g0 was removed meanwhile" in (err if code else out)
    assert ("cluster undrain g0 --node HOST:8082" in err) == bool(code)


def test_a_wait_without_a_leader_never_says_that_consumers_have_everything(
    meanwhile: Any, cluster: Cluster
) -> None:
    group = cluster.cluster.groups[0]

    def leader_lost() -> None:
        group.committed["billing", "orders", 0] = 5
        group.without_leader = True

    code, out, err = meanwhile(leader_lost, "1s")
    assert code == 1
    assert "waiting for an answer of g0" in out
    assert "whether consumers have everything of g0 is not known" in err
    assert "Go on waiting with: ledgermq cluster drain g0 --wait" in err
    assert "consumers have everything that" not in out


def test_a_wait_goes_on_when_there_is_a_leader_again(meanwhile: Any, cluster: Cluster) -> None:
    group = cluster.cluster.groups[0]
    tasks = []

    async def elect() -> None:
        await group.asked_progress.wait()
        group.without_leader = False

    def leader_lost() -> None:
        group.committed["billing", "orders", 0] = 5
        group.without_leader = True
        group.asked_progress.clear()
        tasks.append(asyncio.ensure_future(elect()))

    code, out, _ = meanwhile(leader_lost)
    assert code == 0
    assert "consumers have everything that they consume" in out


def test_a_wait_is_also_for_who_never_came_to_the_group(ledgermq: CommandLine, cluster: Cluster) -> None:
    assert ledgermq("cluster add-group g1")[0] == 0
    old, new = cluster.cluster.groups
    old.committed["billing", "orders", 0] = 5
    new.committed["audit", "orders", 0] = 0
    out = ledgermq.out("cluster drain g0 --wait --timeout 0s", code=1)
    assert ["audit", "orders", "5", "0", "0"] in [line.split() for line in out.splitlines()]


def test_consumers_that_store_no_progress_are_waited_for_while_they_read_and_named(
    ledgermq: CommandLine, cluster: Cluster
) -> None:
    assert ledgermq("cluster add-group g1")[0] == 0
    group, node = cluster.cluster.groups[0], cluster.cluster.node("n1", "g0")
    group.committed["billing", "orders", 0] = 5
    group.queues[2, 0] = FakeQueue()
    node.reading = (admin_pb2.LiveReading(group="audit", topic="orders", streams=2, behind=1234),)
    out = ledgermq.out("cluster drain g0 --wait --timeout 0s", code=1)
    reads = 'consumer group "audit" reads topic "orders", 1,234 messages behind'
    assert f"{reads}, and stores no progress in g0" in out
    code, out, _ = ledgermq("cluster drain g0 --json")
    assert json.loads(out)["reading"] == [{"group": "audit", "topic": "orders", "streams": 2, "behind": 1234}]
    code, _, err = ledgermq("cluster remove-group g0")
    assert code == 1 and group.mode == pb.MODE_DRAINING
    assert reads in err and "ledgermq cluster drain g0 --wait" in err and "--force" in err
    code, out, _ = ledgermq("cluster remove-group g0 --force --yes")
    assert code == 0 and f"lost to a consumer that stores no progress: {reads}" in out


def test_a_reader_that_has_everything_holds_up_nothing(ledgermq: CommandLine, cluster: Cluster) -> None:
    assert ledgermq("cluster add-group g1")[0] == 0
    group = cluster.cluster.groups[0]
    group.committed["billing", "orders", 0] = 5
    group.queues[2, 0] = FakeQueue()
    assert ledgermq("cluster drain g0 --wait --timeout 0s")[0] == 0
    assert ledgermq("cluster remove-group g0")[0] == 0


def test_a_removal_is_refused_before_a_drain_and_by_force_names_what_is_lost(
    ledgermq: CommandLine, cluster: Cluster
) -> None:
    assert "drain it first" in ledgermq.err("cluster remove-group g0")
    out = ledgermq.out("cluster remove-group g0 --force --yes")
    assert 'lost to consumers: 3 messages of topic "lonely" that no consumer group has consumed' in out
    assert (
        'lost to consumers: 3 messages of topic "orders" that consumer group "billing" has not consumed'
        in out
    )
    assert "ledgermq cluster undrain g0 --node HOST:8082" in out
    node = cluster.cluster.node("n1", "g0").address
    assert ledgermq("cluster undrain g0 --node", node)[:2] == (0, "g0 takes messages\n")


def test_a_drain_waits_for_no_parked_message_and_names_them(ledgermq: CommandLine, cluster: Cluster) -> None:
    group = cluster.cluster.groups[0]
    group.committed["billing", "orders", 0], group.committed["billing", "lonely", 0] = 5, 3
    group.park("billing", "orders", admin_pb2.ParkedMessage(topic="orders", message_id="01AB"))
    out = ledgermq.out("cluster drain g0 --wait --even-the-last")
    assert '1 messages of topic "orders" are parked for consumer group "billing": release them' in out
    assert "Lost with the broker group is what is parked" in out
    drained = ledgermq.json("cluster drain g0")
    assert drained["parked"] == [{"group": "billing", "topic": "orders", "parked": 1}]


def test_lag_is_shown_for_every_consumer_group_topic_and_broker_group(ledgermq: CommandLine) -> None:
    out = ledgermq.out("group lag")
    assert [line.split() for line in out.splitlines()] == [
        [
            "CONSUMER",
            "GROUP",
            "TOPIC",
            "BROKER",
            "GROUP",
            "BEHIND",
            "QUEUES",
            "LEASED",
            "PARKED",
            "LOST",
            "MEMBERS",
        ],
        ["(none)", "lonely", "g0", "3", "0", "0", "0", "0", "0"],
        ["billing", "orders", "g0", "3", "0", "0", "0", "0", "0"],
    ]
    rows = ledgermq.json("group lag billing --queues")
    assert [(row["group"], row["behind"]) for row in rows["topics"]] == [("billing", 3)]
    assert [(row["queue_id"], row["committed_offset"], row["behind"]) for row in rows["queues"]] == [
        (0, 2, 3)
    ]
    assert len(ledgermq("group lag --queues")[1].splitlines()) == 2
    assert 'Did you mean "billing"?' in ledgermq.err("group lag billin")


def test_lag_in_a_topic_that_does_not_exist_says_so(ledgermq: CommandLine) -> None:
    for arguments in (["lag", "--topic", "order"], ["lag", "billing", "--topic", "order", "--queues"]):
        code, out, err = ledgermq("group", *arguments)
        assert (code, out, 'Did you mean "orders"?' in err) == (1, "", True), err
    assert ledgermq("group lag billing --topic lonely")[0] == 0, "it is there, with nothing of the group"


@pytest.mark.usefixtures("few_rounds")
def test_a_broker_group_that_is_away_hides_no_lag_of_the_others(
    ledgermq: CommandLine, cluster: Cluster
) -> None:
    cluster.run(cluster.cluster.node(group="g1").stop())
    for arguments in (["lag"], ["lag", "billing"], ["lag", "billing", "--queues"]):
        code, out, err = ledgermq("group", *arguments)
        assert (code, "orders" in out) == (0, True)
        assert err.startswith("incomplete: broker group g1 does not answer: ")
    assert ledgermq.json("group lag")["silent_groups"] == ["g1"]
    code, _, err = ledgermq("group lag --topic order")
    assert (code, "does not exist" in err) == (1, False), "g1 may have it"
    cluster.run(cluster.cluster.node(group="g0").stop())
    assert ledgermq("group lag")[0] == 1


def test_who_sends_while_the_last_group_is_drained_is_told_how_to_take_it_back(ledgermq: CommandLine) -> None:
    assert ledgermq("cluster drain g0 --even-the-last --allow-reordering")[0] == 0
    err = ledgermq.err("send orders a")
    assert 'topic "orders" has no queue that can be written' in err
    assert "Its broker group is drained and takes no new messages: g0" in err
    assert "ledgermq cluster undrain g0" in err
