"""Fetch stream of one consumer to one broker group, at the node that ReadSource chooses.

Owns: the stream. Must not: decide what to fetch or where records go (`Intake` does), or handle refusals
(subclasses of `BrokerGroupFetcher` do).
Invariant: at most one request is open. Its answer is ignored for queues that were moved meanwhile.
"""

from __future__ import annotations

import asyncio
import logging
import math
import time
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Generic

import grpc
from grpc import aio

from ledgermq.proto import log_pb2 as pb
from ledgermq.proto import log_pb2_grpc
from ledgermq.proto.call_metadata import CONSUMER_GROUP

from ..cluster.calls import being_cancelled, raise_if_final
from ..cluster.channels import Channels, unreachable
from ..cluster.topic_route import BrokerGroup, Node
from ..errors import CorruptMessageError, LedgerMQError
from ..event_loop import happens
from ..pauses import FOLLOWER_POLL_MS, GRACE_S, PARKED_S, REFUSED_PAUSE_S, ROUTE_AGAIN_S
from .intake import Intake, Q, Refused
from .read_source import FetchSource, ReadSource

logger = logging.getLogger(__name__)


class BrokerGroupFetcher(ABC, Generic[Q]):
    """Fetches queues of one broker group into an intake, from its leader or from a follower."""

    def __init__(
        self,
        broker_group: BrokerGroup,
        channels: Channels,
        intake: Intake[Q],
        poll_ms: int,
        consumer_group: str = "",
    ) -> None:
        """`poll_ms`: how long a node may hold a request without messages.

        `consumer_group`: sent to the brokers, which show who reads.
        """
        self._reads_for = ((CONSUMER_GROUP, consumer_group),) if consumer_group else ()
        self.changed = asyncio.Event()  # the assignment changed, or there is room again
        self.source: FetchSource | None = None  # node of the last answer
        self._channels = channels
        self._intake = intake
        self._poll_ms = poll_ms
        self._read = ReadSource(broker_group)
        self._address = ""  # node of the open stream
        self._news = asyncio.Event()  # the route of the broker group changed
        self._refreshed_at = -ROUTE_AGAIN_S
        self._exchanging: asyncio.Task[None] | None = None
        self._timers: set[asyncio.TimerHandle] = set()
        self._task = asyncio.create_task(self._run(), name=f"ledgermq-fetch-{broker_group.name}")

    @property
    def group(self) -> BrokerGroup:
        """The broker group in the newest route."""
        return self._read.tracker.group

    @abstractmethod
    async def refresh(self) -> None:
        """No node answered. Fetch the routes again, and call `update`."""

    @abstractmethod
    def arrived(self) -> None:
        """The intake has messages."""

    @abstractmethod
    def fail(self, error: LedgerMQError) -> None:
        """Report an error that a retry cannot heal."""

    @abstractmethod
    async def on_refused(self, refused: list[Refused[Q]]) -> None:
        """Handle refused queues: heal what can be healed."""

    def restart(self) -> None:
        """Cancel the open request, and fetch from the current positions."""
        self.changed.set()
        if self._exchanging is not None:
            # Do not cancel the gRPC call itself: if it is just being opened, a writer would wait for ever.
            self._exchanging.cancel()

    def ask_soon(self, queues: Sequence[Q]) -> None:
        """Leave out queues that will soon be available, so that the others do not wait with them."""
        self._leave_out(queues, REFUSED_PAUSE_S)

    def ask_later(self, queues: Sequence[Q]) -> None:
        """Leave out queues for longer: every answer would refuse them, and the others would wait for that."""
        self._leave_out(queues, PARKED_S)

    def _leave_out(self, queues: Sequence[Q], seconds: float) -> None:
        """Park queues. When they are due, no request is cancelled: it ends by then (`_poll_ms_now`)."""
        if not queues:
            return
        for each in queues:
            each.parked = True

        def ask_again() -> None:
            self._timers.discard(timer)
            for each in queues:
                each.parked = False
            self.changed.set()

        timer = asyncio.get_running_loop().call_later(seconds, ask_again)
        self._timers.add(timer)

    def _poll_ms_now(self) -> int:
        """Return how long a node may hold the next request, ms."""
        if self._read.follower:  # left when it has nothing for this long: never sooner
            return min(FOLLOWER_POLL_MS, self._poll_ms)
        now = asyncio.get_running_loop().time()
        due = min((math.ceil((timer.when() - now) * 1000) for timer in self._timers), default=self._poll_ms)
        return max(min(due, self._poll_ms), 1)

    def update(self, broker_group: BrokerGroup) -> None:
        """Take a newer route of the same broker group."""
        if broker_group != self.group:
            self._news.set()
        self._follow(self._read.tracker.update(broker_group))

    def leader_is(self, term: int, leader_id: str) -> None:
        """Take news about the leader."""
        self._follow(self._read.tracker.learned(term, leader_id))

    def _follow(self, leader: Node | None) -> None:
        """Switch to a new leader at once: the previous one may be stopped, and silent for long.

        A suggested follower is read on: its data is as valid as before.
        """
        if leader is not None and leader.log_address != self._address and not self._read.follower:
            logger.info("leader moved, fetching there address=%s", leader.log_address)
            self.restart()

    async def close(self) -> None:
        """End the stream."""
        for timer in self._timers:
            timer.cancel()
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)

    async def _run(self) -> None:
        while True:
            if not self._intake.has_room:
                self.changed.clear()
                await self.changed.wait()
                continue
            address, pause_ms = self._read.next()
            if pause_ms:
                self._news.clear()
                await self._refresh_sometimes()
                await happens(self._news, pause_ms / 1000)
            if address:
                await self._read_from(address)

    async def _refresh_sometimes(self) -> None:
        now = time.monotonic()
        if now - self._refreshed_at >= ROUTE_AGAIN_S:
            self._refreshed_at = now
            await self.refresh()

    async def _read_from(self, address: str) -> None:
        """Fetch from one node until its stream breaks or the assignment changes."""
        call = log_pb2_grpc.LogServiceStub(self._channels.get(address)).FetchStream(
            metadata=(*self.group.metadata, *self._reads_for)
        )
        self._exchanging, self._address = asyncio.create_task(self._exchange(call)), address
        try:
            await self._exchanging
        except grpc.RpcError as error:
            logger.info("fetch stream broke address=%s reason=%s", address, unreachable(address, error))
            self._failed(address)
        except TimeoutError:
            logger.info("fetch stream silent address=%s", address)
            self._failed(address)
        except asyncio.InvalidStateError:
            # The stream ended while this task waited for room in the buffer. gRPC reports it at the next
            # write.
            logger.info("fetch stream ended address=%s", address)
            self._failed(address)
        except asyncio.CancelledError:
            if being_cancelled():
                raise
            # only the exchange was cancelled: the assignment changed
        except CorruptMessageError as error:
            # Another node has its own copy of these bytes
            logger.error("fetched bytes are damaged address=%s error=%s", address, error)
            self._failed(address)
            await asyncio.sleep(REFUSED_PAUSE_S)
        except LedgerMQError as error:
            self.fail(error)
            await asyncio.sleep(REFUSED_PAUSE_S)
        except Exception as error:  # a defect: report it, and keep the task alive
            logger.exception("fetching failed address=%s", address)
            what = f"fetching failed: {type(error).__name__}: {error}"
            self.fail(LedgerMQError(what, "This is a defect of LedgerMQ", "Report it with the log"))
            await asyncio.sleep(REFUSED_PAUSE_S)
        finally:
            self._exchanging, self._address = None, ""
            call.cancel()

    def _failed(self, address: str) -> None:
        self._read.failed(address, time.monotonic())

    async def _exchange(self, call: aio.StreamStreamCall[pb.FetchRequest, pb.FetchResponse]) -> None:
        """Send requests and take answers, until the next request is for another node."""
        while True:
            while not self._intake.has_room:
                self.changed.clear()
                await self.changed.wait()
            poll_ms = self._poll_ms_now()
            request, asked = self._intake.next_request(poll_ms)
            async with asyncio.timeout(GRACE_S):
                await call.write(request)
            async with asyncio.timeout(poll_ms / 1000 + GRACE_S):
                response = await call.read()
            if not isinstance(response, pb.FetchResponse):
                raise TimeoutError  # the node ended the stream
            if response.HasField("refusal"):
                raise_if_final(response.refusal)
                self._read.tracker.hint(response.refusal.leader_address)
                raise TimeoutError
            refused = self._intake.on_response(response, asked)
            moved = self._answered(response)
            if self._intake.has_messages:
                self.arrived()
            if refused:
                await self.on_refused(refused)
            if moved:
                return

    def _answered(self, response: pb.FetchResponse) -> bool:
        """Note the node that answered. Return whether the next request is for another node."""
        source = FetchSource(response.node_id, response.stale)
        if source != self.source:
            level = logging.WARNING if source.stale else logging.INFO
            text = "reads broker_group=%s node=%s stale=%s"
            logger.log(level, text, self.group.name, source.node_id, source.stale)
            self.source = source
        suggested, empty = response.suggested_node_id, not response.queues
        return self._read.answered(source, suggested, empty, time.monotonic())
