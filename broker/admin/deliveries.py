"""Holders of a consumer group's leases, its parked messages, and their release; on the leader.

Parked messages are replicated state, and remain in their queues. Of a lease's holder, at most its session is
replicated; client names are known only for the clients that this leader has served.
Raises (all): RefusedError, and what the pipeline raises.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Final

import numpy as np

from ledgermq.proto import admin_pb2, route_pb2
from ledgermq.raft.errors import RaftError
from ledgermq.raft.node.raft_node import RaftNode
from ledgermq.raft.types import LogIndex

from ..errors import BrokerError
from ..leader.pipeline import AppendPipeline
from ..leader.releases import ROWS_MAX, LeaseHolders
from ..reading.log_reader import LogReader
from ..refusals import RefusedError
from ..replica import Replica
from ..state.commands import ReleaseParked, position_rows
from ..state.consumer_groups import ConsumerGroup
from ..state.consumption import ACKED, PARKED_MAX, Consumption
from ..state.effects import Parked
from ..state.machine import BrokerState
from ..state.topics import Topic
from ..wire.official import message_id_text
from .changes import consumed_topics, known_consumer_group

logger = logging.getLogger(__name__)

DEFAULT_PARKED: Final = 1_000  # parked messages in an answer, unless the request sets a limit
MAX_PARKED: Final = 10_000
_HOLDERS_MAX: Final = 1_000  # holders per topic in an answer
_PLACES_MAX: Final = 10_000  # places in one release


@dataclass(slots=True)
class _Held:
    """Leases that one client holds in a topic."""

    leases: int = 0
    oldest: int = 0  # lease id: log index of the entry that granted it; 0: not known

    def add(self, leases: int, lease_id: int) -> None:
        self.leases += leases
        self.oldest = min(self.oldest, lease_id) if self.oldest and lease_id else self.oldest or lease_id


@dataclass(eq=False, repr=False)
class Deliveries:
    """Lists lease holders and parked messages, and releases parked messages."""

    _raft: RaftNode
    _replica: Replica
    _pipeline: AppendPipeline
    _reader: LogReader
    _lease_holders: LeaseHolders

    async def get(self, request: admin_pb2.GetDeliveriesRequest) -> admin_pb2.GetDeliveriesResponse:
        """Return a consumer group's lease holders and parked messages."""
        consumer_group = known_consumer_group(self._replica.state, request.group)
        limit = min(request.max_parked or DEFAULT_PARKED, MAX_PARKED)
        answer = admin_pb2.GetDeliveriesResponse(parked_limit=PARKED_MAX)
        for topic in self._topics(consumer_group, request.topic):
            answer.holders.extend(await self._holders(consumer_group, topic))
            for queue_id, found in self._queues(consumer_group, topic):
                answer.parked_count += len(found.parked)
                for row in found.parked[: limit - len(answer.parked)].tolist():
                    answer.parked.append(await self._parked(topic, queue_id, *row))
        return answer

    def _topics(self, consumer_group: ConsumerGroup, name: str) -> list[Topic]:
        return sorted(
            consumed_topics(self._replica.state, consumer_group, name), key=lambda topic: topic.name
        )

    def _queues(self, consumer_group: ConsumerGroup, topic: Topic) -> Iterator[tuple[int, Consumption]]:
        for queue_id in range(topic.queue_count):
            found = self._replica.state.consumption.get((consumer_group.group_id, topic.topic_id, queue_id))
            if found is not None:
                yield queue_id, found

    async def _parked(
        self, topic: Topic, queue_id: int, offset: int, parked_at: int, attempts: int, reason: int
    ) -> admin_pb2.ParkedMessage:
        return admin_pb2.ParkedMessage(
            topic=topic.name,
            queue_id=queue_id,
            queue_offset=offset,
            message_id=await self._message_id(topic, queue_id, offset),
            attempts=attempts,
            parked_ms=parked_at,
            reason=admin_pb2.ParkReason.Name(reason),
        )

    async def _message_id(self, topic: Topic, queue_id: int, offset: int) -> str:
        """Return a message's id; "" when it cannot be read, because the message is listed all the same."""
        try:
            (unit,) = (await self._replica.units(topic.topic_id, queue_id, offset, 1)).tolist()
            record = await self._reader.record(unit[0], unit[1])
        except (RaftError, BrokerError, ValueError) as error:
            logger.info(
                "parked message not read topic=%s queue=%d offset=%d: %s", topic.name, queue_id, offset, error
            )
            return ""
        return message_id_text(record)

    async def _holders(self, consumer_group: ConsumerGroup, topic: Topic) -> list[admin_pb2.LeaseHolder]:
        """Return the holders of leases in a topic, most leases first."""
        now, held = self._raft.next_timestamp(), dict[tuple[str, bool, bool], _Held]()
        for _, found in self._queues(consumer_group, topic):
            rows = found.leases[found.leases["flags"] & ACKED == 0]
            ended = rows["deadline"] <= now
            for session, lease_id, over, count in _counted(rows, ended):
                client = "" if over else self._lease_holders.name(lease_id, session)
                held.setdefault((client, bool(session), over), _Held()).add(count, lease_id)
        told = sorted(held.items(), key=lambda item: (-item[1].leases, item[0]))[:_HOLDERS_MAX]
        return [
            admin_pb2.LeaseHolder(
                topic=topic.name,
                client_id=client,
                leases=each.leases,
                oldest_ms=await self._stored_ms(each.oldest),
                by_session=by_session,
                ended=over,
            )
            for (client, by_session, over), each in told
        ]

    async def _stored_ms(self, index: int) -> int:
        """Return the log time of an entry; 0 when the log has deleted it."""
        try:
            return int((await self._raft.log.header_at(LogIndex(index))).timestamp) if index else 0
        except RaftError:
            return 0

    async def release(self, request: admin_pb2.ReleaseParkedRequest) -> admin_pb2.ReleaseParkedResponse:
        """Deliver parked messages again. Messages that are not parked (any more) are not counted."""
        consumer_group = known_consumer_group(self._replica.state, request.group)
        if request.places and not request.topic:
            raise RefusedError(
                route_pb2.INVALID_ARGUMENT, "places were named, and no topic; nothing was released"
            )
        if len(request.places) > _PLACES_MAX:
            raise RefusedError(
                route_pb2.INVALID_ARGUMENT,
                f"{len(request.places)} places at once; name at most {_PLACES_MAX}, or none to release all "
                f"of the topic",
            )
        rows = list[tuple[int, int, int]]()
        for topic in self._topics(consumer_group, request.topic):
            if request.places:
                rows += [(topic.topic_id, each.queue_id, each.queue_offset) for each in request.places]
                continue
            for queue_id, found in self._queues(consumer_group, topic):
                rows += [(topic.topic_id, queue_id, offset) for offset in found.parked["offset"].tolist()]
        released = 0
        for start in range(0, len(rows), ROWS_MAX):
            command = ReleaseParked(consumer_group.group_id, position_rows(rows[start : start + ROWS_MAX]))
            applied = await self._pipeline.run(command)
            released += int(np.count_nonzero(applied.result.accepted))
        return admin_pb2.ReleaseParkedResponse(released=released)


def _counted(rows: np.ndarray, ended: np.ndarray) -> Iterator[tuple[int, int, bool, int]]:
    """Yield (session, lease id, whether it has ended, number of rows) of leases."""
    columns = zip(rows["session"].tolist(), rows["lease_id"].tolist(), ended.tolist(), strict=True)
    for (session, lease_id, over), count in Counter(columns).items():
        yield session, lease_id, over, count


def tell_parked(state: BrokerState, parked: Iterable[Parked]) -> None:
    """Log parked messages, one line per queue: an operator has to look at them."""
    for each in parked:
        topic, consumer_group = state.topics.get(each.topic_id), state.groups.get(each.group_id)
        name = consumer_group.name if consumer_group is not None else str(each.group_id)
        logger.warning(
            "messages parked, they failed for the last time group=%s topic=%s queue=%d count=%d total=%d of "
            "%d. See: ledgermq group describe %s",
            name, topic.name if topic is not None else each.topic_id, each.queue_id,
            each.count, each.total, PARKED_MAX, name,
        )  # fmt: skip
