"""`ledgermq.v1.LogService`: bulk produce and fetch for our own clients and Spark (D18).

Produce is for the leader only and never forwarded: a refusal names the leader's address in the caller's network. Fetch is
served by every node. Offsets go through the log (commit) and read-index (query), so they never go backwards.
Must not: decode records, or buffer without bound: a stream may have so many requests and bytes under way, no more.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from typing import Any, Final

import grpc
import grpc.aio
import numpy as np

from ledgermq.proto import log_pb2, route_pb2
from ledgermq.proto.call_metadata import CONSUMER_GROUP
from ledgermq.raft.errors import NotLeaderError, TransferringError

from ..errors import NotThereError
from ..leader.leader_view import Verdict
from ..leader.works import ProduceWork, SectionOutcome
from ..reading.live_readers import LiveReader
from ..refusals import DRAINING_PAUSE_MS, DRAINING_TEXT, REFUSABLE, RefusedError
from ..service.context import NodeContext
from ..service.ensure import ensure_group
from ..service.handlers import leader_handler, parsed, refusal
from ..service.meant_group import MeantGroup
from ..state.commands import CommitOffsets, position_rows
from ..state.effects import CommitResult
from ..wire.native import BadProduceRequestError, checked_sections, split_produce_request
from ..wire.validation import group_problem
from .fetch import fetch, offset_at_time
from .membership import membership_handler

logger = logging.getLogger(__name__)

SERVICE: Final = "ledgermq.v1.LogService"
#: Requests of one Produce stream that may be under way; more stay in the transport's flow control.
MAX_STREAM_REQUESTS: Final = 64
#: Offsets of one commit. It is applied in one go on every node, which answers nobody meanwhile.
MAX_COMMIT_ROWS: Final = 4096
#: How long a request waits for the end of an election, s: then its refusal names the leader, or it is stored here.
#: An election after a loss that shows takes less; a client that hears of the leader from elsewhere does not wait.
ELECTION_PATIENCE_S: Final = 0.3
#: How long a question that takes a stale answer waits for a leader, s: longer than most elections.
STALE_AFTER_S: Final = 1.5
_VERDICTS: Final = {
    Verdict.SEQUENCE_GAP: (route_pb2.SEQUENCE_GAP, "the producer's sequence jumped; expected {expected}"),
    Verdict.STALE_EPOCH: (
        route_pb2.STALE_PRODUCER_EPOCH,
        "another producer with the same id and a higher epoch took over; make a new producer",
    ),
    Verdict.TOPIC_GONE: (route_pb2.STALE_ROUTE, "no topic has that id any more; refresh the route"),
    Verdict.QUEUE_NOT_FOUND: (route_pb2.QUEUE_NOT_FOUND, "the topic has no such queue; refresh the route"),
    Verdict.DRAINING: (route_pb2.GROUP_DRAINING, ""),
    Verdict.TOO_MANY_STREAMS: (
        route_pb2.TOO_MANY_REQUESTS,
        "as many producers send to as many queues as are remembered (max_producer_streams of the brokers); those that were "
        "silent for an hour make room. Nothing was stored. Share producers, or raise max_producer_streams on every node",
    ),
}
#: Verdicts after which the same section may be taken later, and the pause before, ms.
_LATER: Final = {Verdict.DRAINING: DRAINING_PAUSE_MS, Verdict.TOO_MANY_STREAMS: 1000}
_EOF: Final[Any] = vars(grpc.aio)["EOF"]  # missing in the type stubs
_Pending = tuple[int, "ProduceWork | route_pb2.Refusal"]


class LogService:
    """Make handlers for each port with `handlers(listener)`; "" is the Raft port, where forwarded calls come in."""

    def __init__(self, context: NodeContext) -> None:
        self._context = context
        self._messages_in = context.metrics.messages_in.labels("log")
        self._duplicates = context.metrics.duplicates.labels("log")

    def handlers(self, listener: str) -> grpc.GenericRpcHandler[Any, Any]:
        """Return what a log port of that listener serves."""
        commit = leader_handler(
            self._context,
            f"/{SERVICE}/CommitOffsets",
            log_pb2.CommitOffsetsRequest,
            log_pb2.CommitOffsetsResponse,
            commit_offsets,
            listener,
        )
        if not listener:
            return grpc.method_handlers_generic_handler(SERVICE, {"CommitOffsets": commit})
        methods = {
            "CommitOffsets": commit,
            "Produce": grpc.stream_stream_rpc_method_handler(
                self._produce_handler(listener), response_serializer=log_pb2.ProduceResponse.SerializeToString
            ),
            "Membership": grpc.stream_stream_rpc_method_handler(
                membership_handler(self._context, listener),
                response_serializer=log_pb2.MembershipResponse.SerializeToString,
            ),
            "Fetch": grpc.unary_unary_rpc_method_handler(self._fetch),
            "FetchStream": grpc.stream_stream_rpc_method_handler(self._fetch_stream),
            "QueryOffsets": grpc.unary_unary_rpc_method_handler(
                self._query_offsets,
                response_serializer=log_pb2.QueryOffsetsResponse.SerializeToString,
            ),
        }
        return grpc.method_handlers_generic_handler(SERVICE, methods)

    # --- produce --------------------------------------------------------------------------------------------
    def _produce_handler(self, listener: str) -> Callable[[Any, Any], Awaitable[None]]:
        async def serve(requests: Any, context: Any) -> None:
            under_way: asyncio.Queue[_Pending | None] = asyncio.Queue(MAX_STREAM_REQUESTS)
            meant = MeantGroup(self._context, context)
            try:
                async with asyncio.TaskGroup() as tasks:  # what breaks one half ends the other
                    tasks.create_task(self._answer(under_way, context, listener))
                    leadership = self._context.leadership
                    while (raw := await context.read()) is not _EOF:
                        if not leadership.ready:
                            await leadership.wait_settled(ELECTION_PATIENCE_S)
                        pending = self._submit(raw, listener, meant)
                        if under_way.full():
                            await under_way.put(pending)
                        else:
                            under_way.put_nowait(pending)
                    await under_way.put(None)
            except* grpc.aio.InternalError:
                raise asyncio.CancelledError from None  # the client is gone: nobody to answer, nothing to log

        return serve

    def _submit(self, raw: bytes, listener: str, meant: MeantGroup) -> _Pending:
        """Check one request and give it to the pipeline."""
        request_id = 0
        try:
            request_id, sections, count = split_produce_request(raw)
            meant.check()
            if refused := self._context.replica.produce_refusal:
                raise RefusedError(route_pb2.DISK_FULL, refused, retryable=True, retry_after_ms=1000)
            work = ProduceWork(
                checked_sections(request_id, sections, count, self._context.config.max_message_bytes)
            )
            self._context.pipeline.submit(work)
        except BadProduceRequestError as error:
            code = route_pb2.CORRUPT_SECTION if error.corrupt else route_pb2.INVALID_ARGUMENT
            return error.request_id, refusal(self._context, RefusedError(code, str(error)), listener)
        except REFUSABLE as error:
            return request_id, refusal(self._context, error, listener)
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
                if (slaves := self._context.slaves) and any(each.verdict in _STORED for each in outcomes):
                    await slaves.wait(work.index, work.committed_at)
            except REFUSABLE as error:
                await self._until_leader_is_known(error)
                refused = refusal(self._context, error, listener)
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
        """Hold a refusal back, for a moment, until it can name the next leader: the client would only search for it."""
        leadership = self._context.leadership
        if isinstance(error, TransferringError) and leadership.ready:
            await leadership.wait_change(ELECTION_PATIENCE_S)
        if isinstance(error, TransferringError | NotLeaderError):
            await leadership.wait_settled(ELECTION_PATIENCE_S)

    async def _make_sure(self, work: ProduceWork, outcomes: list[SectionOutcome]) -> None:
        """Tell nobody that a section is not stored before it is sure that this node leads.

        A leader that was deposed and does not know it misses what its successor took: to it, the next section of a producer
        has a gap. The producer would number it anew, and store twice what the successor has. In a quorum group an entry of
        this turn that was committed is proof enough (`timestamp`), else a majority is asked. A master is its own majority:
        as sync_master it asks its slaves, as async_master it has nobody whose silence would mean anything (D24).
        Raises: NotLeaderError, ProposalLostError.
        """
        if not any(each.verdict in _VERDICTS for each in outcomes):
            return
        if not work.timestamp:
            await self._context.raft.read_index()
        if self._context.slaves is not None:
            self._context.slaves.check_contact()

    def _count(self, outcomes: list[SectionOutcome], size: int) -> None:
        self._messages_in.inc(sum(each.count for each in outcomes if each.verdict is Verdict.ACCEPTED))
        self._context.metrics.bytes_in.inc(size)
        if duplicates := sum(each.count for each in outcomes if each.verdict in _DUPLICATES):
            self._duplicates.inc(duplicates)

    def _result(self, outcome: SectionOutcome) -> log_pb2.SectionResult:
        if outcome.verdict in _VERDICTS:
            code, text = _VERDICTS[outcome.verdict]
            message = text.format(expected=outcome.expected_sequence)
            refusal = route_pb2.Refusal(code=code, message=message)
            if outcome.verdict is Verdict.DRAINING:
                refusal.message = DRAINING_TEXT.format(group=self._context.config.group)
            if (pause := _LATER.get(outcome.verdict)) is not None:
                refusal.retryable, refusal.retry_after_ms = True, pause
            return log_pb2.SectionResult(base_queue_offset=-1, count=outcome.count, refusal=refusal)
        return log_pb2.SectionResult(
            base_queue_offset=outcome.base_offset,
            count=outcome.count,
            duplicate=outcome.verdict in _DUPLICATES,
        )

    # --- fetch ----------------------------------------------------------------------------------------------
    async def _fetch(self, raw: bytes, context: Any) -> bytes:
        return await self._fetched(raw, MeantGroup(self._context, context))

    async def _fetched(self, raw: bytes, meant: MeantGroup, reader: LiveReader | None = None) -> bytes:
        try:
            meant.check()
            request = parsed(log_pb2.FetchRequest, raw)
            if reader is not None:
                reader.request = request
            found = await fetch(self._context, request)
            meant.check()
            return found
        except REFUSABLE as error:
            response = log_pb2.FetchResponse(
                refusal=refusal(self._context, error, ""), node_id=self._context.config.node_id
            )
            return bytes(response.SerializeToString())

    async def _fetch_stream(self, _requests: Any, context: Any) -> None:
        """One answer per request; the client writes the next when it has taken in the last."""
        meant = MeantGroup(self._context, context)
        group = str(dict(context.invocation_metadata() or ()).get(CONSUMER_GROUP, ""))
        if group_problem(group):
            group = ""  # it is shown to people; a reader without a group is one, too
        with self._context.readers.open(group) as reader:
            while (raw := await context.read()) is not _EOF:
                await context.write(await self._fetched(raw, meant, reader))

    # --- offsets --------------------------------------------------------------------------------------------
    async def _query_offsets(self, raw: bytes, context: Any) -> log_pb2.QueryOffsetsResponse:
        try:
            meant = MeantGroup(self._context, context)
            meant.check()
            request = parsed(log_pb2.QueryOffsetsRequest, raw)
            stale = await _up_to_date_or_stale(self._context, request, context.time_remaining())
            meant.check()
            answer = query_offsets(self._context, request)
            answer.stale = stale
            if request.timestamp:
                await _add_offsets_at(self._context, request, answer)
            return answer
        except REFUSABLE as error:
            return log_pb2.QueryOffsetsResponse(refusal=refusal(self._context, error, ""))


_DUPLICATES: Final = (Verdict.DUPLICATE, Verdict.PENDING)
_STORED: Final = (Verdict.ACCEPTED, *_DUPLICATES)


async def up_to_date(context: NodeContext, remaining: float | None) -> None:
    """Return when this node has applied everything that was committed before the call (read-index).

    Raises: NotLeaderError (nobody could say), NodeStoppedError, RefusedError (it is being rebuilt).
    """
    context.require_whole_state()
    end = time.monotonic() + min(remaining if remaining is not None else 5.0, 5.0) - 0.2
    while True:
        try:
            index = await context.raft.read_index()
        except NotLeaderError:
            if time.monotonic() >= end:
                raise
            await context.leadership.wait_change(min(0.05, max(end - time.monotonic(), 0)))
            continue
        await context.raft.wait_applied(index)
        return


async def _up_to_date_or_stale(
    context: NodeContext, request: log_pb2.QueryOffsetsRequest, remaining: float | None
) -> bool:
    """As `up_to_date`; return True when there is no leader and the caller takes what this node knows all the same."""
    if not request.allow_stale:
        await up_to_date(context, remaining)
        return False
    try:
        await up_to_date(context, min(remaining or STALE_AFTER_S, STALE_AFTER_S))
    except NotLeaderError:
        return True
    return False


async def commit_offsets(
    context: NodeContext, request: log_pb2.CommitOffsetsRequest
) -> log_pb2.CommitOffsetsResponse:
    """Store the offsets of a consumer group, on the leader. Raises: RefusedError, and what the pipeline raises."""
    if problem := group_problem(request.group):
        raise RefusedError(route_pb2.INVALID_ARGUMENT, problem)
    if len(request.offsets) > MAX_COMMIT_ROWS:
        problem = f"{len(request.offsets)} offsets in one commit; at most {MAX_COMMIT_ROWS}. Send several"
        raise RefusedError(route_pb2.INVALID_ARGUMENT, problem)
    try:
        rows = _positions(context, request)
    except (RefusedError, NotThereError):
        # The caller may have read at a follower that is quicker at applying, or this node was deposed unawares.
        await context.raft.wait_applied(await context.raft.read_index())
        rows = _positions(context, request)
    group = await ensure_group(context, request.group)
    epochs = [each.epoch for each in request.offsets]
    command = CommitOffsets(
        group.group_id,
        position_rows(rows),
        request.reset,
        np.array(epochs, np.uint64) if any(epochs) else None,
    )
    applied = await context.pipeline.run(command)
    result: CommitResult = applied.result
    if result.fenced.any():
        raise RefusedError(route_pb2.FENCED, _fenced_text(request, int(result.fenced.argmax())))
    if not result.accepted.all():
        raise RefusedError(
            route_pb2.STALE_ROUTE, "a topic or the group was deleted meanwhile; refresh the route"
        )
    return log_pb2.CommitOffsetsResponse()


def _fenced_text(request: log_pb2.CommitOffsetsRequest, place: int) -> str:
    """Say which queue was refused, and what to do."""
    refused = request.offsets[place]
    queue = f'queue {refused.queue_id} of topic "{refused.topic}"'
    if refused.epoch:
        return (
            f"{queue} is not this consumer's any more: epoch {refused.epoch} has ended. Drop what is buffered of it; its "
            f"owner goes on at the committed offset. Queues of this commit that are still owned are stored"
        )
    return (
        f'{queue} belongs to the members of group "{request.group}", which consume it queue by queue. Use another group, '
        "or stop the members first"
    )


def _positions(context: NodeContext, request: log_pb2.CommitOffsetsRequest) -> list[tuple[int, int, int]]:
    """Return (topic id, queue id, offset) of what is to be stored. Raises: RefusedError, NotThereError."""
    state, rows = context.replica.state, []
    for each in request.offsets:
        topic = state.topics.named(each.topic)
        queue = state.queues.named(topic.topic_id, each.queue_id)
        if not 0 <= each.offset <= queue.end:
            raise RefusedError(
                route_pb2.OFFSET_OUT_OF_RANGE,
                f"offset {each.offset} of {each.topic} queue {each.queue_id} is beyond its end {queue.end}",
            )
        rows.append((topic.topic_id, each.queue_id, each.offset))
    return rows


def query_offsets(context: NodeContext, request: log_pb2.QueryOffsetsRequest) -> log_pb2.QueryOffsetsResponse:
    """Return begin, end and committed offset of every queue of a topic. Raises: TopicNotFoundError."""
    state = context.replica.state
    topic = state.topics.named(request.topic)
    group = state.groups.find(request.group) if request.group else None
    offsets = []
    for queue in state.queues_of(topic):
        committed = state.committed_offset(group.group_id, *queue.key) if group is not None else None
        offsets.append(
            log_pb2.QueueOffset(
                topic=topic.name,
                queue_id=queue.key[1],
                offset=-1 if committed is None else committed,
                begin_offset=queue.begin,
                end_offset=queue.end,
                lost=state.lost_count(group.group_id, *queue.key) if group is not None else 0,
            )
        )
    return log_pb2.QueryOffsetsResponse(offsets=offsets)


async def _add_offsets_at(
    context: NodeContext, request: log_pb2.QueryOffsetsRequest, answer: log_pb2.QueryOffsetsResponse
) -> None:
    """Add the first offset of each queue stored at or after the question's time. Raises: NotThereError."""
    topic = context.replica.state.topics.named(request.topic)
    for each in answer.offsets:
        each.time_offset = await offset_at_time(context, topic.topic_id, each.queue_id, request.timestamp)
