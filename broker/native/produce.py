"""Produce: sections of LedgerMQ's own clients, checked without decoding and answered in request order (D18).

Served by the leader only and never forwarded: a refusal names the leader's address in the caller's network.
Must not: decode records, or buffer without bound: requests and bytes under way per stream are limited.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, Final

import grpc.aio

from ledgermq.proto import log_pb2, route_pb2
from ledgermq.raft.errors import NotLeaderError, TransferringError
from ledgermq.raft.node.raft_node import RaftNode

from ..cluster.known_leader import Leadership
from ..cluster.slaves import SlaveGate
from ..config import BrokerConfig
from ..leader.leader_view import Verdict
from ..leader.pipeline import AppendPipeline, ProduceWork, SectionOutcome
from ..metrics import Metrics
from ..refusals import DRAINING_PAUSE_MS, DRAINING_TEXT, REFUSABLE, RefusedError
from ..service.answers import Refusals
from ..service.broker_group_identity import BrokerGroupIdentity, MeantBrokerGroup
from ..state.batch_writes import ROOM_TEXT
from ..wire.native import BadProduceRequestError, checked_sections, split_produce_request

#: Most requests of one Produce stream under way; more wait in the transport's flow control.
MAX_STREAM_REQUESTS: Final = 64
#: Seconds that a request waits for the end of an election: then its refusal names the leader, or it is stored
#: here. An election after a detected loss takes less. A client that learns of the leader elsewhere does not
#: wait.
ELECTION_PATIENCE_S: Final = 0.3
_VERDICTS: Final = {
    Verdict.SEQUENCE_GAP: (route_pb2.SEQUENCE_GAP, "the producer's sequence jumped; expected {expected}"),
    Verdict.STALE_EPOCH: (
        route_pb2.STALE_PRODUCER_EPOCH,
        "another producer with the same id and a higher epoch, or another attempt at this part of a batch, "
        "took over; make a new producer, or begin a new attempt",
    ),
    Verdict.TOPIC_GONE: (route_pb2.STALE_ROUTE, "no topic has that id any more; refresh the route"),
    Verdict.QUEUE_NOT_FOUND: (route_pb2.QUEUE_NOT_FOUND, "the topic has no such queue; refresh the route"),
    Verdict.DRAINING: (route_pb2.GROUP_DRAINING, ""),
    Verdict.TOO_MANY_SPANS: (
        route_pb2.NOT_SUPPORTED,
        "parts of batches lie in as many queues as this broker group remembers. The section was not stored. "
        "Use fewer partitions or message groups; " + ROOM_TEXT,
    ),
    Verdict.BATCH_CHANGING: (
        route_pb2.TOO_MANY_REQUESTS,
        "another attempt at this part of the batch may have begun. Repeat it",
    ),
    Verdict.TOO_MANY_STREAMS: (
        route_pb2.TOO_MANY_REQUESTS,
        "as many producers send to as many queues as are remembered (max_producer_streams of the brokers); "
        "those that were silent for an hour make room. Nothing was stored. Share producers, or raise "
        "max_producer_streams on every node",
    ),
}
#: Verdicts after which the same section may be accepted later, and the pause before a retry, ms.
_LATER: Final = {
    Verdict.DRAINING: DRAINING_PAUSE_MS,
    Verdict.TOO_MANY_STREAMS: 1000,
    Verdict.BATCH_CHANGING: 5,
}
_DUPLICATES: Final = (Verdict.DUPLICATE, Verdict.PENDING)
_STORED: Final = (Verdict.ACCEPTED, *_DUPLICATES)
_EOF: Final[Any] = vars(grpc.aio)["EOF"]  # missing in the type stubs
_Pending = tuple[int, "ProduceWork | route_pb2.Refusal"]


class ProduceStreams:
    """Serves the Produce streams of a node.

    `slaves`: slaves that an answer waits for besides commit (sync_master).
    """

    def __init__(
        self,
        config: BrokerConfig,
        raft: RaftNode,
        pipeline: AppendPipeline,
        leadership: Leadership,
        slaves: SlaveGate | None,
        identity: BrokerGroupIdentity,
        refusals: Refusals,
        metrics: Metrics,
    ) -> None:
        self._config = config
        self._raft = raft
        self._pipeline = pipeline
        self._leadership = leadership
        self._slaves = slaves
        self._identity = identity
        self._refusals = refusals
        self._messages_in = metrics.messages_in.labels("log")
        self._duplicates = metrics.duplicates.labels("log")
        self._bytes_in = metrics.bytes_in

    def handler(self, listener: str) -> Callable[[Any, Any], Awaitable[None]]:
        """Return the stream handler for a listener's port."""

        async def serve(requests: Any, context: Any) -> None:
            under_way: asyncio.Queue[_Pending | None] = asyncio.Queue(MAX_STREAM_REQUESTS)
            meant = self._identity.meant_by(context)
            try:
                async with asyncio.TaskGroup() as tasks:  # an error in one half ends the other
                    tasks.create_task(self._answer(under_way, context, listener))
                    while (raw := await context.read()) is not _EOF:
                        if not self._leadership.ready:
                            await self._leadership.wait_settled(ELECTION_PATIENCE_S)
                        pending = self._submit(raw, listener, meant)
                        if under_way.full():
                            await under_way.put(pending)
                        else:
                            under_way.put_nowait(pending)
                    await under_way.put(None)
            except* grpc.aio.InternalError:
                raise asyncio.CancelledError from None  # the client is gone: do not answer or log

        return serve

    def _submit(self, raw: bytes, listener: str, meant: MeantBrokerGroup) -> _Pending:
        """Check one request and submit it to the pipeline."""
        request_id = 0
        try:
            request_id, sections, count = split_produce_request(raw)
            meant.check()
            if refused := self._pipeline.produce_refusal:
                raise RefusedError(route_pb2.DISK_FULL, refused, retryable=True, retry_after_ms=1000)
            work = ProduceWork(checked_sections(request_id, sections, count, self._config.max_message_bytes))
            self._pipeline.submit(work)
        except BadProduceRequestError as error:
            code = route_pb2.CORRUPT_SECTION if error.corrupt else route_pb2.INVALID_ARGUMENT
            return error.request_id, self._refusals.of(RefusedError(code, str(error)), listener)
        except REFUSABLE as error:
            return request_id, self._refusals.of(error, listener)
        return request_id, work

    async def _answer(self, under_way: asyncio.Queue[_Pending | None], context: Any, listener: str) -> None:
        """Write the answers of a stream in the order of its requests."""
        while (pending := await under_way.get()) is not None:
            request_id, work = pending
            if isinstance(work, route_pb2.Refusal):
                await context.write(log_pb2.ProduceResponse(request_id=request_id, refusal=work))
                continue
            try:
                outcomes: list[SectionOutcome] = await work.future
                await self._make_sure(work, outcomes)
                if (slaves := self._slaves) and any(each.verdict in _STORED for each in outcomes):
                    await slaves.wait(work.index, work.committed_at)
            except REFUSABLE as error:
                await self._until_leader_is_known(error)
                refused = self._refusals.of(error, listener)
                await context.write(log_pb2.ProduceResponse(request_id=request_id, refusal=refused))
                continue
            results = [self._result(outcome) for outcome in outcomes]
            await context.write(
                log_pb2.ProduceResponse(
                    request_id=request_id, results=results, store_timestamp=work.timestamp
                )
            )
            self._count(outcomes, work.size)

    async def _until_leader_is_known(self, error: Exception) -> None:
        """Delay a refusal briefly until it can name the next leader; the client would search for it."""
        leadership = self._leadership
        if isinstance(error, TransferringError) and leadership.ready:
            await leadership.wait_change(ELECTION_PATIENCE_S)
        if isinstance(error, TransferringError | NotLeaderError):
            await leadership.wait_settled(ELECTION_PATIENCE_S)

    async def _make_sure(self, work: ProduceWork, outcomes: list[SectionOutcome]) -> None:
        """Confirm that this node leads before it reports that a section was not stored.

        A deposed leader that does not know it misses what its successor stored: it sees a gap before the
        producer's next section. The producer would renumber that section, and store again what the successor
        has. With a quorum, a committed entry of this turn is proof enough (`timestamp`); otherwise a
        majority is asked. A master is its own majority. As sync_master it asks its slaves. As async_master it
        has no slave whose silence would prove anything (D24). Raises: NotLeaderError, ProposalLostError.
        """
        if not any(each.verdict in _VERDICTS for each in outcomes):
            return
        if not work.timestamp:
            await self._raft.read_index()
        if self._slaves is not None:
            self._slaves.check_contact()

    def _count(self, outcomes: list[SectionOutcome], size: int) -> None:
        self._messages_in.inc(sum(each.count for each in outcomes if each.verdict is Verdict.ACCEPTED))
        self._bytes_in.inc(size)
        if duplicates := sum(each.count for each in outcomes if each.verdict in _DUPLICATES):
            self._duplicates.inc(duplicates)

    def _result(self, outcome: SectionOutcome) -> log_pb2.SectionResult:
        if outcome.verdict in _VERDICTS:
            code, text = _VERDICTS[outcome.verdict]
            message = text.format(expected=outcome.expected_sequence)
            refusal = route_pb2.Refusal(code=code, message=message)
            if outcome.verdict is Verdict.DRAINING:
                refusal.message = DRAINING_TEXT.format(group=self._config.group)
            if (pause := _LATER.get(outcome.verdict)) is not None:
                refusal.retryable, refusal.retry_after_ms = True, pause
            return log_pb2.SectionResult(base_queue_offset=-1, count=outcome.count, refusal=refusal)
        return log_pb2.SectionResult(
            base_queue_offset=outcome.base_offset,
            count=outcome.count,
            duplicate=outcome.verdict in _DUPLICATES,
        )
