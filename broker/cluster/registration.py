"""Keeps this node known to every nameserver (8): full registration at start, every 30 s and at once on a change, and a
beat every second on an open stream. A node whose broker group was removed from the cluster takes the group away instead.

Owns: one task and one channel per nameserver. Must not: let a nameserver that is down disturb anything; it is logged
once when it goes and once when it comes back.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Callable
from typing import Final

import grpc
import grpc.aio

from ledgermq.proto import nameserver_pb2 as pb
from ledgermq.proto import nameserver_pb2_grpc
from ledgermq.proto.grpc_answers import decoded

logger = logging.getLogger(__name__)

REGISTER_INTERVAL: Final = 30.0  # seconds
BEAT_INTERVAL: Final = 1.0
CALL_TIMEOUT: Final = 2.0
_CHANNEL_OPTIONS: Final = (
    ("grpc.initial_reconnect_backoff_ms", 200),
    ("grpc.min_reconnect_backoff_ms", 200),
    ("grpc.max_reconnect_backoff_ms", 2000),
)


class _Link:
    """The connection to one nameserver."""

    def __init__(self, address: str, registration: Registration) -> None:
        self.address = address
        self._registration = registration
        self._channel = grpc.aio.insecure_channel(address, options=_CHANNEL_OPTIONS)
        self._stub = nameserver_pb2_grpc.NameServerServiceStub(self._channel)
        self._answered: bool | None = None
        self._gone = False  # the group was taken out of this nameserver's route
        self._group_id = 0  # as it was registered last; a new node learns it later
        self.refusal = ""  # why it does not list this node
        self.wanted = asyncio.Event()
        self.tasks: list[asyncio.Task[None]] = []

    def start(self) -> None:
        self.wanted.set()
        self.tasks = [asyncio.create_task(self._register()), asyncio.create_task(self._beat())]

    async def _register(self) -> None:
        """Register whenever it is wanted, and every 30 s; soon again after a failure."""
        while True:
            self.wanted.clear()
            withdrawn = self._registration.withdrawn()
            done = await (self._withdraw() if withdrawn else self._call())
            interval = REGISTER_INTERVAL if done else BEAT_INTERVAL
            try:
                # A group that left is taken away once: another one may come under its name.
                async with asyncio.timeout(None if done and withdrawn else interval):
                    await self.wanted.wait()
            except TimeoutError:
                continue

    async def _call(self) -> bool:
        request = self._registration.request()
        self._group_id = request.route.group_id
        try:
            answer = decoded(await self._stub.Register(request, timeout=CALL_TIMEOUT))
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
        """Take the whole group out of the route: nodes that are down cannot say goodbye themselves."""
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
                    if decoded(reply).register_again and not self._registration.withdrawn():
                        self.wanted.set()
            except grpc.aio.AioRpcError:
                pass  # it is down; `_call` says so once
            await asyncio.sleep(BEAT_INTERVAL)

    async def _beats(self) -> AsyncIterator[pb.HeartbeatBeat]:
        while not self._registration.withdrawn():
            beat = self._registration.beat()
            if beat.group_id != self._group_id:
                self.wanted.set()
            yield beat
            await asyncio.sleep(BEAT_INTERVAL)

    async def stop(self, goodbye: pb.UnregisterRequest) -> None:
        """Say goodbye and close; a nameserver that is down only costs the short timeout."""
        for task in self.tasks:
            task.cancel()
        await asyncio.gather(*self.tasks, return_exceptions=True)
        if self._answered:
            with contextlib.suppress(grpc.aio.AioRpcError):  # it forgets this node by silence
                await self._stub.Unregister(goodbye, timeout=0.5)
        await self._channel.close(None)


class Registration:
    """Use: `start()`, `changed()` after each change of leader, topics or nodes, `await stop()`.

    `request` and `beat` give the current content.
    """

    def __init__(
        self,
        nameservers: tuple[str, ...],
        request: Callable[[], pb.RegisterRequest],
        beat: Callable[[], pb.HeartbeatBeat],
        withdrawn: Callable[[], bool] = lambda: False,
    ) -> None:
        """`withdrawn`: the group left the cluster, no nameserver shall list it."""
        self.request = request
        self.beat = beat
        self.withdrawn = withdrawn
        self._addresses = nameservers
        self._links: list[_Link] = []

    def start(self) -> None:
        """Begin to register with every nameserver."""
        self._links = [_Link(address, self) for address in self._addresses]
        for link in self._links:
            link.start()

    def changed(self) -> None:
        """Register again now, everywhere."""
        for link in self._links:
            link.wanted.set()

    async def stop(self) -> None:
        """Unregister where a nameserver answers, and close."""
        goodbye = self.goodbye()
        await asyncio.gather(*(link.stop(goodbye) for link in self._links))

    def goodbye(self, *, group_removed: bool = False) -> pb.UnregisterRequest:
        """Return how this node, or with it its whole group, takes itself out of the route."""
        beat = self.beat()
        return pb.UnregisterRequest(
            cluster=beat.cluster,
            group=beat.group,
            node_id=beat.node_id,
            group_removed=group_removed,
            group_id=beat.group_id,
        )
