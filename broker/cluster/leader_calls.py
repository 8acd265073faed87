"""Delivery of a call to the leader before its deadline, even across an election: here or forwarded.

All calls that come here are safe to repeat: sends are deduplicated by message id, acknowledgements and
offsets are idempotent, and the messages of a grant whose answer was lost become visible again. A call is
forwarded once at most: a node that does not lead refuses a forwarded call, and the node that sent it looks
for the leader again. A forward to a node that no longer leads is given up: that node may be stopped or
isolated, and would otherwise be waited for until the caller's deadline.
"""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any, Final

from ledgermq.raft.errors import NodeStoppedError, NotLeaderError, ProposalLostError, TransferringError

from .forwarding import FORWARDED_BY, LISTENER, PERHAPS_DONE, Forwarder, Metadata
from .known_leader import Leadership
from .lane import ForwardError

#: Seconds subtracted from a deadline, so that the answer still arrives in time.
DEADLINE_RESERVE: Final = 0.2
#: Seconds for calls without a deadline.
DEFAULT_TIMEOUT: Final = 30.0
#: Seconds between two attempts while no leadership change is seen.
RETRY_INTERVAL: Final = 0.05

#: This node cannot serve as leader, or no longer: look for the next one.
_LOST: Final = (NotLeaderError, TransferringError, ProposalLostError, NodeStoppedError)

CLIENT_ID: Final = "x-mq-client-id"
LANGUAGE: Final = "x-mq-language"


@dataclass(slots=True)
class Call:
    """One call: its caller, its deadline, the way it came, and whether an attempt may have had effect."""

    client_id: str
    language: str
    listener: str  # name of the listener that the client called
    via: str  # node that forwarded the call; "" when it came from the client
    deadline: float  # monotonic seconds
    metadata: Metadata  # as received
    perhaps_done: bool = False  # an earlier attempt of this call may have taken effect

    @classmethod
    def of(cls, context: Any, listener: str) -> Call:
        """Read a gRPC context; `listener` is "" on the Raft port, where metadata names it.

        The marks of a forwarded call count on the Raft port only, which nodes use. From a client they are
        ignored.
        """
        metadata = context.invocation_metadata() or ()
        found = dict(metadata)
        remaining = context.time_remaining()
        via = "" if listener else str(found.get(FORWARDED_BY, ""))
        return cls(
            str(found.get(CLIENT_ID, "")),
            str(found.get(LANGUAGE, "")),
            listener or str(found.get(LISTENER, "")),
            via,
            time.monotonic() + (DEFAULT_TIMEOUT if remaining is None else remaining),
            metadata,
            bool(via) and PERHAPS_DONE in found,
        )

    @property
    def forwarded(self) -> bool:
        """Whether another node forwarded the call; it must not be forwarded again."""
        return bool(self.via)

    @property
    def remaining(self) -> float:
        """Seconds until the answer must be sent."""
        return self.deadline - time.monotonic() - DEADLINE_RESERVE


class LeaderUnavailableError(Exception):
    """No leader served the call in time. `unknown`: the call may have taken effect all the same."""

    def __init__(self, unknown: bool) -> None:
        super().__init__(
            "the outcome is unknown: the leader was lost while the request was under way. "
            "Repeat it; a repeated send is stored once"
            if unknown
            else "no leader is known: an election is on, or a majority of the nodes is down. "
            "See: ledgermq cluster status"
        )
        self.unknown = unknown


@dataclass(eq=False, repr=False)
class LeaderCalls:
    """Runs calls on the leader."""

    _leadership: Leadership
    _forwarder: Forwarder
    _count: Callable[[str], None]

    async def unary(
        self, method: str, request: bytes, call: Call, local: Callable[[], Awaitable[bytes]]
    ) -> bytes:
        """Return the answer's bytes. `local` serves the call on a leader; it may be run more than once.

        Raises: LeaderUnavailableError; NotLeaderError and ProposalLostError on a forwarded call.
        """
        unknown = False
        while (remaining := call.remaining) > 0:
            changes = self._leadership.changes
            if self._leadership.ready:
                try:
                    return await local()
                except _LOST as error:
                    unknown = unknown or isinstance(error, ProposalLostError)
                    call.perhaps_done = call.perhaps_done or unknown
                    if call.forwarded:
                        raise
            elif call.forwarded:
                self._require_elected()
            elif leader := self._leadership.known_other:
                metadata = self._forwarder.metadata(call.metadata, call.listener)
                if call.perhaps_done:
                    metadata = (*metadata, (PERHAPS_DONE, "1"))
                try:
                    answer = await self._forwarder.unary(leader, method, request, metadata, remaining)
                except ForwardError as error:
                    unknown = unknown or not error.definite
                    call.perhaps_done = call.perhaps_done or unknown
                    self._count("failed")
                    if not error.repeatable:
                        raise LeaderUnavailableError(unknown) from None
                else:
                    self._count("ok")
                    return answer
            await self._pause(changes, call)
        raise LeaderUnavailableError(unknown)

    async def stream(
        self,
        call: Call,
        local: Callable[[], AsyncGenerator[bytes, None]],
        forward: Callable[[str, Metadata, float], AsyncGenerator[bytes, None]],
    ) -> AsyncGenerator[bytes, None]:
        """Yield the frames of the answer. Attempts are repeated until the first frame has been yielded.

        `forward` gets the frames from the leader: its node id, the metadata to forward, seconds.
        Raises: as `unary`; also ForwardError when the leader is lost between frames.
        """
        unknown = False
        while (remaining := call.remaining) > 0:
            begun = False
            changes = self._leadership.changes
            try:
                if self._leadership.ready:
                    frames = local()
                elif call.forwarded:
                    self._require_elected()
                    await self._pause(changes, call)
                    continue
                elif leader := self._leadership.known_other:
                    metadata = self._forwarder.metadata(call.metadata, call.listener)
                    frames = forward(leader, metadata, remaining)
                else:
                    await self._pause(changes, call)
                    continue
                async with aclosing(frames):  # a caller that leaves early closes them now: they hold leases
                    async for frame in frames:
                        begun = True
                        yield frame
                return
            except (*_LOST, ForwardError) as error:
                if begun or call.forwarded:
                    raise
                if isinstance(error, ForwardError) and not error.repeatable:
                    raise LeaderUnavailableError(True) from None
                definite = (
                    error.definite
                    if isinstance(error, ForwardError)
                    else not isinstance(error, ProposalLostError)
                )
                unknown = unknown or not definite
            await self._pause(changes, call)
        raise LeaderUnavailableError(unknown)

    def _require_elected(self) -> None:
        """Refuse a forwarded call unless this node has been elected. Raises: NotLeaderError."""
        if not self._leadership.is_elected:
            raise NotLeaderError(self._leadership.leader_id)

    async def _pause(self, changes: int, call: Call) -> None:
        """Wait briefly, unless the leadership changed since `changes` was read."""
        if self._leadership.changes == changes:
            await self._leadership.wait_change(min(RETRY_INTERVAL, max(call.remaining, 0)))
