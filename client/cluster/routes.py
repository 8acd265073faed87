"""Routes: fetches topic routes from nameservers, caches them, and watches for changes.

Owns: the choice of the nameserver (the last one that answered; on failure the next one), and the cache (30 s;
refreshed on errors; one watch for all topics pushes changes). Must not: talk to brokers, except to let them
create an unknown topic.
Invariants: while no nameserver answers, cached routes stay in use. No two cached routes use one name for
different broker groups.
"""

from __future__ import annotations

import asyncio
import logging
import re
import time
from collections.abc import Awaitable, Callable, Collection, Sequence
from dataclasses import replace
from typing import Any, Final, TypeVar

import grpc
import grpc.aio

from ledgermq.proto import nameserver_pb2 as ns
from ledgermq.proto import nameserver_pb2_grpc, rocketmq_v2_pb2, rocketmq_v2_pb2_grpc
from ledgermq.proto import route_pb2 as pb
from ledgermq.proto.foreign_text import safe_text
from ledgermq.rpc.http2_connection import SPEAKS_HTTP_1

from ..arguments import texts
from ..errors import (
    BrokerUnreachableError,
    ClosedError,
    InvalidAddressError,
    LedgerMQError,
    NameserversDownError,
    NoBrokersError,
    NoQuorumError,
    NotANameserverError,
    RefusedError,
    TopicNotFoundError,
    error_of,
)
from ..pauses import ASK_TIMEOUT_S, NAMESERVER_LOOK_S, NAMESERVER_WAIT_S, RETRY_PAUSE_S
from .calls import being_cancelled, call_broker_group
from .channels import Channels
from .gone_groups import GoneBrokerGroup, gone_of
from .topic_route import BrokerGroup, TopicRoute, group_of, route_of

logger = logging.getLogger(__name__)

#: Age at which a route is fetched again, s.
CACHE_S: Final = 30.0
_EXPIRED: Final = float("-inf")
#: A host name or an IPv4 address, or an IPv6 address in brackets. Not checked for existence.
_HOST: Final = re.compile(r"[\w.-]+|\[[0-9A-Fa-f:.]+(%[^\s/\]]+)?\]")

T = TypeVar("T")
RouteListener = Callable[[TopicRoute], None]


def check_address(address: str, what: str, usual_port: int) -> None:
    """Check the form host:port. Raises: InvalidAddressError."""
    host, _, port = address.rpartition(":")
    if not _HOST.fullmatch(host) or not (port.isascii() and port.isdecimal()):
        hint = ", an IPv6 address in brackets" if host.count(":") > 1 else ""
        raise InvalidAddressError(
            address, f"{what}; the form is host:port{hint}, for example 127.0.0.1:{usual_port}"
        )
    if len(port) > len("65535") or not 1 <= int(port) <= 65535:
        raise InvalidAddressError(address, f"{what}; {port} is no port, ports are 1 to 65535")


def parse_addresses(nameservers: str | Sequence[str]) -> tuple[str, ...]:
    """Return the nameservers' host:port from "a:1,b:2" or a list. Raises: InvalidAddressError."""
    texts("nameservers", nameservers.split(",") if isinstance(nameservers, str) else nameservers)
    parts = nameservers.split(",") if isinstance(nameservers, str) else list(nameservers)
    addresses = tuple(part.strip() for part in parts if part.strip())
    for address in addresses:
        check_address(address, "a nameserver address", 9876)
    if not addresses:
        raise InvalidAddressError(
            "", "no nameserver is given; the form is host:port, for example 127.0.0.1:9876"
        )
    return addresses


def is_stranger(error: grpc.RpcError) -> bool:
    """Tell whether the peer is another service: it does not know the call, or speaks HTTP/1."""
    if not isinstance(error, grpc.aio.AioRpcError):
        return False
    return error.code() is grpc.StatusCode.UNIMPLEMENTED or SPEAKS_HTTP_1 in (error.details() or "")


def _is_created(status: rocketmq_v2_pb2.Status) -> bool:
    """Tell whether a broker's answer says that the topic exists. Raises: NoQuorumError, RefusedError."""
    if status.code in (rocketmq_v2_pb2.OK, rocketmq_v2_pb2.TOPIC_NOT_FOUND):
        return status.code == rocketmq_v2_pb2.OK
    if status.code in (rocketmq_v2_pb2.HA_NOT_AVAILABLE, rocketmq_v2_pb2.MASTER_PERSISTENCE_TIMEOUT):
        raise NoQuorumError("NO_QUORUM", status.message)
    raise RefusedError(rocketmq_v2_pb2.Code.Name(status.code), status.message)


def _note_failure(task: asyncio.Task[TopicRoute]) -> None:
    if not task.cancelled() and (error := task.exception()) is not None:
        logger.info("route not refreshed reason=%s", error)


class Routes:
    """Routes of the topics that one client uses."""

    def __init__(self, nameservers: str | Sequence[str], channels: Channels, cluster: str = "") -> None:
        self.nameservers = parse_addresses(nameservers)
        self.cluster = cluster
        self._channels = channels
        self._at = 0  # index of the nameserver that is asked first
        self._cache: dict[str, tuple[float, TopicRoute]] = {}  # by topic: time of the answer (s), route
        self._fetching: dict[tuple[str, bool], asyncio.Task[TopicRoute]] = {}  # by topic and `create`
        self._listeners: list[RouteListener] = []
        self._watch: asyncio.Task[None] | None = None
        self._topics_changed = asyncio.Event()
        self._broker_groups: dict[str, BrokerGroup] = {}  # by name, as in the newest route that named them
        self._closed = False

    def on_change(self, listener: RouteListener) -> None:
        """Call `listener` with every route that differs from the previous one. Enables the watch."""
        self._listeners.append(listener)

    async def get(self, topic: str, *, refresh: bool = False, create: bool = False) -> TopicRoute:
        """Return the route of a topic. `create`: brokers may create the topic, if they are configured to.

        Raises: TopicNotFoundError, NoBrokersError, NameserversDownError, RefusedError (NoQuorumError: without
        a leader of each broker group, it is unknown whether a topic exists), ClosedError; with `create` also
        BrokerUnreachableError.
        """
        self._channels.check()
        cached = self._cache.get(topic)
        if cached is not None and not refresh and time.monotonic() - cached[0] < CACHE_S:
            return cached[1]
        task = self._fetching_of(topic, create=create)
        try:
            return await asyncio.shield(task)
        except asyncio.CancelledError:
            if self._closed and task.cancelled():
                # close() cancelled the request; the caller was not cancelled
                raise ClosedError("client") from None
            raise
        except NameserversDownError:
            if cached is None:
                raise
            logger.warning("no nameserver answers, using the cached route topic=%s", topic)
            return cached[1]

    async def until_known(self, topic: str, broker_groups: Collection[str]) -> bool:
        """Wait until the nameserver knows a topic that exists in these broker groups. False: not in 3 s."""
        try:
            await self._wait_for_route(topic, broker_groups)
        except LedgerMQError as error:
            logger.warning("route not known yet topic=%s reason=%s", topic, error)
            return False
        return True

    def cached(self, topic: str) -> TopicRoute | None:
        """Return the newest known route without a call."""
        entry = self._cache.get(topic)
        return entry[1] if entry else None

    def broker_group(self, topic: str, name: str) -> BrokerGroup:
        """Return a broker group of a topic as last known. It is kept when no route names it any more.

        Raises: TopicNotFoundError (no route has ever named it).
        """
        route = self.cached(topic)
        part = route.part(name) if route else None
        if part is not None:
            return part.group
        if name not in self._broker_groups:
            raise TopicNotFoundError(topic)
        return self._broker_groups[name]

    def forget(self, topic: str) -> None:
        """The topic no longer exists: drop its route and stop watching it. The next `get` asks again."""
        if self._cache.pop(topic, None) is not None:
            self._topics_changed.set()

    async def groups(self, *, gone_too: bool = False) -> list[BrokerGroup]:
        """Return all broker groups; `gone_too`: also those whose last node left without being removed.

        Raises: NameserversDownError, NoBrokersError.
        """
        return [group_of(view) for view in (await self._list_broker_groups(gone_too=gone_too)).groups]

    async def groups_and_gone(self) -> tuple[list[BrokerGroup], list[GoneBrokerGroup]]:
        """Return the broker groups, and those whose last node left without being removed (not callable).

        Raises: as `groups`.
        """
        listed = await self._list_broker_groups(gone_too=False)
        every = await self._list_broker_groups(gone_too=True)
        return [group_of(view) for view in listed.groups], gone_of(listed, every)

    async def _list_broker_groups(self, *, gone_too: bool) -> ns.ListGroupsResponse:
        request = ns.ListGroupsRequest(cluster=self.cluster, gone_too=gone_too)
        answer: ns.ListGroupsResponse = await self._ask(
            lambda stub: stub.ListGroups(request, timeout=ASK_TIMEOUT_S)
        )
        if not answer.groups:
            raise NoBrokersError(self.asked)
        return answer

    @property
    def asked(self) -> str:
        """The nameserver that is asked first."""
        return self.nameservers[self._at]

    async def close(self) -> None:
        """Stop the watch and all requests."""
        self._closed = True
        tasks: list[asyncio.Task[Any]] = [*self._fetching.values(), *([self._watch] if self._watch else [])]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    # --- asking ---------------------------------------------------------------------------------------------

    def _stub(self, number: int) -> nameserver_pb2_grpc.NameServerServiceStub:
        return nameserver_pb2_grpc.NameServerServiceStub(
            self._channels.get(self.nameservers[number], watch=True)
        )

    async def _ask(self, call: Callable[[nameserver_pb2_grpc.NameServerServiceStub], Awaitable[T]]) -> T:
        """Ask nameservers in turn until one answers. Raises: NameserversDownError, NotANameserverError."""
        stranger = ""
        for step in range(len(self.nameservers)):
            number = (self._at + step) % len(self.nameservers)
            try:
                answer = await call(self._stub(number))
            except grpc.RpcError as error:
                logger.info(
                    "nameserver does not answer address=%s error=%s",
                    self.nameservers[number], safe_text(str(error)),
                )  # fmt: skip
                if is_stranger(error):
                    stranger = self.nameservers[number]
                continue
            self._at = number
            return answer
        if stranger:
            raise NotANameserverError(stranger)
        raise NameserversDownError(self.nameservers)

    async def ask_every(
        self, call: Callable[[nameserver_pb2_grpc.NameServerServiceStub], Awaitable[T]]
    ) -> tuple[dict[str, T], dict[str, LedgerMQError]]:
        """Ask all nameservers concurrently. Return, by address, the answers and the errors."""

        async def ask(number: int) -> T | LedgerMQError:
            try:
                return await call(self._stub(number))
            except grpc.RpcError as error:
                address = self.nameservers[number]
                return NotANameserverError(address) if is_stranger(error) else NameserversDownError([address])

        answers: dict[str, T] = {}
        silent: dict[str, LedgerMQError] = {}
        outcomes = await asyncio.gather(*map(ask, range(len(self.nameservers))))
        for address, outcome in zip(self.nameservers, outcomes, strict=True):
            if isinstance(outcome, LedgerMQError):
                silent[address] = outcome
            else:
                answers[address] = outcome
        return answers, silent

    def _fetching_of(self, topic: str, *, create: bool) -> asyncio.Task[TopicRoute]:
        """Return the task that fetches a route. Concurrent callers share it."""
        task = self._fetching.get((topic, create))
        if task is None:
            task = asyncio.create_task(self._fetch(topic, create))
            self._fetching[topic, create] = task
            task.add_done_callback(lambda _: self._fetching.pop((topic, create), None))
        return task

    async def _fetch(self, topic: str, create: bool) -> TopicRoute:
        try:
            route = await self._get_route(topic)
        except (TopicNotFoundError, NoQuorumError):
            broker_groups = await self._let_brokers_create(topic) if create else set()
            if not broker_groups:
                raise
            route = await self._wait_for_route(topic, broker_groups)
        self._keep(route)
        if self._listeners and self._watch is None and not self._closed:
            self._watch = asyncio.create_task(self._watch_routes(), name="ledgermq-route-watch")
        self._topics_changed.set()
        return route

    async def _get_route(self, topic: str) -> TopicRoute:
        request = ns.GetRouteRequest(cluster=self.cluster, topic=topic)
        answer = await self._ask(lambda stub: stub.GetRoute(request, timeout=ASK_TIMEOUT_S))
        if answer.HasField("refusal"):
            if answer.refusal.code == pb.NO_QUORUM:
                await self.groups()  # raises if there are none at all
            raise self._refused(topic, answer)
        route = route_of(topic, answer.cluster, list(answer.groups))
        if route is None:
            raise TopicNotFoundError(topic, cluster=answer.cluster, asked=self.asked)
        return route

    def _refused(self, topic: str, answer: ns.GetRouteResponse) -> Exception:
        if answer.refusal.code == pb.TOPIC_NOT_FOUND:
            question = answer.refusal.message.partition("Did you mean ")[2].partition("?")[0]
            similar = [name.strip('"') for name in question.split(" or ") if name]
            return TopicNotFoundError(topic, cluster=answer.cluster, asked=self.asked, similar=similar)
        return error_of(answer.refusal)

    async def _let_brokers_create(self, topic: str) -> set[str]:
        """Ask each broker group for the route. With automatic topic creation, this creates the topic in all.

        Return the broker groups that have the topic now. Empty: a leader says that it does not exist.
        Raises: NoQuorumError, RefusedError, BrokerUnreachableError: it is unknown whether the topic exists.
        """
        every = await self.groups()
        answers = await asyncio.gather(
            *(self._let_one_create(each, topic) for each in every), return_exceptions=True
        )
        created = {each.name for each, answer in zip(every, answers, strict=True) if answer is True}
        failures = [answer for answer in answers if isinstance(answer, BaseException)]
        if failures and not created and False not in answers:
            raise failures[0]
        return created

    async def _let_one_create(self, broker_group: BrokerGroup, topic: str) -> bool:
        """Return whether the broker group has the topic now. Raises: as `_let_brokers_create`."""
        if not any(node.messaging_address for node in broker_group.nodes):
            return False
        request = rocketmq_v2_pb2.QueryRouteRequest(topic=rocketmq_v2_pb2.Resource(name=topic))
        metadata = (("x-mq-client-id", "ledgermq"), ("x-mq-language", "PYTHON"))
        met_strangers_only = True

        async def ask(channel: Any, timeout_s: float) -> rocketmq_v2_pb2.Status:
            nonlocal met_strangers_only
            stub = rocketmq_v2_pb2_grpc.MessagingServiceStub(channel)
            try:
                answer: rocketmq_v2_pb2.QueryRouteResponse = await stub.QueryRoute(
                    request, timeout=timeout_s, metadata=metadata
                )
            except grpc.RpcError as error:
                met_strangers_only = met_strangers_only and is_stranger(error)
                raise
            return answer.status

        try:
            status = await call_broker_group(
                lambda: broker_group,
                self._channels,
                ask,
                timeout_s=ASK_TIMEOUT_S * len(broker_group.nodes),
                attempt_s=ASK_TIMEOUT_S,
                port="messaging_address",
                once=True,
            )
        except BrokerUnreachableError:
            if met_strangers_only:
                return False  # what is there creates no topics
            raise
        return _is_created(status)

    async def _wait_for_route(self, topic: str, broker_groups: Collection[str]) -> TopicRoute:
        """Wait until the nameserver knows a topic that exists in these broker groups."""
        end = time.monotonic() + NAMESERVER_WAIT_S
        while True:
            try:
                route = await self._get_route(topic)
                late = time.monotonic() > end  # some broker groups are better than none
                if late or all(route.part(name) for name in broker_groups):
                    return route
            except (TopicNotFoundError, NoQuorumError):
                if time.monotonic() > end:
                    raise
            await asyncio.sleep(NAMESERVER_LOOK_S)

    def _keep(self, route: TopicRoute) -> None:
        old = self._cache.get(route.topic)
        self._cache[route.topic] = (time.monotonic(), route)
        if old is None or old[1] != route:
            for part in route.parts:
                known = self._broker_groups.get(part.group.name)
                self._broker_groups[part.group.name] = part.group
                if known is not None and part.group.is_another(known):
                    self._ask_again(part.group)
            for listener in self._listeners:
                listener(route)

    def _ask_again(self, broker_group: BrokerGroup) -> None:
        """Take a replaced broker group out of all routes, and fetch these again.

        The rest of a route stays known and watched: the fetch may fail, and the other broker groups are as
        before.
        """
        for topic, (_, route) in list(self._cache.items()):
            part = route.part(broker_group.name)
            if part is not None and broker_group.is_another(part.group):
                others = tuple(each for each in route.parts if each is not part)
                self._cache[topic] = (_EXPIRED, replace(route, parts=others))
                if not self._closed:
                    self._fetching_of(topic, create=False).add_done_callback(_note_failure)

    # --- watching -------------------------------------------------------------------------------------------

    async def _watch_routes(self) -> None:
        """Keep a watch open on one nameserver; move to the next one when it breaks."""
        while True:
            self._topics_changed.clear()
            topics = sorted(self._cache)
            changed = asyncio.create_task(self._until_topics_differ(topics))
            try:
                await self._watch_once(topics, changed)
            except grpc.RpcError as error:
                logger.info("route watch broke nameserver=%s error=%s", self.asked, safe_text(str(error)))
                self._at = (self._at + 1) % len(self.nameservers)
                await asyncio.sleep(RETRY_PAUSE_S)
            finally:
                changed.cancel()

    async def _until_topics_differ(self, topics: list[str]) -> None:
        while sorted(self._cache) == topics:
            await self._topics_changed.wait()
            self._topics_changed.clear()

    async def _watch_once(self, topics: list[str], changed: asyncio.Task[None]) -> None:
        call = self._stub(self._at).WatchRoutes(ns.WatchRoutesRequest(cluster=self.cluster, topics=topics))
        changed.add_done_callback(lambda _: call.cancel())
        try:
            async for answer in call:
                for topic in topics:
                    if (route := route_of(topic, self.cluster, list(answer.groups))) is not None:
                        self._keep(route)
        except asyncio.CancelledError:
            # Both may coincide in one turn of the loop: other topics to watch, and close() or the loop's end.
            if being_cancelled():
                raise
        finally:
            call.cancel()
