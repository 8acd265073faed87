"""Routes against a real nameserver in this process."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace

import pytest

from ledgermq.client import Admin, Producer, SimpleConsumer
from ledgermq.client.cluster import channels
from ledgermq.client.cluster import routes as module
from ledgermq.client.cluster.channels import Channels
from ledgermq.client.cluster.routes import Routes, parse_addresses
from ledgermq.client.cluster.topic_route import TopicRoute
from ledgermq.client.errors import (
    BrokerUnreachableError,
    ClosedError,
    InvalidAddressError,
    NameserversDownError,
    NoBrokersError,
    NoQuorumError,
    NotANameserverError,
    RefusedError,
    TopicNotFoundError,
    UsageError,
)
from ledgermq.nameserver.service import NameServer
from ledgermq.proto import rocketmq_v2_pb2 as v2

from ..fake_messaging import MessagingCluster, status
from ..fakes import FakeCluster, FakeGroup
from ..silent_relay import SilentRelay

CLOSED_PORT = "127.0.0.1:1"


class Client:
    """Routes with the channels they use, closed in the right order."""

    def __init__(self, nameservers: str | list[str]) -> None:
        self.channels = Channels()
        self.routes = Routes(nameservers, self.channels)

    async def __aenter__(self) -> Routes:
        return self.routes

    async def __aexit__(self, *_: object) -> None:
        await self.routes.close()
        await self.channels.close()


class Heard:
    """A listener that can be waited for."""

    def __init__(self) -> None:
        self.routes: asyncio.Queue[TopicRoute] = asyncio.Queue()

    def __call__(self, route: TopicRoute) -> None:
        self.routes.put_nowait(route)


def test_addresses_are_read_from_text_and_from_lists() -> None:
    assert parse_addresses("a:1, b:2,") == ("a:1", "b:2")
    assert parse_addresses(["a:1", "[::1]:2"]) == ("a:1", "[::1]:2")


@pytest.mark.parametrize("text", ["", ",", "nowhere", "host:", ":9876", "host:port"])
def test_an_address_of_another_form_is_an_error_that_shows_the_form(text: str) -> None:
    with pytest.raises(ValueError, match=r"host:port, for example 127.0.0.1:9876"):
        parse_addresses(text)


@pytest.mark.parametrize(
    "text", ["http://host:9876", "host/9876:1", "a b:9876", "a;b:9876", "[]:9876", "[::1:9876", "host:²"]
)
def test_a_wrong_address_is_a_usage_error_of_every_client(text: str) -> None:
    """It is the caller's to mend, so it must not look like trouble of the cluster."""
    for make in (Producer, Admin):
        with pytest.raises(InvalidAddressError, match="is not a nameserver address; the form is host:port"):
            make(text)
    with pytest.raises(UsageError, match="is not a nameserver address"):
        SimpleConsumer(["a:9876", text], group="g")


def test_an_address_of_ip_version_6_has_brackets() -> None:
    assert parse_addresses("[fe80::1%eth0]:9876") == ("[fe80::1%eth0]:9876",)
    with pytest.raises(InvalidAddressError, match="an IPv6 address in brackets"):
        parse_addresses("fe80::1:9876")


@pytest.mark.parametrize("port", ["0", "65536", "99999"])
def test_a_port_that_cannot_be_is_named(port: str) -> None:
    with pytest.raises(ValueError, match=rf"'a:{port}' is not a nameserver address; {port} is no port"):
        parse_addresses(f"b:9876,a:{port}")


async def test_a_port_that_speaks_http_is_no_silent_nameserver() -> None:
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 405 Method Not Allowed\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")
        writer.close()

    async with await asyncio.start_server(answer, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        async with Client(f"127.0.0.1:{port}") as routes:
            with pytest.raises(NotANameserverError, match=f"127.0.0.1:{port} is not a nameserver"):
                await routes.get("orders")


async def test_a_route_is_fetched_once_and_then_kept() -> None:
    async with FakeCluster(FakeGroup(topics={"orders": 3})) as cluster, Client(cluster.address) as routes:
        first, second = await asyncio.gather(routes.get("orders"), routes.get("orders"))
        assert first is second
        assert len(first.queues) == 3
        assert routes.cached("orders") is first
        assert routes.cached("other") is None


async def test_a_route_is_asked_for_again_after_30_seconds(monkeypatch: pytest.MonkeyPatch) -> None:
    """A1.12, for clients without a watch."""
    now = 1000.0
    monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=lambda: now))
    group = FakeGroup(topics={"orders": 3})
    async with FakeCluster(group) as cluster, Client(cluster.address) as routes:
        first = await routes.get("orders")
        group.term = 2
        cluster.register(group)
        now += 29
        assert await routes.get("orders") is first
        now += 1
        assert (await routes.get("orders")).parts[0].group.term == 2


async def test_the_next_nameserver_is_asked_when_one_does_not_answer() -> None:
    async with (
        FakeCluster(FakeGroup(topics={"orders": 1})) as cluster,
        Client([CLOSED_PORT, cluster.address]) as routes,
    ):
        assert (await routes.get("orders")).cluster == "local"
        assert routes.asked == cluster.address


async def test_a_kept_route_stays_in_use_while_no_nameserver_answers() -> None:
    async with FakeCluster(FakeGroup(topics={"orders": 1})) as cluster, Client(cluster.address) as routes:
        before = await routes.get("orders")
        await cluster.nameserver.stop(0)
        assert await routes.get("orders", refresh=True) is before
        with pytest.raises(NameserversDownError, match="ledgermq up"):
            await routes.get("other")


async def test_an_unknown_topic_is_an_error_with_suggestion_and_command() -> None:
    async with FakeCluster(FakeGroup(topics={"orders": 1})) as cluster, Client(cluster.address) as routes:
        with pytest.raises(TopicNotFoundError) as raised:
            await routes.get("order")
        assert raised.value.similar == ("orders",)
        assert raised.value.asked == cluster.address
        assert "ledgermq topic create order" in str(raised.value)


async def test_a_nameserver_without_brokers_is_an_error_that_says_so() -> None:
    async with FakeCluster() as cluster, Client(cluster.address) as routes:
        for call in (routes.get("orders"), routes.groups()):
            with pytest.raises(NoBrokersError, match="ledgermq cluster status"):
                await call


async def test_a_broker_may_create_the_topic_when_it_is_sent_to() -> None:
    async with MessagingCluster(FakeGroup()) as cluster, Client(cluster.address) as routes:
        cluster.messaging[0].creates_topics = cluster
        assert len((await routes.get("fresh", create=True)).queues) == 2
        cluster.messaging[0].creates_topics = None
        with pytest.raises(TopicNotFoundError):
            await routes.get("another", create=True)


async def test_the_next_node_is_asked_to_create_a_topic_where_another_service_has_the_port_of_the_first() -> (
    None
):
    async with MessagingCluster(FakeGroup(), nodes=2) as cluster, Client(cluster.address) as routes:
        cluster.messaging[1].creates_topics = cluster
        first = cluster.node("n1")
        first.messaging_address = first.address  # it serves gRPC, and no official clients
        cluster.register(cluster.groups[0])
        assert len((await routes.get("fresh", create=True)).queues) == 2
        second = cluster.node("n2")
        second.messaging_address = second.address
        cluster.register(cluster.groups[0])
        with pytest.raises(TopicNotFoundError):
            await routes.get("another", create=True)


async def test_a_broker_without_a_leader_cannot_tell_that_a_topic_does_not_exist() -> None:
    async with MessagingCluster(FakeGroup()) as cluster, Client(cluster.address) as routes:
        cluster.messaging[0].route_refusal = status(v2.HA_NOT_AVAILABLE, "no leader is known")
        with pytest.raises(NoQuorumError, match=r"^no leader is known"):
            await routes.get("fresh", create=True)
        cluster.messaging[0].route_refusal = status(v2.TOO_MANY_REQUESTS, "the disk is full")
        with pytest.raises(RefusedError, match=r"^the disk is full"):
            await routes.get("fresh", create=True)
        await cluster.messaging[0].stop()
        with pytest.raises(BrokerUnreachableError, match="does not answer"):
            await routes.get("fresh", create=True)


async def test_an_unknown_topic_may_exist_while_a_broker_group_has_no_leader() -> None:
    group = FakeGroup(topics={"orders": 1})
    async with MessagingCluster(group) as cluster, Client(cluster.address) as routes:
        group.leader, group.term = "", 2
        cluster.register(group)
        with pytest.raises(NoQuorumError, match="group g0 has no leader") as raised:
            await routes.get("payments")
        assert raised.value.retryable
        # A broker waits for the election before it says whether it creates a topic.
        cluster.messaging[0].creates_topics = cluster
        assert len((await routes.get("payments", create=True)).queues) == 2


async def test_a_new_leader_is_heard_of_at_once() -> None:
    group, heard = FakeGroup(topics={"orders": 1}), Heard()
    async with FakeCluster(group, nodes=3) as cluster, Client(cluster.address) as routes:
        routes.on_change(heard)
        await routes.get("orders")
        assert (await heard.routes.get()).parts[0].group.leader_id == "n1"
        group.leader, group.term = "n2", 2
        cluster.register(group)
        changed = await heard.routes.get()
        assert changed.parts[0].group.leader_id == "n2"
        assert routes.cached("orders") == changed


async def test_a_topic_that_is_asked_for_later_is_watched_too() -> None:
    group, heard = FakeGroup(topics={"orders": 1, "payments": 1}), Heard()
    async with FakeCluster(group) as cluster, Client(cluster.address) as routes:
        routes.on_change(heard)
        await routes.get("orders")
        await routes.get("payments")
        group.term = 2
        cluster.register(group)
        terms = {"orders": 0, "payments": 0}
        while set(terms.values()) != {2}:
            route = await heard.routes.get()
            terms[route.topic] = route.parts[0].group.term


async def test_the_watch_moves_to_the_next_nameserver_when_one_stops() -> None:
    group, heard = FakeGroup(topics={"orders": 1}), Heard()
    other = NameServer({"default": "127.0.0.1:0"}, 60_000)
    await other.start()
    async with FakeCluster(group) as cluster, Client([cluster.address, other.addresses["default"]]) as routes:
        routes.on_change(heard)
        await routes.get("orders")
        await heard.routes.get()
        await cluster.nameserver.stop(0)
        group.term = 2
        cluster.nameserver = other  # `register` tells this one now
        cluster.register(group)
        assert (await heard.routes.get()).parts[0].group.term == 2


async def test_the_watch_leaves_a_nameserver_that_has_fallen_silent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(channels, "KEEPALIVE_S", 0.2)
    monkeypatch.setattr(channels, "WATCH_TIMEOUT_S", 0.2)
    group, heard = FakeGroup(topics={"orders": 1}), Heard()
    async with (
        FakeCluster(group) as cluster,
        SilentRelay(cluster.address) as relay,
        Client([relay.address, cluster.address]) as routes,
    ):
        routes.on_change(heard)
        await routes.get("orders")
        await heard.routes.get()
        assert routes.asked == relay.address
        relay.fall_silent()
        group.term = 2
        cluster.register(group)
        assert (await heard.routes.get()).parts[0].group.term == 2
        assert routes.asked == cluster.address


async def test_closing_in_the_turn_in_which_the_watched_topics_change_ends_the_watch() -> None:
    group = FakeGroup(topics={"orders": 1, "payments": 1})
    async with FakeCluster(group) as cluster, Client(cluster.address) as routes:
        heard = Heard()
        routes.on_change(heard)
        await routes.get("orders")
        await heard.routes.get()
        await routes.get("payments")  # the watch is about to start again
        await routes.close()
        assert routes._watch is not None
        assert routes._watch.done()


async def test_closing_ends_questions_that_are_out() -> None:
    async with FakeCluster(FakeGroup(topics={"orders": 1})) as cluster:
        async with Client(cluster.address) as routes:
            waiting = asyncio.create_task(routes.get("orders"))
            await asyncio.sleep(0)
        with pytest.raises(ClosedError):
            await waiting


async def test_a_watch_that_was_not_closed_ends_with_the_loop() -> None:
    """`asyncio.run` cancels all tasks in one turn and waits for them."""

    async with FakeCluster(FakeGroup(topics={"orders": 2})) as cluster:
        client = Client(cluster.address)
        client.routes.on_change(Heard())
        await client.routes.get("orders")
        watch = client.routes._watch
        assert watch is not None
        for task in asyncio.all_tasks() - {asyncio.current_task()}:
            if task is watch or "_until_topics_differ" in repr(task):
                task.cancel()
        await asyncio.wait([watch], timeout=20)
        assert watch.done()
        await client.routes.close()
        await client.channels.close()
