"""One fetch stream: reads the assigned queues of one broker group into a buffer, from whichever node answers.

Owns: the stream, the search for a node, the buffer. Must not: judge refusals of single queues (its owner does), hand out
messages. Invariant: at most one request is out; nothing is asked for while the buffer is full.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Any, Final, Protocol

import grpc
from grpc import aio

from ledgermq.proto import log_pb2 as pb
from ledgermq.proto import log_pb2_grpc, route_pb2

from .calls import raise_if_final
from .channels import Channels, unreachable
from .errors import CorruptMessageError, LedgerMQError
from .fetch_buffer import AssignedQueue, FetchBuffer, OutOfRange
from .retry_policy import LeaderSearch
from .topic_route import BrokerGroup

logger = logging.getLogger(__name__)

#: Pause before the same is asked again that a node could not answer yet, s.
RETRY_PAUSE_S: Final = 0.1
_MAX_WAIT_MS: Final = 10_000  # long poll of one fetch
_ANSWER_GRACE_S: Final = 3.0  # a node that is silent for longer than the poll and this is left

Refused = list[tuple[AssignedQueue, route_pb2.Refusal] | OutOfRange]


class FetchOwner(Protocol):
    """Whom a fetcher tells."""

    @property
    def channels(self) -> Channels: ...

    def arrived(self) -> None:
        """Messages wait in a buffer."""

    def fail(self, error: LedgerMQError) -> None:
        """Repeating does not help: the user must know."""

    async def refresh(self, topics: set[str]) -> None:
        """Fetch the routes again; `GroupFetcher.group` is set when they differ."""

    async def on_refused(self, fetcher: GroupFetcher, refused: Refused) -> None:
        """Heal what can be healed, before the next request."""


class GroupFetcher:
    """Reads the assigned queues of one broker group into its buffer."""

    def __init__(self, owner: FetchOwner, group: BrokerGroup, max_bytes: int) -> None:
        self.group = group
        self.buffer = FetchBuffer(max_bytes)
        self.changed = asyncio.Event()  # the assignment changed, or there is room again
        self.topics: set[str] = set()
        self._owner = owner
        self._search = LeaderSearch()
        self._call: Any = None
        self._task = asyncio.create_task(self._run(), name=f"ledgermq-fetch-{group.name}")

    def restart(self) -> None:
        """Ask again with the positions as they are now."""
        self.changed.set()
        if self._call is not None:
            self._call.cancel()

    async def close(self) -> None:
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)

    async def _run(self) -> None:
        while True:
            if not self.buffer.has_room:
                self.changed.clear()
                await self.changed.wait()
                continue
            leader = self.group.leader
            nodes = [node.log_address for node in self.group.by_preference]
            address, pause_ms = self._search.next(leader.log_address if leader else "", nodes)
            if pause_ms:
                await self._owner.refresh(self.topics)
                await asyncio.sleep(pause_ms / 1000)
            if address:
                await self._read_from(address)

    async def _read_from(self, address: str) -> None:
        """Fetch from one node until its stream breaks or the assignment changes."""
        call = log_pb2_grpc.LogServiceStub(self._owner.channels.get(address)).FetchStream()
        self._call = call
        try:
            await self._exchange(call)
        except grpc.RpcError as error:
            logger.info("fetch stream broke address=%s reason=%s", address, unreachable(address, error))
            self._search.failed(address)
        except TimeoutError:
            logger.info("fetch stream silent address=%s", address)
            self._search.failed(address)
        except asyncio.InvalidStateError:
            # The stream ended while we were waiting for room in the buffer; gRPC says so at the next write.
            if not call.cancelled():  # by us, because the assignment changed
                logger.info("fetch stream ended address=%s", address)
                self._search.failed(address)
        except asyncio.CancelledError:
            if asyncio.current_task().cancelling():  # type: ignore[union-attr]
                raise
            # only the stream was cancelled: the assignment changed
        except CorruptMessageError as error:
            # Another node has another copy of the same bytes.
            logger.error("fetched bytes are damaged address=%s error=%s", address, error)
            self._search.failed(address)
            await asyncio.sleep(RETRY_PAUSE_S)
        except LedgerMQError as error:
            self._owner.fail(error)
            await asyncio.sleep(RETRY_PAUSE_S)
        finally:
            self._call = None
            call.cancel()

    async def _exchange(self, call: aio.StreamStreamCall[pb.FetchRequest, pb.FetchResponse]) -> None:
        while True:
            while not self.buffer.has_room:
                self.changed.clear()
                await self.changed.wait()
            request, asked = self.buffer.next_request(_MAX_WAIT_MS)
            await call.write(request)
            async with asyncio.timeout(_MAX_WAIT_MS / 1000 + _ANSWER_GRACE_S):
                response = await call.read()
            if not isinstance(response, pb.FetchResponse):
                raise TimeoutError  # the node ended the stream
            if response.HasField("refusal"):
                raise_if_final(response.refusal)
                self._search.hint(response.refusal.leader_address)
                raise TimeoutError
            refused = self.buffer.on_response(response, asked)
            self._search.succeeded()
            if self.buffer.has_messages:
                self._owner.arrived()
            if refused:
                await self._owner.on_refused(self, refused)
