"""Message queries: look up stored messages in every broker group, and join the answers.

Owns: the pages of a broker group, the order of the result, the report on silent ones. Must not: know
channels.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from ledgermq.proto import admin_pb2 as pb

from ..cluster.topic_route import BrokerGroup
from ..errors import LedgerMQError, RefusedError
from ..message import MessageQueue, MessageView

#: Default maximum of messages per query.
DEFAULT_LIMIT: Final = 100
_PAGE: Final = 1000
#: Maximum of record bytes per broker group in a result (or one page). The rest counts as truncated.
MAX_GROUP_BYTES: Final = 64 << 20

Ask = Callable[[BrokerGroup, pb.QueryMessagesRequest], Awaitable[pb.QueryMessagesResponse]]


@dataclass(slots=True)
class FoundMessages:
    """Result of a query, newest messages first."""

    messages: list[MessageView] = field(default_factory=list)
    truncated: bool = False  # there may be more than `limit`, or than fits into a result
    #: If truncated: every missing message was stored at or before this time, ms. To continue without a gap,
    #: query for messages stored before the next ms; some are repeated.
    missing_from_ms: int = 0
    #: Log bytes that were not searched, because their index of keys and ids is being built. Repeat later.
    unsearched_bytes: int = 0
    #: Broker groups that did not answer, with the errors: their messages are missing.
    silent: dict[str, LedgerMQError] = field(default_factory=dict)
    #: Broker groups without a leader: their latest messages may be missing.
    stale: list[str] = field(default_factory=list)

    @property
    def goes_on(self) -> bool:
        """Whether a query up to `missing_from_ms` returns anything that this one did not."""
        return self.truncated and self.messages[0].store_timestamp > self.missing_from_ms

    @property
    def is_complete(self) -> bool:
        """Whether missing messages are certainly not stored (any more), apart from `truncated`."""
        return not (self.unsearched_bytes or self.silent or self.stale)


async def query_broker_groups(
    groups: Sequence[BrokerGroup],
    ask: Ask,
    request: pb.QueryMessagesRequest,
    limit: int,
    gone: Mapping[str, LedgerMQError],
) -> FoundMessages | None:
    """Query all broker groups at once. None: none has the topic. `gone`: errors of those that are down.

    Raises: LedgerMQError (no broker group answered).
    """
    answers = await asyncio.gather(
        *(_query_group(broker_group, ask, request, limit) for broker_group in groups), return_exceptions=True
    )
    found, answered = FoundMessages(silent=dict(gone)), 0
    for broker_group, answer in zip(groups, answers, strict=True):
        if isinstance(answer, FoundMessages):
            answered += 1
            found.messages += answer.messages
            found.truncated |= answer.truncated
            found.missing_from_ms = max(found.missing_from_ms, answer.missing_from_ms)
            found.unsearched_bytes += answer.unsearched_bytes
            found.stale += answer.stale
        elif isinstance(answer, RefusedError) and answer.code == "TOPIC_NOT_FOUND":
            continue
        elif isinstance(answer, LedgerMQError) and not _is_final(answer):
            found.silent[broker_group.name] = answer
        else:
            raise answer
    if not answered:
        if found.silent:
            raise next(iter(found.silent.values()))
        return None
    found.messages.sort(key=lambda message: message.store_timestamp, reverse=True)
    if len(found.messages) > limit:
        found.truncated = True
        found.missing_from_ms = max(found.missing_from_ms, found.messages[limit].store_timestamp)
        del found.messages[limit:]
    return found


async def _query_group(
    broker_group: BrokerGroup, ask: Ask, request: pb.QueryMessagesRequest, limit: int
) -> FoundMessages:
    """Query one broker group, page by page."""
    asked = pb.QueryMessagesRequest()
    asked.CopyFrom(request)
    found, size = FoundMessages(), 0
    while True:
        asked.limit = min(limit - len(found.messages), _PAGE)
        answer = await ask(broker_group, asked)
        found.messages += [_view(broker_group, each) for each in answer.messages]
        size += sum(len(each.record) for each in answer.messages)
        found.unsearched_bytes = max(found.unsearched_bytes, answer.unsearched_bytes)
        if answer.stale and not found.stale:
            found.stale.append(broker_group.name)
        asked.before_offset = answer.next_before
        if not answer.next_before:
            return found
        if len(found.messages) >= limit or size >= MAX_GROUP_BYTES:
            found.truncated = True
            found.missing_from_ms = found.messages[-1].store_timestamp
            return found


def _is_final(error: LedgerMQError) -> bool:
    """Tell whether a broker group understood the query and refuses it."""
    return isinstance(error, RefusedError) and error.code == "INVALID_ARGUMENT"


def _view(broker_group: BrokerGroup, stored: pb.StoredMessage) -> MessageView:
    queue = MessageQueue(stored.topic, broker_group.name, stored.queue_id)
    return MessageView(stored.record, 0, queue, stored.queue_offset, stored.store_timestamp)
