"""Routes and assignments for official clients: policy `nodes` (D17).

Every live node lists all queue ids of its broker group under its own broker name, with one address. Ids are
labels: the server chooses the queue, and any node of the broker group accepts any call. If messages may be
ordered (FIFO), each queue is listed once: a client that chooses by the hash of a message group then always
reaches the same broker group, whichever of its nodes are live.
Pure. The order is the same in every node's answer, so unchanged broker groups yield an unchanged answer.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from ledgermq.proto import rocketmq_v2_pb2 as v2
from ledgermq.proto.route_pb2 import ListenerAddresses, TopicMessageType

LiveNodes = Sequence[tuple[str, ListenerAddresses]]

#: Separates broker group and node in a broker name; neither may contain it.
SEPARATOR: Final = "."
_ACCEPTED: Final[dict[int, tuple[v2.MessageType, ...]]] = {
    TopicMessageType.NORMAL: (v2.NORMAL,),
    TopicMessageType.FIFO: (v2.FIFO,),
    TopicMessageType.DELAY: (v2.DELAY,),
    TopicMessageType.TRANSACTION: (v2.TRANSACTION,),
    # Unsupported types are not listed, so clients refuse such messages before they send.
    TopicMessageType.MIXED: (v2.NORMAL, v2.FIFO),
}


def accepted_types(message_type: int) -> tuple[v2.MessageType, ...]:
    """Return the message types that a topic accepts; a topic without a type accepts normal messages."""
    types: tuple[v2.MessageType, ...] = _ACCEPTED.get(message_type, (v2.NORMAL,))
    return types


def broker_name(broker_group: str, node_id: str) -> str:
    """Return the name of a node of a broker group for official clients."""
    return f"{broker_group}{SEPARATOR}{node_id}"


def endpoints(address: str) -> v2.Endpoints:
    """Return the endpoints of one `host:port`."""
    host, _, port = address.rpartition(":")
    host = host.strip("[]")
    return v2.Endpoints(scheme=_scheme(host), addresses=[v2.Address(host=host, port=int(port))])


def _scheme(host: str) -> v2.AddressScheme:
    try:
        version = ipaddress.ip_address(host).version
    except ValueError:
        return v2.DOMAIN_NAME
    return v2.IPv4 if version == 4 else v2.IPv6


@dataclass(frozen=True, slots=True)
class BrokerGroupQueues:
    """Queues of a topic in one broker group."""

    broker_group: str
    queue_count: int
    nodes: LiveNodes  # that serve them: at least one, sorted by id
    writable: bool = True  # False: the broker group is being drained; producers obey the permission


def route(topic: v2.Resource, parts: Sequence[BrokerGroupQueues], message_type: int) -> list[v2.MessageQueue]:
    """Return the queues of a route.

    Broker groups and nodes alternate, so a client that retries with the next queue reaches another node.
    """
    types = accepted_types(message_type)
    ordered = v2.FIFO in types
    return [
        v2.MessageQueue(
            topic=topic,
            id=queue_id,
            permission=v2.READ_WRITE if each.writable else v2.READ,
            broker=_broker(each.broker_group, node_id, addresses),
            accept_message_types=types,
        )
        for queue_id in range(max((each.queue_count for each in parts), default=0))
        for each in parts
        if queue_id < each.queue_count
        for node_id, addresses in ([each.nodes[queue_id % len(each.nodes)]] if ordered else each.nodes)
    ]


def assignments(topic: v2.Resource, parts: Sequence[BrokerGroupQueues], *, fifo: bool) -> list[v2.Assignment]:
    """Return the assignments of a push consumer: "any queue" (-1) of each live node.

    FIFO: each queue of one node.
    """
    return [
        v2.Assignment(
            message_queue=v2.MessageQueue(
                topic=topic,
                id=queue_id,
                permission=v2.READ_WRITE,
                broker=_broker(each.broker_group, node_id, addresses),
            )
        )
        for each in parts
        for queue_id, (node_id, addresses) in _polled(each, fifo)
    ]


def _polled(queues: BrokerGroupQueues, fifo: bool) -> list[tuple[int, tuple[str, ListenerAddresses]]]:
    if fifo:
        return [(each, queues.nodes[each % len(queues.nodes)]) for each in range(queues.queue_count)]
    return [(-1, node) for node in queues.nodes]


def _broker(broker_group: str, node_id: str, addresses: ListenerAddresses) -> v2.Broker:
    return v2.Broker(
        name=broker_name(broker_group, node_id), id=0, endpoints=endpoints(addresses.messaging_address)
    )
