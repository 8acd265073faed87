"""AckMessage and ChangeInvisibleDuration at the leader. Handles are checked against replicated state when applied."""

from __future__ import annotations

from collections import defaultdict

from ledgermq.proto import rocketmq_v2_pb2 as v2

from .commands import Ack, ChangeInvisible, change_rows, lease_rows
from .context import NodeContext
from .errors import InvalidReceiptHandleError
from .messaging_status import StatusError, ok, overall
from .messaging_validation import MAX_INVISIBLE_MS, check_group, check_topic
from .produce import TooManyRequestsError
from .receipt_handle import ReceiptHandle, parse_handle


def _invalid(reason: str) -> v2.Status:
    return v2.Status(code=v2.INVALID_RECEIPT_HANDLE, message=reason)


_EXPIRED = "receipt handle is expired"


def _checked_handle(context: NodeContext, text: str, group: str) -> ReceiptHandle:
    """Return a handle that belongs to this broker group and to the consumer group. Raises: InvalidReceiptHandleError."""
    handle = parse_handle(text)
    known = context.replica.state.groups.get(handle.group_id)
    if handle.broker_group != context.config.group:
        raise InvalidReceiptHandleError(f"it is of broker group {handle.broker_group}")
    if known is None or known.name != group:
        raise InvalidReceiptHandleError(f"it is not of consumer group {group}")
    return handle


async def acknowledge(context: NodeContext, request: v2.AckMessageRequest) -> v2.AckMessageResponse:
    """Acknowledge; one result per entry. Raises: StatusError, and what the pipeline raises."""
    check_group(request.group.name)
    check_topic(request.topic.name)
    if not request.entries:
        raise StatusError(v2.INTERNAL_SERVER_ERROR, "ack message result is empty")
    statuses: list[v2.Status] = [ok()] * len(request.entries)
    wanted: defaultdict[tuple[int, int], list[tuple[int, ReceiptHandle]]] = defaultdict(list)
    for place, entry in enumerate(request.entries):
        try:
            handle = _checked_handle(context, entry.receipt_handle, request.group.name)
        except InvalidReceiptHandleError as error:
            statuses[place] = _invalid(str(error))
        else:
            wanted[handle.group_id, handle.topic_id].append((place, handle))
    for (group_id, topic_id), handles in wanted.items():
        rows = lease_rows([(each.queue_id, each.queue_offset, each.lease_id) for _, each in handles])
        try:
            applied = await context.pipeline.run(Ack(group_id, topic_id, rows))
        except TooManyRequestsError as error:
            raise StatusError(v2.TOO_MANY_REQUESTS, str(error)) from None
        for (place, _), accepted in zip(handles, applied.result.accepted, strict=True):
            if not accepted:
                statuses[place] = _invalid(_EXPIRED)
    entries = [
        v2.AckMessageResultEntry(
            message_id=entry.message_id, receipt_handle=entry.receipt_handle, status=status
        )
        for entry, status in zip(request.entries, statuses, strict=True)
    ]
    return v2.AckMessageResponse(status=overall(statuses), entries=entries)


async def change_invisible(
    context: NodeContext, request: v2.ChangeInvisibleDurationRequest
) -> v2.ChangeInvisibleDurationResponse:
    """Move the end of a lease; the answer carries the new handle. Raises: StatusError, and what the pipeline raises."""
    check_group(request.group.name)
    check_topic(request.topic.name)
    duration = request.invisible_duration.ToMilliseconds()
    if not 0 <= duration <= MAX_INVISIBLE_MS:
        raise StatusError(
            v2.ILLEGAL_INVISIBLE_TIME, f"the invisibleTime must be between 0 and {MAX_INVISIBLE_MS} ms"
        )
    try:
        handle = _checked_handle(context, request.receipt_handle, request.group.name)
    except InvalidReceiptHandleError as error:
        raise StatusError(v2.INVALID_RECEIPT_HANDLE, str(error)) from None
    rows = change_rows([(handle.queue_id, handle.queue_offset, handle.lease_id, duration)])
    try:
        applied = await context.pipeline.run(ChangeInvisible(handle.group_id, handle.topic_id, rows))
    except TooManyRequestsError as error:
        raise StatusError(v2.TOO_MANY_REQUESTS, str(error)) from None
    if not applied.result.accepted[0]:
        raise StatusError(v2.INVALID_RECEIPT_HANDLE, _EXPIRED)
    renewed = ReceiptHandle(
        handle.broker_group,
        handle.group_id,
        handle.topic_id,
        handle.queue_id,
        handle.queue_offset,
        applied.index,
        handle.attempt,
    )
    return v2.ChangeInvisibleDurationResponse(status=ok(), receipt_handle=renewed.encode())
