"""Cluster status: what nodes report about themselves. Nodes are found by nameservers or by node addresses.

Owns: finding the nodes, querying all of them at once. Must not: judge (`status_report` does), or print.
"""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass

import grpc
import grpc.aio

from ledgermq.proto import admin_pb2 as pb
from ledgermq.proto import nameserver_pb2, nameserver_pb2_grpc, route_pb2
from ledgermq.proto.admin_pb2_grpc import AdminServiceStub

from ..cluster.channels import open_channel
from ..cluster.routes import is_stranger, parse_addresses
from ..errors import (
    BrokerUnreachableError,
    InvalidAddressError,
    LedgerMQError,
    NameserversDownError,
    NoBrokersError,
    NotANameserverError,
    UsageError,
)
from ..pauses import ASK_TIMEOUT_S
from . import status_report
from .status_report import BrokerGroupAnswers, BrokerGroupReport

_HEALTHY_LOOK_S = 0.1


async def collect(nameserver: str, nodes: list[str]) -> tuple[list[BrokerGroupReport], LedgerMQError | None]:
    """Find all nodes, query them at once, and judge. The error says why nothing could be found out.

    Raises: InvalidAddressError (of the nameserver).
    """
    try:
        groups = await groups_asked(nameserver, nodes)
    except InvalidAddressError:
        raise
    except LedgerMQError as failure:
        return [], failure
    for each in groups:
        each.others_answer = any(other.answers for other in groups if other is not each)
    return [status_report.report(each) for each in groups], None


async def until_healthy(
    nameserver: str, nodes: list[str], seconds: float
) -> tuple[list[BrokerGroupReport], LedgerMQError | None]:
    """As `collect`, repeatedly: until the cluster is healthy, at the latest after so many seconds."""
    end = time.monotonic() + seconds
    while True:
        reports, failure = await collect(nameserver, nodes)
        if status_report.exit_code(reports) == 0 or time.monotonic() >= end:
            return reports, failure
        await asyncio.sleep(_HEALTHY_LOOK_S)


async def groups_asked(nameserver: str, nodes: list[str]) -> list[BrokerGroupAnswers]:
    """Find all nodes and query them at once. Raises: LedgerMQError: nothing could be found out."""
    return await _groups_by_nodes(nodes) if nodes else await _groups_by_nameserver(nameserver)


async def ask(address: str) -> pb.GetStatusResponse | None:
    """Return the status of a node; None: it does not answer in time."""
    async with open_channel(address) as channel:
        try:
            answer: pb.GetStatusResponse = await AdminServiceStub(channel).GetStatus(
                pb.GetStatusRequest(), timeout=ASK_TIMEOUT_S
            )
        except grpc.aio.AioRpcError as error:
            if is_stranger(error):
                raise UsageError(
                    f"{address} is not the log port of a node",
                    "AdminService is not served there; the messaging port is another one",
                    "Give the port that the broker prints as log= (8082 by default)",
                ) from error
            return None
        return answer


def log_address_of(answer: pb.GetStatusResponse, *others: str) -> str:
    """Return the LogService address of the node that answered, else the first of `others`.

    Raises: BrokerUnreachableError.
    """
    own = [node.addresses.log_address for node in answer.nodes if node.node_id == answer.node_id]
    for address in filter(None, [*own, *others]):
        return address
    raise BrokerUnreachableError(answer.node_id, "it does not tell its address")


@dataclass(frozen=True, slots=True)
class KnownNode:
    """A present or former node, with the address of its LogService."""

    group: str
    node_id: str
    address: str


async def known_nodes(nameserver: str, nodes: list[str]) -> list[KnownNode]:
    """Return every known node with an address, by broker group. Raises: LedgerMQError (no answer)."""
    if nodes:
        found = {
            (answer.group, told.node_id): told.addresses.log_address
            for broker_group in await _groups_by_nodes(nodes)
            for answer in broker_group.answers.values()
            for told in answer.nodes
        }
    else:
        found = {
            (route.group, told.node_id): told.listeners[0].log_address
            for route in (await list_broker_groups(nameserver)).groups
            for told in route.nodes
            if told.listeners
        }
    return [KnownNode(*key, address) for key, address in sorted(found.items()) if address]


async def _groups_by_nameserver(nameserver: str) -> list[BrokerGroupAnswers]:
    listed = await list_broker_groups(nameserver)
    groups = await asyncio.gather(*(_ask_group(route) for route in listed.groups))
    for route, group in zip(listed.groups, groups, strict=True):
        key = (route.cluster, route.group)
        its = [each for each in listed.strangers if (each.cluster, each.group) == key]
        group.strangers = tuple(f"{each.node_id} at {each.log_address}" for each in its)
    return groups


async def list_broker_groups(nameserver: str) -> nameserver_pb2.ListGroupsResponse:
    """List the broker groups; try one nameserver after the other.

    Raises: InvalidAddressError, NameserversDownError, NotANameserverError, NoBrokersError, LedgerMQError
    (several clusters).
    """
    addresses, stranger = parse_addresses(nameserver), ""
    for address in addresses:
        async with open_channel(address) as channel:
            stub = nameserver_pb2_grpc.NameServerServiceStub(channel)
            try:
                listed: nameserver_pb2.ListGroupsResponse = await stub.ListGroups(
                    nameserver_pb2.ListGroupsRequest(gone_too=True), timeout=ASK_TIMEOUT_S
                )
            except grpc.aio.AioRpcError as error:
                stranger = address if is_stranger(error) else stranger
                continue
        if listed.groups:
            return listed
        if len(listed.clusters) > 1:
            raise LedgerMQError(
                f"the nameserver {address} knows several clusters: {', '.join(listed.clusters)}",
                "Which of them is meant cannot be said here",
                "Ask a node itself: ledgermq cluster status --node HOST:8082",
            )
        raise NoBrokersError(address, "Ask a node itself: ledgermq cluster status --node HOST:8082")
    if stranger:
        raise NotANameserverError(stranger)
    raise NameserversDownError(addresses)


async def _ask_group(route: route_pb2.GroupRoute) -> BrokerGroupAnswers:
    group = BrokerGroupAnswers(route.group)
    targets = {}
    for node in route.nodes:
        listener = node.listeners[0] if node.listeners else None
        group.members[node.node_id] = listener.messaging_address if listener else ""
        if listener is not None:
            targets[node.node_id] = listener.log_address
    await _ask_all(group, targets)
    return group


async def _groups_by_nodes(addresses: list[str]) -> list[BrokerGroupAnswers]:
    """Query the given nodes, then the nodes that they name. One answer is enough."""
    first = await asyncio.gather(*(ask(address) for address in addresses))
    groups: dict[str, BrokerGroupAnswers] = {}
    targets: dict[str, dict[str, str]] = {}
    for answer in first:
        if answer is None:
            continue
        group = groups.setdefault(answer.group, BrokerGroupAnswers(answer.group))
        group.answers[answer.node_id] = answer
        for node in answer.nodes:
            if node.addresses.messaging_address or node.node_id not in group.members:
                group.members[node.node_id] = node.addresses.messaging_address
            if node.addresses.log_address:
                targets.setdefault(answer.group, {})[node.node_id] = node.addresses.log_address
    if not groups:
        raise BrokerUnreachableError(", ".join(addresses), f"no answer within {ASK_TIMEOUT_S:g} s")
    for name, group in groups.items():
        missing = {k: v for k, v in targets.get(name, {}).items() if k not in group.answers}
        await _ask_all(group, missing)
    return list(groups.values())


async def _ask_all(group: BrokerGroupAnswers, targets: dict[str, str]) -> None:
    answers = await asyncio.gather(*(ask(address) for address in targets.values()))
    for name, answer in zip(targets, answers, strict=True):
        if answer is not None and answer.node_id == name:
            group.answers[name] = answer
