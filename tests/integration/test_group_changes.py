"""A cluster changes by whole broker groups while clients use it: add, drain, failover, remove, take back."""

from __future__ import annotations

import asyncio
import json

import grpc
import pytest

from ledgermq.client import BrokerGroupAdmin, Producer, PullConsumer
from ledgermq.client.cli import run_cli
from ledgermq.client.errors import UsageError
from ledgermq.client.produce.queue_selection import StrictRoundRobin
from ledgermq.proto import rocketmq_v2_pb2 as v2
from ledgermq.proto import rocketmq_v2_pb2_grpc, route_pb2

from .cluster import Cluster, wait_until
from .group_load import TOPIC, Load, command, run, traffic, until

pytestmark = pytest.mark.usefixtures("command_line")


def send_officially(cluster: Cluster, node: str) -> v2.SendMessageResponse:
    """Send one message as an official client does, to that node."""
    message = v2.Message(topic=v2.Resource(name=TOPIC), body=b"-1")
    message.system_properties.message_id = "01AABBCCDDEEFF00112233445566778899"
    message.system_properties.message_type = v2.NORMAL
    with grpc.insecure_channel(cluster.address(node, "messaging")) as channel:
        stub = rocketmq_v2_pb2_grpc.MessagingServiceStub(channel)
        answer: v2.SendMessageResponse = stub.SendMessage(
            v2.SendMessageRequest(messages=[message]), timeout=10, metadata=(("x-mq-client-id", "test"),)
        )
    return answer


def permissions(cluster: Cluster, node: str) -> dict[str, int]:
    """Return the permission of each broker group's queues, as official clients are told it."""
    with grpc.insecure_channel(cluster.address(node, "messaging")) as channel:
        stub = rocketmq_v2_pb2_grpc.MessagingServiceStub(channel)
        request = v2.QueryRouteRequest(topic=v2.Resource(name=TOPIC))
        answer = stub.QueryRoute(request, timeout=10, metadata=(("x-mq-client-id", "test"),))
    return {queue.broker.name.partition(".")[0]: queue.permission for queue in answer.message_queues}


async def test_a_group_is_added_drained_and_removed_under_load_and_nothing_acknowledged_is_lost(
    cluster: Cluster,
) -> None:
    async with traffic(cluster.nameserver, 30_000) as each:
        load, consumers, producer = each.load, each.consumers, each.producer
        assert await asyncio.to_thread(cluster.add_group, 1) == "g1"
        assert await command("cluster", "add-group", "g1") == 0
        await consumers.saw("g1")  # without a restart of the consumers
        assert "g1" in load.groups.values()

        await drain_with_a_change_of_leader(cluster, load)

        assert await command("cluster", "drain", "g0", "--wait", "--timeout", "60s") == 0
        assert [row.behind for _, row in await each.admin.progress(broker_group="g0")] == [0, 0, 0]
        assert await command("cluster", "remove-group", "g0") == 0
        await until(lambda: "g0" not in producer._connections)
        await until(lambda: "g0" not in consumers.push._groups)
        await until(lambda: {queue.broker_group for queue in consumers.pull.assignment} == {"g1"})
        assert [group.name for group in await each.admin.groups()] == ["g1"]
        assert await command("cluster", "status") == 0
        await load.more(20)

        await come_back(cluster, load)
        await consumers.saw("g0")


async def drain_with_a_change_of_leader(cluster: Cluster, load: Load) -> None:
    """Drain g0 and kill its leader: it takes no more messages under any leader, and consumers go on."""
    assert await command("cluster", "drain", "g0") == 0
    first_behind = load.sent
    leader = await asyncio.to_thread(cluster.wait_leader, group="g0")
    await asyncio.to_thread(cluster.kill, leader)
    successor = await asyncio.to_thread(cluster.wait_leader, leader, group="g0")
    await load.more(100)
    behind = {group for number, group in load.groups.items() if number >= first_behind}
    assert behind == {"g1"}
    assert await asyncio.to_thread(drained, cluster, successor)
    answer = await asyncio.to_thread(send_officially, cluster, successor)
    assert answer.status.code == v2.FORBIDDEN, answer
    told = await asyncio.to_thread(permissions, cluster, cluster.groups["g1"][0])
    assert told == {"g0": v2.READ, "g1": v2.READ_WRITE}
    await asyncio.to_thread(cluster.restart, leader)
    await asyncio.to_thread(
        wait_until, lambda: drained(cluster, leader), "the node that was away knows it, too"
    )


def drained(cluster: Cluster, node: str) -> bool:
    """Tell whether a node has applied the drain."""
    status = cluster.status(node)
    return status is not None and status.mode == route_pb2.MODE_DRAINING


async def come_back(cluster: Cluster, load: Load) -> None:
    """Take the removed group back by one of its nodes: clients use it again."""
    node = cluster.groups["g0"][0]
    assert await command("cluster", "undrain", "g0", "--node", cluster.address(node)) == 0
    seen = load.sent
    await until(lambda: any(group == "g0" for number, group in load.groups.items() if number > seen))


def test_what_is_not_consumed_holds_up_a_removal_and_is_named(
    cluster: Cluster, capfd: pytest.CaptureFixture[str]
) -> None:
    address = cluster.nameserver
    cluster.add_group(1)

    def ledgermq(*arguments: str) -> tuple[int, str]:
        code = run_cli(list(arguments))
        printed = capfd.readouterr()
        return code, printed.out + printed.err

    assert ledgermq("topic", "create", TOPIC, "-q", "1")[0] == 0
    assert ledgermq("topic", "create", "lonely", "-q", "1")[0] == 0

    async def fill() -> None:
        async with Producer(address, selector=StrictRoundRobin()) as producer:
            for topic in (TOPIC, "lonely"):
                for _ in range(4):
                    await producer.send(topic, b"x")
        async with PullConsumer(address, group="billing") as consumer:
            await consumer.subscribe(TOPIC)
            await consumer.commit()  # it stands at the beginning

    run(fill())
    code, text = ledgermq("cluster", "remove-group", "g1")
    assert (code, "cluster drain g1 --wait" in text) == (1, True)
    code, text = ledgermq("cluster", "drain", "g1", "--wait", "--timeout", "300ms")
    assert code == 1
    assert 'no consumer group consumes topic "lonely": 2 messages' in text
    assert "not everything was consumed within 0.3 s; g1 goes on being drained" in text
    code, text = ledgermq("cluster", "drain", "g1", "--json")
    assert code == 0
    found = json.loads(text)
    assert (found["mode"], found["changed"], found["nobody_consumes"]) == ("draining", False, {"lonely": 2})
    assert [(row["group"], row["topic"], row["behind"]) for row in found["left"]] == [("billing", TOPIC, 2)]
    code, text = ledgermq("cluster", "remove-group", "g1")
    assert code == 1
    assert (
        f'2 of topic "lonely" by any consumer group, 2 of topic "{TOPIC}" by consumer group "billing"' in text
    )
    code, text = ledgermq("cluster", "status")
    assert "DRAINING" in text
    metrics = cluster.http(cluster.wait_leader(group="g1"), "/metrics")[1]
    assert f'rocketmq_consumer_lag_messages{{consumer_group="billing",topic="{TOPIC}"}} 2.0' in metrics
    assert "ledgermq_broker_group_mode 1.0" in metrics
    assert f"billing {TOPIC} g1 2 1 0 0 0 0".split() in map(
        str.split, ledgermq("group", "lag")[1].splitlines()
    )

    async def read_without_committing() -> None:
        async with PullConsumer(address, group="audit", max_buffer_bytes=1) as consumer:
            await consumer.subscribe(TOPIC)
            await until(lambda: "g1" in consumer.sources)  # one message came, and there is no room for more
            code, text = await asyncio.to_thread(ledgermq, "cluster", "remove-group", "g1")
            assert code == 1
            assert f'consumer group "audit" reads topic "{TOPIC}"' in text

    run(read_without_committing())
    code, text = ledgermq("cluster", "remove-group", "g1", "--force", "--yes")
    assert code == 0
    assert 'lost to consumers: 2 messages of topic "lonely" that no consumer group has consumed' in text
    wait_until(lambda: "g1" not in ledgermq("cluster", "status")[1], "g1 is forgotten")
    with pytest.raises(UsageError, match="no other broker group takes messages"):
        run(drain_the_last(address))


async def drain_the_last(address: str) -> None:
    async with BrokerGroupAdmin(address) as admin:
        await admin.drain("g0")
