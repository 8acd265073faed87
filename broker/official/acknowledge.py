"""AckMessage, ChangeInvisibleDuration and ForwardMessageToDeadLetterQueue at the leader.

Receipt handles are checked against replicated state when the command is applied.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, replace

import numpy as np

from ledgermq.proto import rocketmq_v2_pb2 as v2
from ledgermq.proto.foreign_text import safe_text

from ..errors import InvalidReceiptHandleError
from ..leader.pipeline import AppendPipeline
from ..leader.releases import LeaseHolders
from ..refusals import RefusedError
from ..replica import Replica
from ..service.features import Features
from ..state.commands import (
    PARKED_MESSAGES,
    Ack,
    ChangeInvisible,
    ParkMessages,
    ParkReason,
    change_rows,
    lease_rows,
    park_rows,
)
from ..state.consumption import PARKED_MAX
from ..wire.receipt_handle import ReceiptHandle, parse_handle
from ..wire.status import StatusError, ok, overall
from ..wire.validation import MAX_ENTRIES, MAX_INVISIBLE_MS, check_consumer_group, check_topic


def _invalid(reason: str) -> v2.Status:
    return v2.Status(code=v2.INVALID_RECEIPT_HANDLE, message=reason)


_EXPIRED = "receipt handle is expired"


@dataclass(eq=False, repr=False)
class Acknowledgements:
    """Serves a consumer's calls about messages that it holds leases on."""

    _broker_group: str
    _replica: Replica
    _pipeline: AppendPipeline
    _holders: LeaseHolders
    _features: Features

    def _checked_handle(self, text: str, consumer_group: str) -> ReceiptHandle:
        """Return a handle that belongs to this broker group and to the given consumer group.

        Raises: InvalidReceiptHandleError.
        """
        handle = parse_handle(text)
        known = self._replica.state.groups.get(handle.group_id)
        if handle.broker_group != self._broker_group:
            raise InvalidReceiptHandleError(f"it is of broker group {safe_text(handle.broker_group, 100)}")
        if known is None or known.name != consumer_group:
            raise InvalidReceiptHandleError(f"it is not of consumer group {consumer_group}")
        return handle

    async def acknowledge(self, request: v2.AckMessageRequest) -> v2.AckMessageResponse:
        """Acknowledge messages; one result per entry. Raises: StatusError, and what the pipeline raises."""
        check_consumer_group(request.group.name)
        check_topic(request.topic.name)
        if not request.entries:
            raise StatusError(v2.INTERNAL_SERVER_ERROR, "ack message result is empty")
        if len(request.entries) > MAX_ENTRIES:
            what = f"{len(request.entries):,} deliveries in one request; acknowledge at most {MAX_ENTRIES:,}"
            raise StatusError(v2.BAD_REQUEST, what)
        statuses: list[v2.Status] = [ok()] * len(request.entries)
        wanted: defaultdict[tuple[int, int], list[tuple[int, ReceiptHandle]]] = defaultdict(list)
        for place, entry in enumerate(request.entries):
            try:
                handle = self._checked_handle(entry.receipt_handle, request.group.name)
            except InvalidReceiptHandleError as error:
                statuses[place] = _invalid(str(error))
            else:
                wanted[handle.group_id, handle.topic_id].append((place, handle))
        for (group_id, topic_id), handles in wanted.items():
            rows = lease_rows([(each.queue_id, each.queue_offset, each.lease_id) for _, each in handles])
            applied = await self._pipeline.run(Ack(group_id, topic_id, rows))
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
        self, request: v2.ChangeInvisibleDurationRequest, client_id: str
    ) -> v2.ChangeInvisibleDurationResponse:
        """Change the end of a lease; the answer carries the new handle.

        Raises: StatusError, and what the pipeline raises.
        """
        check_consumer_group(request.group.name)
        check_topic(request.topic.name)
        duration = request.invisible_duration.ToMilliseconds()
        if not 0 <= duration <= MAX_INVISIBLE_MS:
            raise StatusError(
                v2.ILLEGAL_INVISIBLE_TIME, f"the invisibleTime must be between 0 and {MAX_INVISIBLE_MS} ms"
            )
        handle = self._checked_handle(request.receipt_handle, request.group.name)
        rows = change_rows([(handle.queue_id, handle.queue_offset, handle.lease_id, duration)])
        applied = await self._pipeline.run(ChangeInvisible(handle.group_id, handle.topic_id, rows))
        if not applied.result.accepted[0]:
            raise StatusError(v2.INVALID_RECEIPT_HANDLE, _EXPIRED)
        self._holders.moved(client_id, applied.index)
        renewed = replace(handle, lease_id=applied.index)
        return v2.ChangeInvisibleDurationResponse(status=ok(), receipt_handle=renewed.encode())

    async def forward_to_dead_letters(
        self, request: v2.ForwardMessageToDeadLetterQueueRequest
    ) -> v2.ForwardMessageToDeadLetterQueueResponse:
        """Park a message that a consumer gives up; its queue goes on. (There are no dead-letter queues yet.)

        Clients repeat the call until it succeeds. So it also succeeds when there is nothing left to park: the
        message is parked already, consumed, deleted, or leased to another consumer by now. Raises:
        StatusError, and what the pipeline raises.
        """
        check_consumer_group(request.group.name)
        check_topic(request.topic.name)
        handle = parse_handle(request.receipt_handle)
        consumer_group = self._replica.state.groups.get(handle.group_id)
        if handle.broker_group != self._broker_group or (
            consumer_group is not None and consumer_group.name != request.group.name
        ):
            raise StatusError(
                v2.INVALID_RECEIPT_HANDLE, f"it is not of consumer group {request.group.name} here"
            )
        done = v2.ForwardMessageToDeadLetterQueueResponse(status=ok())
        if consumer_group is None:
            return done
        try:
            await self._features.require(PARKED_MESSAGES, "park messages that failed")
        except RefusedError as error:
            code = v2.HA_NOT_AVAILABLE if error.refusal.retryable else v2.NOT_IMPLEMENTED
            raise StatusError(code, str(error)) from None
        row = (handle.queue_id, handle.queue_offset, handle.lease_id, max(request.delivery_attempt, 0))
        command = ParkMessages(handle.group_id, handle.topic_id, park_rows([row]), ParkReason.FORWARDED)
        applied = await self._pipeline.run(command)
        found = self._replica.state.consumption.get((handle.group_id, handle.topic_id, handle.queue_id))
        held = found is not None and found.holds(np.array([handle.queue_offset]), handle.lease_id)[0]
        if held and not applied.result.accepted[0]:
            raise StatusError(
                v2.TOO_MANY_REQUESTS,
                f"{PARKED_MAX} messages of topic {request.topic.name} queue {handle.queue_id} are parked for "
                f"consumer group {consumer_group.name}, more are not: this one stays with its consumer. "
                f"Release some: ledgermq group release {consumer_group.name}",
            )
        return done
