"""Follower's side of a reset: fetches the leader's state beside the running node, then has it installed (D8).

Owns: one attempt at a time, its file, the pause before the next one. Must not: touch the log or the current
state. They serve until the new state is here, complete and durable, and the core agrees. Then the core falls
silent, the decision is made durable, and the node must be restarted from its folder (reset_install.py does
the rest).
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from typing import Any, Final, TypeVar

import grpc
import grpc.aio
from crc32c import crc32c
from google.protobuf.message import DecodeError

from ledgermq.proto import raft_pb2 as pb
from ledgermq.rpc.grpc_channel import CLIENT_LIMITS, GrpcChannel, Reconnects
from ledgermq.rpc.wire_limits import WIDE_WINDOW

from ..config import RaftConfig
from ..core.machine import RaftCore
from ..core.outputs import ResetOffered, Role
from ..disk.files import File, FileSystem, is_full
from ..errors import DiskFullError, StateTransferError, defect_text
from ..folder.reset_install import ResetPlan, check_space, decide, discard_staging, open_staging
from ..log.identity import Manifest
from ..log.segment_keeper import LogFolders
from ..transport.hello import Hello
from ..types import LogIndex, NodeId, Term
from .sender import FORMAT, SERVICE

logger = logging.getLogger(__name__)

#: The leader may have to write a checkpoint first.
HEAD_TIMEOUT_S: Final = 120.0
CHUNK_TIMEOUT_S: Final = 30.0
RETRY_S: Final = 0.5
RETRY_MAX_S: Final = 10.0
_T = TypeVar("_T")

END_OF_STREAM: Final[Any] = vars(grpc.aio)["EOF"]  # missing in the type stubs
_RECONNECTS: Final = Reconnects(attempt_s=1.0, patience_s=1.0)
#: Pings detect a peer that vanished without a reset. The window is for links with a long way.
_LIMITS: Final = replace(CLIENT_LIMITS, stream_window=WIDE_WINDOW, keepalive_s=2.0, keepalive_timeout_s=1.5)


class ResetReceiver:
    """Usage, on the loop: `offered(event)`, `leader_changed(…)`, `await close()`."""

    def __init__(
        self,
        config: RaftConfig,
        files: FileSystem,
        core: RaftCore,
        *,
        hello: Callable[[NodeId], Hello],
        settle: Callable[[], None],
        on_decided: Callable[[], None],
        fail: Callable[[str], None],
    ) -> None:
        self._config = config
        self._files = files
        self._folders = LogFolders(config.data_dir)
        self._core = core
        self._hello = hello
        self._settle = settle
        self._on_decided = on_decided
        self._fail = fail
        self._addresses = {member.node_id: member.address for member in config.members}
        self._disk = ThreadPoolExecutor(1, "ledgermq-reset")  # a single thread runs its work in order
        self._task: asyncio.Task[None] | None = None
        self._offer: ResetOffered | None = None
        self._pause = RETRY_S
        self._not_before = 0.0

    def offered(self, offer: ResetOffered) -> None:
        """Fetch the state that the leader offers, unless a fetch is running or failed a moment ago."""
        if self._task is None and time.monotonic() >= self._not_before:
            self._offer = offer
            self._task = asyncio.get_running_loop().create_task(self._run(offer))

    @property
    def is_fetching(self) -> bool:
        """True while the state is being fetched, or is here and decided on."""
        return self._task is not None or self._core.role is Role.RESETTING

    def leader_changed(self, leader: NodeId | None, term: Term) -> None:
        """Handle a new leader, or none: abandon the transfer. The next leader offers its own state."""
        offer = self._offer
        if self._task is None or offer is None or self._core.is_silent:
            return
        if (offer.leader_id, offer.term) != (leader, term):
            self._task.cancel()

    async def close(self) -> None:
        """Stop fetching. On return no disk work is left."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])
        await asyncio.to_thread(self._disk.shutdown)

    async def _run(self, offer: ResetOffered) -> None:
        try:
            plan = await self._fetch(offer)
            await self._decide(offer, plan)
        except (StateTransferError, grpc.aio.AioRpcError, TimeoutError) as error:
            logger.warning("reset: not fetched from=%s reason=%s", offer.leader_id, _text(error))
        except DiskFullError as error:
            logger.error("reset: %s", error)
        except OSError as error:
            logger.error("reset: the leader's state cannot be stored in %s: %s", self._folders.data, error)
        except Exception as defect:
            # The node is unchanged until the decision, but a defect must not go unnoticed.
            logger.exception(
                "reset: defect while the leader's state was fetched node=%s", self._config.node_id
            )
            if self._core.is_silent:  # otherwise it would stay silent unnoticed
                self._fail(defect_text("deciding on the leader's state", defect))
        finally:
            self._task = None
            self._not_before = time.monotonic() + self._pause
            self._pause = min(2 * self._pause, RETRY_MAX_S)

    # --- fetching -------------------------------------------------------------------------------------------
    async def _fetch(self, offer: ResetOffered) -> ResetPlan:
        """Store the leader's state. Raises: StateTransferError, DiskFullError, OSError, AioRpcError."""
        tls = self._config.tls
        channel = GrpcChannel(
            self._addresses[offer.leader_id],
            tls=tls.calling,
            takes_plaintext=tls.takes_plaintext,
            limits=_LIMITS,
            reconnects=_RECONNECTS,
        )
        try:
            request = pb.ResetRequest(
                format=FORMAT, hello=self._hello(offer.leader_id).to_proto(), term=offer.term
            )
            call = channel.unary_stream(f"/{SERVICE}/Fetch")(request.SerializeToString())
            first = await _next(call, HEAD_TIMEOUT_S)
            plan = self._plan(offer, first.head)
            await self._on_disk(
                lambda: check_space(self._files, self._folders, self._config.segment_size, plan)
            )
            logger.warning(
                "reset: fetching the state from=%s base_index=%d state_index=%d bytes=%d",
                offer.leader_id, plan.base_index, plan.state_index, plan.state_size,
            )  # fmt: skip
            await self._store(call, plan)
            return plan
        finally:
            await channel.close(0)

    def _plan(self, offer: ResetOffered, head: pb.ResetHead) -> ResetPlan:
        """Check the announced reset. Raises: StateTransferError."""
        plan = ResetPlan(
            term=Term(head.term),
            base=Manifest(
                first_index=LogIndex(head.base_index + 1),
                first_offset=head.first_offset,
                prev_term=Term(head.base_term),
                prev_crc=head.base_crc,
                prev_timestamp=head.base_timestamp,
            ),
            state_index=LogIndex(head.state_index),
            state_size=head.state_size,
        )
        if head.format != FORMAT:
            raise StateTransferError(
                f"format {head.format} of a reset is not known here: install that LedgerMQ"
            )
        if (
            head.term != offer.term
            or head.base_term > head.term
            or head.state_index < head.base_index
            or head.first_offset % self._config.segment_size
        ):
            raise StateTransferError(f"{offer.leader_id} announced a state that cannot be: {head!s}")
        return plan

    async def _store(self, call: Any, plan: ResetPlan) -> None:
        """Write the chunks to the staging file. An incomplete file is dropped."""
        file = await self._on_disk(lambda: open_staging(self._files, self._folders))
        whole = False
        try:
            await self._receive(call, plan, file)
            whole = True
        except OSError as error:
            if not is_full(error):
                raise
            raise DiskFullError(
                f"{self._folders.data} ran full while the leader's state of {plan.state_size:,} bytes was "
                "fetched: this node cannot catch up. Free space on that disk; it is tried again by itself"
            ) from None
        finally:
            # Queued after a write that may still be running when this was cancelled.
            await self._on_disk(lambda: self._finish(file, keep=whole))

    def _finish(self, file: File, *, keep: bool) -> None:
        file.close()
        if not keep:
            discard_staging(self._files, self._folders)

    async def _receive(self, call: Any, plan: ResetPlan, file: File) -> None:
        done = checksum = 0
        while (frame := await _next(call, CHUNK_TIMEOUT_S)).WhichOneof("body") == "chunk":
            chunk = frame.chunk
            data = chunk.data
            if chunk.offset != done or crc32c(data) != chunk.crc32c or done + len(data) > plan.state_size:
                raise StateTransferError(f"the chunk at byte {chunk.offset} was damaged on its way")
            await self._on_disk(partial(file.pwritev, [data], done))
            done, checksum = done + len(data), crc32c(data, checksum)
        if frame.WhichOneof("body") != "end" or done != plan.state_size or frame.end.crc32c != checksum:
            raise StateTransferError(f"the state ended after {done} of {plan.state_size} bytes")
        await self._on_disk(file.fdatasync)

    # --- deciding -------------------------------------------------------------------------------------------
    async def _decide(self, offer: ResetOffered, plan: ResetPlan) -> None:
        """Let the core judge the received state. Once it agrees there is no way back."""
        self._settle()
        if not self._core.begin_reset(offer.leader_id, offer.term, plan.base_index, plan.base.prev_term):
            logger.info("reset: no longer needed base_index=%d", plan.base_index)
            await self._on_disk(lambda: discard_staging(self._files, self._folders))
            return
        try:
            await self._on_disk(lambda: decide(self._files, self._folders, plan))
        except OSError as error:
            self._fail(
                f"the decision to install the leader's state could not be stored in {self._folders.data}: "
                f"{error}. Nothing was changed. Check that disk, then start the node again"
            )
            return
        self._on_decided()

    async def _on_disk(self, call: Callable[[], _T]) -> _T:
        return await asyncio.get_running_loop().run_in_executor(self._disk, call)


async def _next(call: Any, timeout_s: float) -> pb.ResetFrame:
    """Return the next frame. Raises: StateTransferError, TimeoutError, AioRpcError."""
    async with asyncio.timeout(timeout_s):
        raw = await call.read()
    if raw is END_OF_STREAM:
        raise StateTransferError("the leader ended the transfer")
    try:
        frame = pb.ResetFrame.FromString(raw)
    except DecodeError as error:
        raise StateTransferError(f"a frame cannot be read: {error}") from None
    if frame.WhichOneof("body") == "refusal":
        raise StateTransferError(frame.refusal)
    return frame


def _text(error: Exception) -> str:
    if isinstance(error, grpc.aio.AioRpcError):
        return f"{error.code().name}: {error.details()}"
    return str(error) or "no answer in time"
