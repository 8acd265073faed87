"""Bulk reader: ranges of queues as raw sections, for jobs that decode whole sections at once.

Owns: the choice of the node for one range (followers first), and going on with another node.
Must not: decode records, keep positions (the caller passes every offset), form a consumer group.

What a node returns is applied there, and so committed: no later leader can take it back. Any node may answer
for a range below a known end. One that has not applied it yet is left for another.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Self

import grpc

from ledgermq.proto import log_pb2 as pb
from ledgermq.proto import log_pb2_grpc, route_pb2
from ledgermq.proto.errors import LayoutError
from ledgermq.proto.record import SectionHeader, decode_section, verify_section

from ..arguments import check_name
from ..cluster.calls import raise_if_final
from ..cluster.channels import Channels, unreachable
from ..cluster.gone_groups import GoneBrokerGroup
from ..cluster.routes import Routes
from ..cluster.topic_route import BrokerGroup, TopicRoute
from ..errors import (
    BrokerUnreachableError,
    CorruptMessageError,
    LedgerMQError,
    OtherBrokerGroupError,
    RouteError,
    TopicNotFoundError,
)
from ..message import MessageQueue
from ..pauses import ATTEMPT_TIMEOUT_S, FOLLOWER_POLL_MS, GRACE_S, RETRY_PAUSE_S
from .intake import FETCH_BYTES
from .offsets import ConsumerGroupOffsets

#: How long every node of a broker group may fail before a read gives up, s: longer than a restart of a node.
READ_PATIENCE_S: Final = 60.0


@dataclass(frozen=True, slots=True)
class QueueRange:
    """Messages [start, end) of a queue, with what finds it from another process. Offsets are queue offsets.

    `broker_group`: as known when the range was planned. A broker group that took its name later is refused.
    """

    topic: str
    broker_group: BrokerGroup
    topic_id: int
    queue_id: int
    start: int
    end: int

    @property
    def queue(self) -> MessageQueue:
        return MessageQueue(self.topic, self.broker_group.name, self.queue_id)


@dataclass(frozen=True, slots=True)
class Fetched:
    """One answer: verified sections that follow each other, in three parallel tuples.

    The first section may begin before the requested offset, and the last may end after the range.
    `begin`: retention deleted all before this offset, and there are no sections; -1: nothing is missing.
    """

    sections: tuple[bytes, ...]  # header and body
    headers: tuple[SectionHeader, ...]
    store_timestamps: tuple[int, ...]  # ms since the epoch
    next_offset: int  # queue offset just past the last section
    begin: int = -1

    @classmethod
    def deleted(cls, offset: int, begin: int) -> Fetched:
        """Return the answer that `offset` was deleted, and the queue begins at `begin`."""
        return cls((), (), (), offset, begin)


class NodesUnreachableError(RouteError):
    """No node of a broker group answered for READ_PATIENCE_S. `addresses`: what was tried."""

    retryable = True

    def __init__(self, broker_group: str, reasons: dict[str, str], nameservers: Sequence[str]) -> None:
        tried = "; ".join(f"{address} ({reason.rstrip('.')})" for address, reason in sorted(reasons.items()))
        super().__init__(
            f'no node of broker group "{broker_group}" can be read from here. Tried: {tried or "no address"}',
            f"The brokers advertise these addresses to clients of the nameserver {', '.join(nameservers)}",
            "If they are of another network, set log_advertise of the brokers' listener, or give the "
            "nameserver address of a listener in this network",
        )
        self.addresses = tuple(sorted(reasons))


class BulkReader:
    """Reads from all broker groups of a topic. Use it as an async context manager, or call close()."""

    def __init__(
        self,
        nameservers: str | Sequence[str] = "127.0.0.1:9876",
        *,
        cluster: str = "",
        group: str = "",
        patience_s: float = READ_PATIENCE_S,
    ) -> None:
        """`group`: consumer group of `commit`; "" has none. `patience_s`: see READ_PATIENCE_S."""
        self._channels = Channels()
        self._routes = Routes(nameservers, self._channels, cluster)
        self._offsets = ConsumerGroupOffsets(group, self._channels, self._routes.broker_group)
        self._patience_s = patience_s
        self._served: dict[tuple[str, int], str] = {}  # address that answered last, by broker group and queue

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Close the connections."""
        await self._routes.close()
        await self._channels.close()

    # --- planning -------------------------------------------------------------------------------------------

    async def route(self, topic: str) -> TopicRoute:
        """Return the current route. Raises: TopicNotFoundError, NameserversDownError, NoQuorumError."""
        check_name("topic", topic)
        return await self._routes.get(topic, refresh=True)

    async def gone_groups(self) -> list[GoneBrokerGroup]:
        """Return the broker groups without a running node. Raises: NameserversDownError, NoBrokersError."""
        return (await self._routes.groups_and_gone())[1]

    async def bounds(self, topic: str, broker_group: str, timestamp: int = 0) -> list[pb.QueueOffset]:
        """Return begin and end of a topic's queues in one broker group, by queue id.

        `timestamp` (ms): also `time_offset`. Without a leader, a node's own view is returned: its end is
        applied, and may be behind. `route` must have been called. Raises: as call_broker_group.
        """
        found = await self._offsets.query(topic, broker_group, timestamp=timestamp, allow_stale=True)
        return sorted(found.values(), key=lambda each: each.queue_id)

    async def commit(self, offsets: dict[MessageQueue, int]) -> None:
        """Commit offsets of the consumer group. Raises: as call_broker_group."""
        await self._offsets.commit(offsets, reset=False)

    # --- reading --------------------------------------------------------------------------------------------

    async def fetch(self, wanted: QueueRange, offset: int) -> Fetched:
        """Return the sections from `offset` on, at most FETCH_BYTES, from whichever node has them.

        Raises: TopicNotFoundError (the topic was deleted), OtherBrokerGroupError, CorruptMessageError (on
        every node), NodesUnreachableError, RefusedError.
        """
        end = time.monotonic() + self._patience_s
        reasons: dict[str, str] = {}
        broker_group, addresses = wanted.broker_group, self._in_order(wanted, wanted.broker_group)
        while True:
            begins: list[int] = []
            last: LedgerMQError | None = None
            for address in addresses:
                try:
                    fetched = await self._fetch_at(address, wanted, offset)
                except (TimeoutError, grpc.RpcError) as error:
                    reasons[address] = (
                        unreachable(address, error).why if isinstance(error, grpc.RpcError)
                        else "It did not answer in time"
                    )  # fmt: skip
                except LedgerMQError as error:
                    if not error.retryable and not isinstance(error, CorruptMessageError):
                        raise
                    last = error
                    reasons[address] = error.what
                else:
                    if fetched is None:
                        reasons[address] = f"it has not applied offset {offset:,} yet"
                    elif fetched.begin >= 0:
                        begins.append(fetched.begin)  # another node may still have it
                        reasons.pop(address, None)
                    else:
                        self._served[wanted.broker_group.name, wanted.queue_id] = address
                        return fetched
            if begins and len(begins) == len(addresses):
                return Fetched.deleted(offset, min(begins))
            if time.monotonic() >= end:
                if begins:
                    return Fetched.deleted(offset, min(begins))
                if last is not None and not isinstance(last, BrokerUnreachableError):
                    raise last
                raise NodesUnreachableError(broker_group.name, reasons, self._routes.nameservers)
            await asyncio.sleep(RETRY_PAUSE_S)
            broker_group = await self._again(wanted)
            addresses = self._in_order(wanted, broker_group)

    def _in_order(self, wanted: QueueRange, broker_group: BrokerGroup) -> list[str]:
        """Return addresses: the one that served the queue last, live followers, the leader, the others.

        Queues begin at different followers, so that they share the load.
        """
        followers = [node for node in broker_group.nodes if node.node_id != broker_group.leader_id]
        turn = wanted.queue_id % max(len(followers), 1)
        ordered = [
            *followers[turn:],
            *followers[:turn],
            *([leader] if (leader := broker_group.leader) else []),
        ]
        ordered.sort(key=lambda node: not node.alive)
        addresses = [node.log_address for node in ordered]
        served = self._served.get((wanted.broker_group.name, wanted.queue_id))
        return sorted(addresses, key=lambda address: address != served)

    async def _again(self, wanted: QueueRange) -> BrokerGroup:
        """Return the broker group as the nameserver knows it now. Raises: OtherBrokerGroupError."""
        try:
            route = await self._routes.get(wanted.topic, refresh=True)
        except LedgerMQError as error:
            if isinstance(error, TopicNotFoundError) or error.retryable:
                return wanted.broker_group  # all its nodes may be down: they are asked, not the nameserver
            raise
        part = route.part(wanted.broker_group.name)
        if part is None:
            return wanted.broker_group
        if part.group.is_another(wanted.broker_group):
            raise OtherBrokerGroupError(
                "OTHER_GROUP", f'another broker group has the name "{wanted.broker_group.name}" now'
            )
        return part.group

    async def _fetch_at(self, address: str, wanted: QueueRange, offset: int) -> Fetched | None:
        """Ask one node; None: it has not applied the offset yet. Raises: LedgerMQError, grpc.RpcError."""
        request = pb.FetchRequest(max_bytes=FETCH_BYTES, max_wait_ms=FOLLOWER_POLL_MS)
        request.positions.add(topic_id=wanted.topic_id, queue_id=wanted.queue_id, offset=offset)
        stub = log_pb2_grpc.LogServiceStub(self._channels.get(address))
        answer: pb.FetchResponse = await stub.Fetch(
            request,
            timeout=FOLLOWER_POLL_MS / 1000 + max(GRACE_S, ATTEMPT_TIMEOUT_S),
            metadata=wanted.broker_group.metadata,
        )
        if answer.HasField("refusal"):
            raise_if_final(answer.refusal)
            raise BrokerUnreachableError(address, answer.refusal.message)
        if not answer.queues:
            return None
        return _opened(wanted, offset, answer.queues[0])


def _opened(wanted: QueueRange, offset: int, found: pb.FetchedQueue) -> Fetched | None:
    """Check an answer. None: the node is behind. Raises: CorruptMessageError, TopicNotFoundError."""
    if (found.topic_id, found.queue_id) != (wanted.topic_id, wanted.queue_id):
        raise CorruptMessageError(wanted.topic, wanted.queue_id, "the answer is about another queue")
    if found.HasField("refusal"):
        code = found.refusal.code
        if code == route_pb2.OFFSET_OUT_OF_RANGE:
            return Fetched.deleted(offset, found.begin_offset) if found.begin_offset > offset else None
        if code in (route_pb2.STALE_ROUTE, route_pb2.QUEUE_NOT_FOUND):
            raise TopicNotFoundError(wanted.topic)
        raise_if_final(found.refusal)
        return None
    raws: list[bytes] = []
    headers: list[SectionHeader] = []
    following = offset
    for each in found.sections:
        raw = each.section  # each access makes a copy
        try:
            header = decode_section(raw)
            verify_section(raw, 0, header)
        except LayoutError as error:
            raise CorruptMessageError(wanted.topic, wanted.queue_id, str(error)) from error
        base = header.base_queue_offset
        if base > following or base + header.count <= following or len(raw) != header.total_size:
            raise CorruptMessageError(
                wanted.topic, wanted.queue_id, f"the section at offset {base} does not follow {following}"
            )
        raws.append(raw)
        headers.append(header)
        following = base + header.count
    if not raws:
        return None
    stored = tuple(each.store_timestamp for each in found.sections)
    return Fetched(tuple(raws), tuple(headers), stored, following)
