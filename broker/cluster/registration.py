"""Registration of this node with every nameserver (8).

A node registers fully at start, every 30 s and at once on a change, and sends a heartbeat every second on an
open stream. A node whose broker group was removed from the cluster unregisters the broker group instead.

Owns: one channel per nameserver, with one task for registering and one for heartbeats. Must not: let a
nameserver that is down disturb anything. Its loss is logged once, and its return once.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field, replace
from typing import Final

import grpc
import grpc.aio

from ledgermq.proto import nameserver_pb2 as pb
from ledgermq.proto import nameserver_pb2_grpc
from ledgermq.rpc.grpc_channel import CLIENT_LIMITS, GrpcChannel, Reconnects

logger = logging.getLogger(__name__)

REGISTER_INTERVAL: Final = 30.0  # seconds
BEAT_INTERVAL: Final = 1.0  # seconds
CALL_TIMEOUT: Final = 2.0  # seconds
#: Pings find out that a nameserver's machine is gone, which nothing else tells a stream.
_LIMITS: Final = replace(CLIENT_LIMITS, keepalive_s=10.0, keepalive_timeout_s=5.0)
_RECONNECTS: Final = Reconnects(first_s=0.2, most_s=2.0, attempt_s=CALL_TIMEOUT, patience_s=CALL_TIMEOUT)


class _Link:
    """The connection to one nameserver."""

    def __init__(self, address: str, registration: Registration) -> None:
        self.address = address
        self._registration = registration
        self._channel = GrpcChannel(address, limits=_LIMITS, reconnects=_RECONNECTS)
        self._stub = nameserver_pb2_grpc.NameServerServiceStub(self._channel)
        self._answered: bool | None = None  # the last call was answered; None: none since start or withdrawal
        self._gone = False  # the broker group was removed from this nameserver's route
        self._group_id = 0  # broker group id last registered; a new node learns it later
        self.refusal = ""  # why the nameserver does not list this node; "": it does
        self.wanted = asyncio.Event()  # set: register again now
        self.tasks: list[asyncio.Task[None]] = []

    def start(self) -> None:
        self.wanted.set()
        self.tasks = [asyncio.create_task(self._register()), asyncio.create_task(self._beat())]

    async def _register(self) -> None:
        """Register when wanted and every 30 s; after a failure, retry soon."""
        while True:
            self.wanted.clear()
            withdrawn = self._registration.withdrawn()
            done = await (self._withdraw() if withdrawn else self._call())
            interval = REGISTER_INTERVAL if done else BEAT_INTERVAL
            try:
                # A removed broker group is unregistered only once: another one may take its name.
                async with asyncio.timeout(None if done and withdrawn else interval):
                    await self.wanted.wait()
            except TimeoutError:
                continue

    async def _call(self) -> bool:
        request = self._registration.request()
        self._group_id = request.route.group_id
        try:
            answer = await self._stub.Register(request, timeout=CALL_TIMEOUT)
        except grpc.aio.AioRpcError as error:
            if self._answered is not False:
                logger.warning(
                    "nameserver does not answer address=%s code=%s", self.address, error.code().name
                )
            self._answered = False
            return False
        if self._answered is False:
            logger.info("nameserver answers again address=%s", self.address)
        self._answered, self._gone = True, False
        if answer.refusal.message != self.refusal:
            self.refusal = answer.refusal.message
            if self.refusal:
                logger.error("nameserver refuses this node address=%s: %s", self.address, self.refusal)
            else:
                logger.info("nameserver lists this node address=%s", self.address)
        return not answer.refusal.code

    async def _withdraw(self) -> bool:
        """Remove the whole broker group from the route: nodes that are down cannot unregister themselves."""
        if self._gone:
            return True
        request = self._registration.goodbye(group_removed=True)
        try:
            await self._stub.Unregister(request, timeout=CALL_TIMEOUT)
        except grpc.aio.AioRpcError as error:
            logger.debug("nameserver does not answer address=%s code=%s", self.address, error.code().name)
            return False
        self._gone, self._answered = True, None
        return True

    async def _beat(self) -> None:
        while True:
            if self._registration.withdrawn():
                await asyncio.sleep(BEAT_INTERVAL)
                continue
            try:
                call = self._stub.Heartbeat(self._beats())
                async for reply in call:
                    if reply.register_again and not self._registration.withdrawn():
                        self.wanted.set()
            except grpc.aio.AioRpcError:
                pass  # the nameserver is down; `_call` logs that once
            await asyncio.sleep(BEAT_INTERVAL)

    async def _beats(self) -> AsyncIterator[pb.HeartbeatBeat]:
        while not self._registration.withdrawn():
            beat = self._registration.beat()
            if beat.group_id != self._group_id:
                self.wanted.set()
            yield beat
            await asyncio.sleep(BEAT_INTERVAL)

    async def stop(self, goodbye: pb.UnregisterRequest) -> None:
        """Unregister and close. A nameserver that is down only costs the short timeout."""
        for task in self.tasks:
            task.cancel()
        await asyncio.gather(*self.tasks, return_exceptions=True)
        if self._answered:
            with contextlib.suppress(grpc.aio.AioRpcError):  # it will drop this silent node by itself
                await self._stub.Unregister(goodbye, timeout=0.5)
        await self._channel.close(None)


@dataclass(eq=False, repr=False)
class Registration:
    """Use: `start()`, `changed()` after each change of leader, topics or nodes, `await stop()`."""

    _nameservers: tuple[str, ...]
    request: Callable[[], pb.RegisterRequest]  # returns the current content
    beat: Callable[[], pb.HeartbeatBeat]  # returns the current content
    withdrawn: Callable[[], bool]  # whether the broker group left the cluster: no nameserver may list it
    _links: list[_Link] = field(default_factory=list, init=False)

    def start(self) -> None:
        """Start to register with every nameserver."""
        self._links = [_Link(address, self) for address in self._nameservers]
        for link in self._links:
            link.start()

    def changed(self) -> None:
        """Register again now with every nameserver."""
        for link in self._links:
            link.wanted.set()

    async def stop(self) -> None:
        """Unregister from the nameservers that answer, and close."""
        goodbye = self.goodbye()
        await asyncio.gather(*(link.stop(goodbye) for link in self._links))

    def goodbye(self, *, group_removed: bool = False) -> pb.UnregisterRequest:
        """Return the request that removes this node, or its whole broker group, from the route."""
        beat = self.beat()
        return pb.UnregisterRequest(
            cluster=beat.cluster,
            group=beat.group,
            node_id=beat.node_id,
            group_removed=group_removed,
            group_id=beat.group_id,
        )
