"""Two broker groups of three nodes each: topics, clients and command line over both, and the death of one."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import AsyncIterator, Coroutine, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import grpc
import pytest

from ledgermq.client import Admin, Message, Producer, PullConsumer, SimpleConsumer
from ledgermq.client.cli import run_cli
from ledgermq.client.message import SendReceipt
from ledgermq.client.produce.queue_selection import StrictRoundRobin
from ledgermq.proto import rocketmq_v2_pb2 as v2
from ledgermq.proto import rocketmq_v2_pb2_grpc

from .cluster import Cluster, wait_until

QUEUES = {("g0", 0), ("g0", 1), ("g1", 0), ("g1", 1)}


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    made = Cluster(tmp_path_factory.mktemp("groups"), nodes=3, groups=2)
    for name, process in made.nodes.items():
        process.arguments += ["--zone", f"rack of {name}"]
    with made as running:
        yield running


@pytest.fixture(autouse=True)
def ledgermq(cluster: Cluster, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Any:
    """Run one command line; return its exit code and what it printed. Every test begins with all nodes up."""
    cluster.start_all()
    monkeypatch.setenv("LEDGERMQ_NAMESERVER", cluster.nameserver)
    monkeypatch.setenv("COLUMNS", "200")

    def command(*arguments: str) -> tuple[int, str]:
        code = run_cli(list(arguments))
        printed = capfd.readouterr()
        return code, printed.out + printed.err

    assert command("cluster", "status", "--wait", "30s")[0] == 0
    return command


def run(coroutine: Coroutine[Any, Any, None]) -> None:
    asyncio.run(asyncio.wait_for(coroutine, 60))


class Sender:
    """A topic with two queues per broker group, and a producer that takes all of them in turn."""

    def __init__(self, producer: Producer, topic: str) -> None:
        self._producer = producer
        self._topic = topic
        self._sent = 0

    async def __call__(self, count: int) -> list[SendReceipt]:
        first, self._sent = self._sent, self._sent + count
        bodies = [b"%d" % number for number in range(first, self._sent)]
        return list(await self._producer.send_batch(Message(self._topic, body) for body in bodies))

    async def disconnected(self, group: str) -> None:
        """Wait until the producer knows that its stream to a dead broker group has ended."""
        while self._producer._connections[group].connected:  # noqa: ASYNC110  # nothing tells of it
            await asyncio.sleep(0.01)


@asynccontextmanager
async def sending(cluster: Cluster, topic: str) -> AsyncIterator[Sender]:
    address = cluster.nameserver
    async with Admin(address) as admin:
        assert await admin.create_topic(topic, 2) == 4
    async with Producer(address, selector=StrictRoundRobin()) as producer:
        yield Sender(producer, topic)


def expected(count: int) -> Counter[bytes]:
    return Counter(b"%d" % i for i in range(count))


async def test_twenty_messages_are_spread_over_both_groups_and_read_once(cluster: Cluster) -> None:
    address = cluster.nameserver
    async with sending(cluster, "spread") as send:
        receipts = await send(20)
    assert Counter((each.broker_group, each.queue_id) for each in receipts) == dict.fromkeys(QUEUES, 5)
    got: Counter[bytes] = Counter()
    async with PullConsumer(address, group="pull") as consumer:
        await consumer.subscribe("spread")
        while got.total() < 20:
            got.update(message.body for message in await consumer.poll(timeout_ms=10_000))
        await consumer.commit()
        committed = await consumer.committed("spread")
    assert got == expected(20)
    assert {(q.broker_group, q.queue_id): offset for q, offset in committed.items()} == dict.fromkeys(
        QUEUES, 5
    )
    async with PullConsumer(address, group="pull") as again:
        await again.subscribe("spread")
        assert await again.poll(timeout_ms=200) == []


async def test_leases_and_acknowledgements_work_over_both_groups(cluster: Cluster) -> None:
    async with sending(cluster, "leased") as send:
        await send(20)
    got: Counter[bytes] = Counter()
    async with SimpleConsumer(cluster.nameserver, group="simple") as consumer:
        await consumer.subscribe("leased")
        while got.total() < 20:
            messages = await consumer.receive(timeout_ms=10_000)
            got.update(message.body for message in messages)
            await asyncio.gather(*(consumer.ack(message) for message in messages))
        assert await consumer.receive(timeout_ms=600) == []
    assert got == expected(20)
    async with Admin(cluster.nameserver) as admin:
        _, progress = await admin.describe_group("simple", "leased")
    assert {(where, each.queue_id): each.committed_offset for where, each in progress} == dict.fromkeys(
        QUEUES, 5
    )


def call_messaging(cluster: Cluster, node: str, method: str, request: Any) -> Any:
    with grpc.insecure_channel(cluster.address(node, "messaging")) as channel:
        stub = rocketmq_v2_pb2_grpc.MessagingServiceStub(channel)
        return getattr(stub, method)(request, timeout=10, metadata=(("x-mq-client-id", "test"),))


def test_every_node_tells_official_clients_of_the_nodes_of_all_groups(
    cluster: Cluster, ledgermq: Any
) -> None:
    assert ledgermq("topic", "create", "official", "-q", "2")[0] == 0
    everybody = {f"{group}.{node}" for group, nodes in cluster.groups.items() for node in nodes}
    topic = v2.Resource(name="official")
    answers = []
    for node in cluster.nodes:

        def whole(node: str = node) -> Any:
            answer = call_messaging(cluster, node, "QueryRoute", v2.QueryRouteRequest(topic=topic))
            return answer if len(answer.message_queues) == 12 else None

        answers.append(wait_until(whole, f"{node} knows the topic in both groups"))
    for answer in answers:
        assert answer.status.code == v2.OK
        assert {queue.broker.name for queue in answer.message_queues} == everybody
        assert list(answer.message_queues) == list(answers[0].message_queues)
        for queue in answer.message_queues:
            (endpoint,) = queue.broker.endpoints.addresses
            assert endpoint.port == cluster.nodes[queue.broker.name[3:]].ports["messaging"]
    request = v2.QueryAssignmentRequest(topic=topic, group=v2.Resource(name="push"))
    assigned = call_messaging(cluster, "n5", "QueryAssignment", request).assignments
    assert {(each.message_queue.id, each.message_queue.broker.name) for each in assigned} == {
        (-1, name) for name in everybody
    }


def test_a_topic_that_an_official_client_uses_first_is_made_in_every_group(cluster: Cluster) -> None:
    request = v2.QueryRouteRequest(topic=v2.Resource(name="first-use"))
    assert call_messaging(cluster, "n2", "QueryRoute", request).status.code == v2.OK

    async def groups() -> set[str]:
        async with Admin(cluster.nameserver) as admin:
            return {queue.broker_group for queue, _ in (await admin.describe_topic("first-use"))[1]}

    assert asyncio.run(groups()) == {"g0", "g1"}


async def test_our_producer_makes_a_topic_in_every_group_by_its_first_use(cluster: Cluster) -> None:
    async with Producer(cluster.nameserver, selector=StrictRoundRobin()) as producer:
        receipts = await producer.send_batch(Message("by-us", b"x") for _ in range(16))
    assert {each.broker_group for each in receipts} == {"g0", "g1"}


def test_a_producer_prefers_the_group_that_is_led_from_its_zone(cluster: Cluster, ledgermq: Any) -> None:
    async def groups(zone: str) -> set[str]:
        address = cluster.nameserver
        async with Producer(address, zone=zone, selector=StrictRoundRobin()) as producer:
            receipts = await producer.send_batch(Message("zones", b"x") for _ in range(16))
        return {each.broker_group for each in receipts}

    assert ledgermq("topic", "create", "zones", "-q", "2")[0] == 0
    leader = cluster.wait_leader(group="g1")
    follower = cluster.others(leader)[0]
    assert asyncio.run(groups(f"rack of {leader}")) == {"g1"}
    assert asyncio.run(groups(f"rack of {follower}")) == {"g0", "g1"}
    assert ledgermq("cluster", "transfer", follower) == (0, f"{follower} leads\n")
    wait_until(
        lambda: asyncio.run(groups(f"rack of {follower}")) == {"g1"}, "the nameserver knows the leader"
    )


def test_sends_go_on_when_the_leader_of_a_group_dies(cluster: Cluster, ledgermq: Any) -> None:
    async def scenario() -> None:
        async with sending(cluster, "leader-dies") as send:
            await send(20)
            leader = cluster.wait_leader(group="g1")
            cluster.kill(leader)
            receipts = await send(200)
            assert len({(r.broker_group, r.queue_id, r.queue_offset) for r in receipts}) == 200
        cluster.wait_leader(other_than=leader, group="g1")

    run(scenario())
    code, text = ledgermq("cluster", "status")
    assert code == 1
    assert "BROKER GROUP g0   HEALTHY" in text
    assert "BROKER GROUP g1   DEGRADED" in text


def test_sends_go_on_through_the_other_group_when_one_is_gone_which_is_forgotten_on_demand(
    cluster: Cluster, ledgermq: Any
) -> None:
    async def scenario() -> None:
        async with sending(cluster, "group-dies") as send:
            await send(20)
            for node in cluster.groups["g0"]:
                await asyncio.to_thread(cluster.kill, node)
            # A message sent before the stream's end shows has an unknown outcome, and keeps its broker group.
            await send.disconnected("g0")
            assert {each.broker_group for each in await send(200)} == {"g1"}

    run(scenario())
    code, text = ledgermq("cluster", "status")
    assert code == 2, text
    assert "BROKER GROUP g0   NO ANSWER" in text
    assert "BROKER GROUP g1   HEALTHY" in text
    code, text = ledgermq("topic", "delete", "group-dies", "--yes")
    assert code == 1 and 'broker group "g0"' in text and "Nothing was changed" in text
    known = wait_until(lambda: forgotten(cluster, "g0"), "the nameserver drops the silent group")
    assert known == ["g1"]
    code, text = ledgermq("cluster", "status")
    assert code == 2, text
    assert "BROKER GROUP g0   NO ANSWER" in text
    code, text = ledgermq("topic", "list")
    assert code == 0 and "group-dies" in text and "last heard: " in text
    code, text = ledgermq("topic", "delete", "group-dies", "--yes")
    assert code == 1 and "ledgermq cluster forget-group g0" in text

    code, text = ledgermq("cluster", "forget-group", "g0", "--yes")
    assert code == 0 and "all messages that are stored there alone" in text and "group-dies" in text
    code, text = ledgermq("cluster", "status")
    assert code == 0 and "GROUP g0" not in text
    assert ledgermq("topic", "delete", "group-dies", "--yes")[0] == 0
    cluster.start_all()
    wait_until(lambda: forgotten(cluster, "g0") is None, "the group registers again")
    cluster.wait_leader(group="g0")
    assert "group-dies" in ledgermq("topic", "list")[1], "nothing was deleted in it"


async def test_with_a_dead_group_every_message_is_stored_elsewhere_within_3_s_and_it_is_used_when_it_is_back(
    cluster: Cluster,
) -> None:
    """The deadline of a message is 3 s, so one that takes longer fails the batch."""
    address = cluster.nameserver
    async with Admin(address) as admin:
        await admin.create_topic("comes-back", 2)
    async with Producer(address, selector=StrictRoundRobin(), timeout_ms=3_000) as producer:
        send = Sender(producer, "comes-back")
        assert {each.broker_group for each in await send(20)} == {"g0", "g1"}
        for node in cluster.groups["g0"]:
            await asyncio.to_thread(cluster.kill, node)
        await send.disconnected("g0")
        for _ in range(20):
            assert {each.broker_group for each in await send(10)} == {"g1"}
        starting = asyncio.create_task(asyncio.to_thread(cluster.start_all))
        while "g0" not in {each.broker_group for each in await send(10)}:
            pass
        await starting


async def test_a_pull_consumer_reads_what_lives_at_once_and_the_dead_group_when_it_is_back(
    cluster: Cluster,
) -> None:
    async def read(consumer: PullConsumer, group: str, count: int) -> None:
        for _ in range(count):
            (message,) = await consumer.poll(1, 20_000)
            assert message.queue.broker_group == group

    async with sending(cluster, "pull-group-dies") as send:
        await send(20)
    for node in cluster.groups["g0"]:
        await asyncio.to_thread(cluster.kill, node)
    address = cluster.nameserver
    async with PullConsumer(address, group="pull-again") as consumer:
        await consumer.subscribe("pull-group-dies")
        assert {queue.broker_group for queue in consumer.assignment} == {"g1"}
        assert {queue.broker_group for queue in consumer.missing} == {"g0"}
        await read(consumer, "g1", 10)
        await consumer.commit()
        await asyncio.to_thread(cluster.start_all)
        await read(consumer, "g0", 10)
        assert consumer.missing == ()
        await consumer.commit()
        assert set((await consumer.lag("pull-group-dies")).values()) == {0}


def forgotten(cluster: Cluster, group: str) -> list[str] | None:
    """Return the broker groups that clients are told of, when `group` is not among them."""

    async def groups() -> list[str]:
        async with Admin(cluster.nameserver) as admin:
            return [each.name for each in await admin.groups()]

    known = asyncio.run(groups())
    return None if group in known else known


def test_the_command_line_works_over_both_groups(cluster: Cluster, ledgermq: Any) -> None:
    assert "with 4 queues" in ledgermq("topic", "create", "shell", "-q", "2")[1]
    for number in range(6):
        assert ledgermq("send", "shell", f"body {number}")[0] == 0
    code, text = ledgermq("consume", "shell", "--group", "shell", "--count", "6", "--timeout", "20")
    assert code == 0
    assert sorted(line for line in text.splitlines() if line.startswith("body")) == [
        f"body {i}" for i in range(6)
    ]
    _, text = ledgermq("topic", "describe", "shell", "--json")
    assert {(q["broker_group"], q["queue_id"]) for q in json.loads(text)["offsets"]} == QUEUES
    _, text = ledgermq("cluster", "status", "--json")
    assert [(g["group"], g["verdict"], len(g["nodes"])) for g in json.loads(text)["groups"]] == [
        ("g0", "healthy", 3),
        ("g1", "healthy", 3),
    ]
    code, text = ledgermq("cluster", "leader")
    leaders = [cluster.wait_leader(group=group) for group in cluster.groups]
    assert (code, [line.split()[:2] for line in text.splitlines()]) == (
        0,
        [["g0", leaders[0]], ["g1", leaders[1]]],
    )
    assert ledgermq("cluster", "leader", "--group", "g1", "--quiet") == (0, f"{leaders[1]}\n")
    other = cluster.others(leaders[1])[0]
    assert ledgermq("cluster", "transfer", other) == (0, f"{other} leads\n")
    code, text = ledgermq("bench", "-w", "W2,W4", "--seconds", "0.5", "--queues", "2", "--json", "-")
    assert code == 0
    assert [each["workload"] for each in json.loads(text)["workloads"]] == ["W2", "W4"]


def test_the_replicas_of_each_group_are_proven_equal(cluster: Cluster, ledgermq: Any, tmp_path: Path) -> None:
    assert ledgermq("send", "checked", "hello")[0] == 0
    code, text = ledgermq("dump", str(tmp_path / "dumps"))
    assert code == 0, text
    manifests = sorted(
        str(path.parent.relative_to(tmp_path / "dumps"))
        for path in (tmp_path / "dumps").glob("*/*/manifest.json")
    )
    assert manifests == ["g0/n1", "g0/n2", "g0/n3", "g1/n4", "g1/n5", "g1/n6"]
    code, text = ledgermq("check", str(tmp_path / "dumps"), "--local", "1")
    assert code == 0, text
    assert text.count("3 replicas identical to index") == 2
    assert "group g0" in text
    assert "group g1" in text
    assert (tmp_path / "dumps" / "report" / "g1" / "report.html").exists()
