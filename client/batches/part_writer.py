"""Part writer: one attempt at a part of a batch, what one partition writes to one topic (D39).

    async with BatchClient("127.0.0.1:9876") as client:
        part = await client.begin("orders", job="nightly", batch=7, partition=3)
        await part.write_bodies(bodies)          # or write(rows)
        written = await part.flush()             # on the executor
        await client.finish([written])           # on the driver, once all partitions are written

Whatever ends an attempt, the next one stores what is missing:
    begin     ends earlier attempts in every broker group that has the topic, and learns what they stored
    write     leaves out what is stored already, compared by content
    flush     waits until everything is stored on a majority
    finish    declares the part complete, so that a repeat need not read back

An executor cannot declare a part complete: to its worker, rows of a task that fails upstream end like the
rows of one that does not. So it reports what it found, and the driver, which knows that the tasks succeeded,
judges whether attempts agree.

Owns: the order of these steps, and the choice of the broker group. Must not: encode, hold streams.
"""

from __future__ import annotations

import asyncio
import logging
import random
import socket
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from types import TracebackType
from typing import Final, Self

from ledgermq.proto import log_pb2 as pb

from ..cluster.calls import call_log_service
from ..cluster.channels import Channels
from ..cluster.routes import Routes
from ..cluster.topic_route import BrokerGroup, TopicInBrokerGroup, no_queue_to_write
from ..errors import (
    AttemptEndedError,
    JobForgottenError,
    LedgerMQError,
    MessageTooLargeError,
    RowsDifferError,
)
from ..produce.encoding import RecordEncoder
from ..produce.message_ids import process_ids
from .row_packer import PackedRequest, PartAddress, Row, RowPacker
from .section_sender import SectionSender
from .stored_rows import StoredRows, read_back

logger = logging.getLogger(__name__)

#: Parts that are declared complete together.
_FINISHED_AT_ONCE: Final = 64
#: Without an answer for so long an attempt fails, s: longer than an election and a restart of a broker group.
TIMEOUT_S: Final = 120.0
#: Tries to begin everywhere before a rival that begins at the same time, and the longest pause between, s.
_TRIES: Final = 5
_PAUSE_S: Final = 0.3
#: Interval at which an attempt that has ended looks at its rival, s; and how long that may store nothing.
_LOOK_S: Final = 0.5
RIVAL_S: Final = 30.0
#: Rows that are packed before others of the event loop get their turn.
_AT_ONCE: Final = 512


@dataclass(frozen=True)
class WrittenPart:
    """Report of an attempt that has stored its rows. It can be pickled."""

    topic: str
    rows: int  # that the attempt was given
    sent: int  # of these; the others were stored before
    differ: bool  # earlier attempts stored other rows, or another number
    broker_group: str = ""  # "": the part was complete
    topic_id: int = 0
    producer_id: int = 0
    producer_epoch: int = 0
    stored: int = 0  # messages of the part in that broker group
    begun_at: tuple[str, ...] = ()  # all broker groups that know the job


class BatchClient:
    """Connections of the attempts of one process. Use it as an async context manager."""

    def __init__(
        self, nameservers: str | Sequence[str], *, cluster: str = "", timeout_s: float = TIMEOUT_S
    ) -> None:
        """`timeout_s`: an attempt fails when a broker group has not answered for so long.

        Raises: UsageError.
        """
        self.timeout_s = timeout_s
        self.channels = Channels()
        self.routes = Routes(nameservers, self.channels, cluster)
        self._parts: list[PartWriter] = []

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def begin(
        self, topic: str, *, job: str, batch: int, partition: int, forgotten_too: bool = False,
        ordered: bool = False, one_queue: bool = False,
    ) -> PartWriter:  # fmt: skip
        """Begin an attempt; it ends all earlier ones at the same part.

        `forgotten_too`: also if no broker group knows the job and the batch is not its first one.
        `ordered`: the partition always writes to the same broker group, as long as that takes messages.
        `one_queue`: and to the same queue, partition n to the n-th of the topic, but for message groups.
        Raises: JobForgottenError, AttemptEndedError (a later one has begun), FencedError (a later batch has
        begun), and the errors of routes and calls.
        """
        for tries_left in reversed(range(_TRIES)):
            attempt = _Attempt(self, topic, job, batch, partition)
            try:
                part = await attempt.begin(forgotten_too=forgotten_too, ordered=ordered, one_queue=one_queue)
            except AttemptEndedError:
                if not tries_left:
                    raise
                await asyncio.sleep(random.uniform(0, _PAUSE_S))
                continue
            self._parts.append(part)
            return part
        raise AssertionError("the last try returns or raises")

    async def outlast(
        self, topics: Iterable[str], *, job: str, batch: int, partition: int, rival_s: float = RIVAL_S
    ) -> None:
        """Wait while another attempt, which ended this one, goes on: until it stores nothing for `rival_s`.

        Spark ends this task when the rival's has succeeded. If it failed at once, Spark would begin another
        one, which would end the rival, and so on until too many have failed. Raises: as `begin`.
        """
        attempts = [_Attempt(self, topic, job, batch, partition) for topic in topics]
        seen: list[tuple[int, int]] = []
        pause_s, silent_s = min(_LOOK_S, rival_s / 4), 0.0
        while silent_s < rival_s:
            await asyncio.sleep(pause_s)
            now = [state for each in attempts for state in await each.look()]
            silent_s = silent_s + pause_s if now == seen else 0.0
            seen = now

    async def finish(self, parts: Iterable[WrittenPart], *, ended_job: str = "") -> None:
        """Declare the parts of a batch complete, whose tasks have succeeded.

        Everything is stored already, so a part that cannot be declared complete now is only a warning: an
        attempt at it would read back what is stored.
        `ended_job`: all parts are of this job, and nobody continues it. The brokers are told that instead.
        Raises: RowsDifferError (earlier attempts stored other rows).
        """
        parts = list(parts)
        differing = [part for part in parts if part.differ]
        if differing:
            raise RowsDifferError(", ".join(sorted({part.topic for part in differing})))
        if ended_job:
            topics = {name: part.topic for part in parts for name in part.begun_at}
            request = pb.FinishBatchRequest(job=ended_job)
            await asyncio.gather(*(self._finish(topics[name], name, request) for name in topics))
            return
        open_parts = [part for part in parts if part.broker_group]
        for start in range(0, len(open_parts), _FINISHED_AT_ONCE):
            some = open_parts[start : start + _FINISHED_AT_ONCE]
            await asyncio.gather(
                *(self._finish(part.topic, part.broker_group, _finish_request(part)) for part in some)
            )

    async def _finish(self, topic: str, broker_group: str, request: pb.FinishBatchRequest) -> None:
        try:
            await self.routes.get(topic)
            await call_log_service(
                partial(self.routes.broker_group, topic, broker_group), self.channels,
                lambda stub: stub.FinishBatch, request,
            )  # fmt: skip
        except LedgerMQError as error:
            logger.warning(
                "not declared complete topic=%s broker_group=%s reason=%s", topic, broker_group, error
            )

    async def close(self) -> None:
        """Close all connections. Attempts that are not finished can be repeated."""
        for part in self._parts:
            await part.close()
        await self.routes.close()
        await self.channels.close()


def _finish_request(part: WrittenPart) -> pb.FinishBatchRequest:
    return pb.FinishBatchRequest(
        producer_id=part.producer_id, producer_epoch=part.producer_epoch, topic_id=part.topic_id,
        count=part.stored,
    )  # fmt: skip


class _Attempt:
    """The steps by which an attempt begins."""

    def __init__(self, client: BatchClient, topic: str, job: str, batch: int, partition: int) -> None:
        self._client = client
        self._topic = topic
        self._request = pb.BeginBatchRequest(job=job, batch=batch, partition=partition, topic=topic)
        self._answers: dict[str, pb.BeginBatchResponse] = {}  # by broker group

    async def begin(self, *, forgotten_too: bool, ordered: bool, one_queue: bool) -> PartWriter:
        """Carry out the steps. Raises: as BatchClient.begin."""
        client, request = self._client, self._request
        route = await client.routes.get(self._topic, refresh=True, create=True)
        names = [part.group.name for part in route.parts]
        await self._begin_at(names)
        unknown = [name for name in names if self._answers[name].unknown]
        silent = [name for name in names if self._answers[name].silent]
        if unknown or silent:
            if (silent or len(unknown) == len(names)) and not forgotten_too:
                raise JobForgottenError(request.job, request.batch, self._topic)
            request.unknown_too = True
            await self._begin_at(unknown + silent)
        finished = any(answer.finished for answer in self._answers.values())
        if len(names) > 1 and not finished:
            await self._look_again(names)
        stored, count = StoredRows(), sum(answer.count for answer in self._answers.values())
        if not finished:
            for name, answer in self._answers.items():
                if answer.count:
                    await read_back(
                        stored, partial(client.routes.broker_group, self._topic, name), client.channels,
                        self._topic, answer, client.timeout_s,
                    )  # fmt: skip
        if finished:
            return PartWriter(client, self._topic, stored, finished_count=count)
        target, queue = self._target(route.parts, ordered=ordered, one_queue=one_queue)
        if target is None:
            raise no_queue_to_write(route)
        return PartWriter(
            client, self._topic, stored, target, self._answers[target.group.name], queue=queue,
            one_queue=one_queue, begun_at=tuple(names),
        )  # fmt: skip

    async def _begin_at(self, names: Iterable[str]) -> None:
        for name in names:
            self._answers[name] = await self._call(name, self._request)

    async def look(self) -> list[tuple[int, int]]:
        """Return epoch and number of stored messages in each broker group. Raises: as BatchClient.begin."""
        route = await self._client.routes.get(self._topic)
        self._request.look = True
        answers = [await self._call(part.group.name, self._request) for part in route.parts]
        return [(answer.producer_epoch, answer.count) for answer in answers]

    async def _look_again(self, names: Iterable[str]) -> None:
        """Check that no other attempt began between the first and the last broker group of this one.

        Else each of two attempts could be the current one in some broker group, and both would write.
        Raises: AttemptEndedError.
        """
        look = pb.BeginBatchRequest()
        look.CopyFrom(self._request)
        look.look = True
        for name in names:
            if (await self._call(name, look)).producer_epoch != self._answers[name].producer_epoch:
                raise AttemptEndedError("another attempt began at the same time; one of them is repeated")

    async def _call(self, name: str, request: pb.BeginBatchRequest) -> pb.BeginBatchResponse:
        client = self._client
        return await call_log_service(
            partial(client.routes.broker_group, self._topic, name), client.channels,
            lambda stub: stub.BeginBatch, request, timeout_s=client.timeout_s,
        )  # fmt: skip

    def _target(
        self, parts: Sequence[TopicInBrokerGroup], *, ordered: bool, one_queue: bool
    ) -> tuple[TopicInBrokerGroup | None, int]:
        """Return the broker group to write to: one that has a part of the rows, else the next in turn; and
        the queue in it to begin with.
        """
        able = [part for part in parts if part.writable and part.group.writable and not part.group.draining]
        able = [part for part in able if part.queue_count] or [
            part for part in parts if part.writable and part.queue_count and not part.group.draining
        ]
        partition, batch = self._request.partition, self._request.batch
        if not able:
            return None, 0
        chosen, queue = able[(partition if ordered else partition + batch) % len(able)], partition + batch
        if one_queue:
            slots = [(part, number) for part in able for number in range(part.queue_count)]
            chosen, queue = slots[partition % len(slots)]
        for part in able:
            if self._answers[part.group.name].count:
                return part, queue
        return chosen, queue


class PartWriter:
    """An attempt that has begun. `write` and `write_bodies`, then `flush`; one call at a time."""

    def __init__(
        self,
        client: BatchClient,
        topic: str,
        stored: StoredRows,
        target: TopicInBrokerGroup | None = None,
        answer: pb.BeginBatchResponse | None = None,
        *,
        queue: int = 0,
        one_queue: bool = False,
        begun_at: tuple[str, ...] = (),
        finished_count: int = 0,
    ) -> None:
        """`target`, `answer`: of the broker group to write to; None: the part is complete, with
        `finished_count` messages. `queue`: to begin with; `one_queue`: and to stay in. `begun_at`: all broker
        groups that know the attempt.
        """
        self.rows = 0  # that this attempt was given
        self.sent = 0  # of these; the others were stored before
        self._client = client
        self._topic = topic
        self._stored = stored
        self._begun_at = begun_at
        self._finished_count = finished_count
        self._answer = answer
        self._packer: RowPacker | None = None
        self._sender: SectionSender | None = None
        if target is None or answer is None:
            return
        self._name = target.group.name
        self._largest = target.group.max_message_bytes
        encoder = RecordEncoder(topic, born_host=socket.gethostname())
        address = PartAddress(answer.topic_id, target.queue_count, answer.producer_id, answer.producer_epoch)
        self._packer = RowPacker(
            encoder, address, process_ids(), first=answer.count, queue=queue, one_queue=one_queue,
            max_request_bytes=target.group.max_request_bytes,
        )  # fmt: skip
        self._sender = SectionSender(
            self._group, client.channels, partial(client.routes.get, topic, refresh=True), topic,
            client.timeout_s,
        )  # fmt: skip

    def _group(self) -> BrokerGroup:
        return self._client.routes.broker_group(self._topic, self._name)

    async def write_bodies(self, bodies: Sequence[bytes]) -> None:
        """Write messages that have a body only. Raises: as `write`."""
        if self._packer is None or self._stored.count:
            await self.write(map(Row, bodies))
            return
        self.rows += len(bodies)
        self.sent += len(bodies)
        born_ms = time.time_ns() // 1_000_000
        for at in range(0, len(bodies), _AT_ONCE):
            some = bodies[at : at + _AT_ONCE]
            if max(map(len, some)) > self._largest:
                self._check_size(max(some, key=len))
            await self._send(self._packer.bodies(some, born_ms))

    async def write(self, rows: Iterable[Row]) -> None:
        """Write messages. Waits while the brokers are slower.

        Raises: InvalidMessageError, MessageTooLargeError, AttemptEndedError, SendTimeoutError, and final
        refusals of the brokers.
        """
        born_ms = time.time_ns() // 1_000_000
        for row in rows:
            self.rows += 1
            if self._packer is None or (self._stored.count and self._stored.take(row)):
                continue
            self._check_size(row.body)
            self.sent += 1
            await self._send(self._packer.row(row, born_ms))

    async def flush(self) -> WrittenPart:
        """Wait until all is stored, and return what the driver has to judge.

        Raises: AttemptEndedError, SendTimeoutError, and final refusals of the brokers.
        """
        if self._packer is None or self._sender is None or self._answer is None:
            return WrittenPart(self._topic, self.rows, 0, differ=self.rows != self._finished_count)
        await self._send(self._packer.rest())
        await self._sender.drain()
        answer = self._answer
        return WrittenPart(
            self._topic, self.rows, self.sent, self._stored.count > 0, self._name, answer.topic_id,
            answer.producer_id, answer.producer_epoch, answer.count + self.sent, self._begun_at,
        )  # fmt: skip

    async def close(self) -> None:
        """End the stream."""
        if self._sender is not None:
            await self._sender.close()

    async def _send(self, requests: Iterable[PackedRequest]) -> None:
        assert self._sender is not None
        for request in requests:
            await self._sender.put(request)

    def _check_size(self, body: bytes) -> None:
        if len(body) > self._largest:
            raise MessageTooLargeError(len(body), self._largest)
