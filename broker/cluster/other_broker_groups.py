"""View of the cluster's other broker groups (topics, nodes, addresses), from a nameserver's watch stream.

Owns: one watch stream, on one nameserver at a time, and the last view of every other broker group. Must not:
know its own broker group.
While no nameserver answers, the last views stay in use. A broker group that a nameserver does not list keeps
its nodes for GRACE seconds (the nameserver may have just restarted). It keeps its place in the routes of
ordered topics as long as this node runs: with another number of queues, a message group would move to another
queue.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Final

import grpc
import grpc.aio

from ledgermq.proto import admin_pb2, admin_pb2_grpc, nameserver_pb2_grpc, route_pb2
from ledgermq.proto import nameserver_pb2 as pb
from ledgermq.proto import rocketmq_v2_pb2 as v2
from ledgermq.rpc.grpc_channel import CLIENT_LIMITS, GrpcChannel, Reconnects

from ..background import BackgroundWork
from ..wire.route import BrokerGroupQueues, accepted_types
from .members import pick

logger = logging.getLogger(__name__)

#: Seconds for which a broker group that a nameserver stopped listing counts as unchanged.
GRACE: Final = 3.0
_PAUSE: Final = 1.0  # seconds before the next nameserver is asked
_READ_PAUSE: Final = 0.05  # seconds; changes in between arrive as one
_CREATE_TIMEOUT: Final = 2.0  # seconds per broker group
_RECONNECTS: Final = Reconnects(first_s=0.2, most_s=2.0)
#: A watch may be silent for hours, so pings check the connection. Nameservers allow one every 5 s.
_LIMITS: Final = replace(CLIENT_LIMITS, max_message=64 << 20, keepalive_s=10.0, keepalive_timeout_s=5.0)


class OtherBrokerGroups(BackgroundWork):
    """Use: `start()`, then ask; `await stop()`."""

    def __init__(
        self,
        cluster: str,
        own_broker_group: str,
        nameservers: tuple[str, ...],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._cluster = cluster
        self._own_broker_group = own_broker_group
        self._nameservers = nameservers
        self._clock = clock
        self._views: dict[str, route_pb2.GroupRoute] = {}  # last view by broker group
        self._topics: dict[str, dict[str, route_pb2.TopicInfo]] = {}  # by broker group, by topic name
        self._absent_since: dict[str, float] = {}  # broker groups in `_views` that are not listed now

    def take(self, views: list[route_pb2.GroupRoute]) -> None:
        """Store the newest view of all other broker groups."""
        listed = {view.group: view for view in views if view.group != self._own_broker_group}
        for name in self._views.keys() - listed.keys():
            if self._views[name].mode != route_pb2.MODE_ACTIVE:
                # Drained, and removed now: it does not come back by itself.
                del self._views[name], self._topics[name]
                self._absent_since.pop(name, None)
            else:
                self._absent_since.setdefault(name, self._clock())
        for name, view in listed.items():
            self._absent_since.pop(name, None)
            self._views[name] = view
            self._topics[name] = {info.name: info for info in view.topics}

    def queues(self, topic: str, listener: str) -> list[tuple[BrokerGroupQueues, int]]:
        """Return (queues, message type) of the topic in each other broker group that serves it, by name.

        A broker group without live nodes is left out, unless the topic may be ordered.
        """
        found = []
        for name in sorted(self._views):
            info = self._topics[name].get(topic)
            if info is None:
                continue
            nodes = self._nodes(name, ordered=v2.FIFO in accepted_types(int(info.message_type)))
            if nodes:
                addresses = [(node.node_id, pick(node, listener)) for node in nodes]
                writable = self._views[name].mode == route_pb2.MODE_ACTIVE
                found.append(
                    (BrokerGroupQueues(name, info.queue_count, addresses, writable), int(info.message_type))
                )
        return found

    def _nodes(self, broker_group: str, *, ordered: bool) -> list[route_pb2.NodeInfo]:
        """Return the nodes of a broker group that clients may call, by id."""
        now = self._clock()
        absent = now - self._absent_since.get(broker_group, now) > GRACE
        known = [node for node in self._views[broker_group].nodes if node.listeners]
        alive = [node for node in known if node.alive and not absent]
        return sorted(alive or (known if ordered else []), key=lambda node: node.node_id)

    async def create(self, topic: str) -> None:
        """Create a topic in every other broker group after its first use here. A failure is only logged."""
        await asyncio.gather(*(self._create_in(view, topic) for view in list(self._views.values())))

    async def _create_in(self, view: route_pb2.GroupRoute, topic: str) -> None:
        request = admin_pb2.CreateTopicRequest(topic=topic, if_not_exists=True)
        end = self._clock() + _CREATE_TIMEOUT
        for node in sorted(view.nodes, key=lambda each: (each.node_id != view.leader_id, not each.alive)):
            rest = end - self._clock()
            if not node.listeners or rest <= 0:
                continue
            # Nodes use the first listener among themselves.
            async with GrpcChannel(node.listeners[0].log_address) as channel:
                try:
                    stub = admin_pb2_grpc.AdminServiceStub(channel)
                    answer = await stub.CreateTopic(request, timeout=rest)
                except grpc.aio.AioRpcError:
                    continue
            if not answer.refusal.code:
                return
        logger.warning("topic not created in another broker group topic=%s group=%s", topic, view.group)

    async def _run(self) -> None:
        at = 0
        while self._nameservers:
            try:
                await self._watch(self._nameservers[at % len(self._nameservers)])
            except grpc.aio.AioRpcError as error:
                logger.debug("watch of the other broker groups broke reason=%s", error.details())
            at += 1
            await asyncio.sleep(_PAUSE)

    async def _watch(self, address: str) -> None:
        request = pb.WatchRoutesRequest(
            cluster=self._cluster, all_listeners=True, without_group=self._own_broker_group
        )
        async with GrpcChannel(address, limits=_LIMITS, reconnects=_RECONNECTS) as channel:
            async for answer in nameserver_pb2_grpc.NameServerServiceStub(channel).WatchRoutes(request):
                self.take(list(answer.groups))
                await asyncio.sleep(_READ_PAUSE)
