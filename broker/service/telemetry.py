"""Telemetry streams: a client sends its settings, the server answers with the merged settings.

Official clients need the answer to start and behave (docs/protocol.md, Settings): their own settings with the
server's values merged in.
Owns: nothing; `sessions.py` tracks which clients have a stream. Must not: rely on settings (a client may send
none for minutes after a restart), or wait for a client to read.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final

import grpc
from google.protobuf.message import DecodeError

from ledgermq.proto import rocketmq_v2_pb2 as v2
from ledgermq.proto.record import MAX_BODY_SIZE

from ..replica import Replica
from ..wire.status import StatusError, ok
from ..wire.validation import check_consumer_group, check_topic
from .sessions import ClientsHere, SignsOfLife, TooManyClientsError

logger = logging.getLogger(__name__)

LONG_POLLING_SECONDS: Final = 20
RECEIVE_BATCH_SIZE: Final = 32
#: Clients retry at once with the next entry of their route, and keep a route for 30 s: a dead node stays in
#: it that long. A client's threads take turns at the entries, so with three nodes each attempt meets the dead
#: one with probability 1/3. Attempts are cheap: a dead node's port refuses at once, and a repeated send is
#: stored once. With 3 attempts, 4 % of the sends beside a dead node failed.
PRODUCER_MAX_ATTEMPTS: Final = 10
#: Delay before each redelivery, seconds; the last one repeats.
RETRY_DELAYS: Final = (1, 5, 10, 30, 60, 120, 180, 240, 300, 360, 420, 480, 540, 600, 1200, 1800, 3600, 7200)
#: The Node client reads only exponential policies, and takes their seconds for milliseconds.
_NODE_LANGUAGE: Final = "HTTP"
#: (fifo, max attempts) of a consumer group that does not exist yet.
DEFAULT_POLICY: Final = (False, 17)


@dataclass(eq=False, repr=False)
class TelemetryStreams:
    """Serves the Telemetry streams of this node."""

    _clients: ClientsHere
    _signs_of_life: SignsOfLife
    _replica: Replica
    _max_message_bytes: int

    async def serve(
        self, requests: AsyncIterator[bytes], context: Any, client_id: str, language: str
    ) -> None:
        """Serve one stream until the client ends it."""
        try:
            self._clients.check_room_for_stream(client_id)
            self._signs_of_life.heard(client_id)
        except TooManyClientsError as error:
            await context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, str(error))
        await context.send_initial_metadata(())  # some clients wait for the headers before they write
        self._clients.stream_opened(client_id)
        try:
            async for raw in requests:
                with suppress(TooManyClientsError):  # the client is connected, so it counts as live anyway
                    self._signs_of_life.heard(client_id)
                try:
                    command = v2.TelemetryCommand.FromString(raw)
                except DecodeError:
                    await context.abort(
                        grpc.StatusCode.INVALID_ARGUMENT, "the telemetry command cannot be decoded"
                    )
                if command.HasField("settings"):
                    await context.write(await self._answer(command.settings, context, language))
        finally:
            self._clients.stream_closed(client_id)

    async def _answer(self, settings: v2.Settings, context: Any, language: str) -> v2.TelemetryCommand:
        try:
            check_settings(settings)
        except StatusError as error:
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, error.message)
        fifo, max_attempts = self._policy_of(settings.subscription.group.name)
        return settings_command(
            settings,
            fifo=fifo,
            max_attempts=max_attempts,
            language=language,
            max_message_bytes=self._max_message_bytes,
        )

    def _policy_of(self, consumer_group: str) -> tuple[bool, int]:
        found = self._replica.state.groups.find(consumer_group)
        return (found.fifo, found.max_attempts) if found is not None else DEFAULT_POLICY


def check_settings(settings: v2.Settings) -> None:
    """Check the topics and the consumer group that settings name. Raises: StatusError."""
    if settings.HasField("publishing"):
        for topic in settings.publishing.topics:
            check_topic(topic.name)
    elif settings.HasField("subscription"):
        check_consumer_group(settings.subscription.group.name)
        for entry in settings.subscription.subscriptions:
            check_topic(entry.topic.name)
    else:
        raise StatusError(v2.BAD_REQUEST, "there is no publishing or subscription data in settings")


def settings_command(
    settings: v2.Settings,
    *,
    fifo: bool,
    max_attempts: int,
    language: str,
    max_message_bytes: int = MAX_BODY_SIZE,
) -> v2.TelemetryCommand:
    """Return the answer to a client's settings. `fifo` and `max_attempts` are those of its consumer group."""
    out = v2.Settings()
    out.CopyFrom(settings)
    out.metric.on = False
    if settings.HasField("publishing"):
        _merge_producer(out, max_message_bytes)
    else:
        _merge_consumer(out, fifo, max_attempts, language)
    return v2.TelemetryCommand(status=ok(), settings=out)


def _merge_producer(out: v2.Settings, max_message_bytes: int) -> None:
    out.publishing.max_body_size = max_message_bytes
    out.publishing.validate_message_type = True
    out.backoff_policy.max_attempts = PRODUCER_MAX_ATTEMPTS
    backoff = out.backoff_policy.exponential_backoff
    backoff.initial.FromMilliseconds(10)
    backoff.max.FromMilliseconds(1000)
    backoff.multiplier = 2


def _merge_consumer(out: v2.Settings, fifo: bool, max_attempts: int, language: str) -> None:
    subscription, policy = out.subscription, out.backoff_policy
    subscription.fifo = fifo
    subscription.receive_batch_size = RECEIVE_BATCH_SIZE
    subscription.long_polling_timeout.FromSeconds(LONG_POLLING_SECONDS)
    policy.max_attempts = max_attempts
    if language == _NODE_LANGUAGE:
        policy.exponential_backoff.initial.FromSeconds(5000)
        policy.exponential_backoff.max.FromSeconds(7_200_000)
        policy.exponential_backoff.multiplier = 2
        return
    policy.ClearField("customized_backoff")
    for seconds in RETRY_DELAYS:
        policy.customized_backoff.next.add().FromSeconds(seconds)
