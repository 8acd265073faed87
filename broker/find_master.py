"""Discovery of a broker group's master through the nameservers, for a slave without `master` set (D24).

Owns: the queries before a node with an empty folder starts. A folder records its master. The settings of the
master itself name it, and it registers with its nameservers.
Must not: decide which node should be the master.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Final

import grpc
import grpc.aio

from ledgermq.proto import nameserver_pb2, nameserver_pb2_grpc, route_pb2
from ledgermq.rpc.grpc_channel import GrpcChannel

from .config import BrokerConfig

logger = logging.getLogger(__name__)

PAUSE_S: Final = 0.5
CALL_TIMEOUT_S: Final = 2.0
#: Interval (seconds) at which a waiting node logs a warning.
REMIND_S: Final = 30.0


def looks_for(config: BrokerConfig) -> str:
    """Return the text for probes during the search."""
    return f"looks for the master of broker group {config.group}, which no nameserver knows yet"


async def find_master(config: BrokerConfig) -> str:
    """Register, and return the master that a nameserver names in its answer; wait until one does."""
    loop = asyncio.get_running_loop()
    said = -REMIND_S
    while True:
        for address in config.nameservers:
            master = await _ask(address, config)
            if master in config.voters:
                logger.info("master found node=%s master=%s nameserver=%s", config.node_id, master, address)
                return master
        if loop.time() - said >= REMIND_S:
            said = loop.time()
            logger.warning(
                "%s does not start yet: it was not told who the master of broker group %s is, and none is "
                "registered with %s. Start the master (with `master` set to its own id), or set `master`",
                config.node_id, config.group, ", ".join(config.nameservers),
            )  # fmt: skip
        await asyncio.sleep(PAUSE_S)


async def _ask(address: str, config: BrokerConfig) -> str:
    route = route_pb2.GroupRoute(cluster=config.cluster, group=config.group, replication=config.replication)
    request = nameserver_pb2.RegisterRequest(node_id=config.node_id, route=route)
    async with GrpcChannel(address) as channel:
        stub = nameserver_pb2_grpc.NameServerServiceStub(channel)
        try:
            answer: nameserver_pb2.RegisterResponse = await stub.Register(request, timeout=CALL_TIMEOUT_S)
        except grpc.aio.AioRpcError:
            return ""  # unreachable: the others are asked, then this one again
    return answer.master_id
