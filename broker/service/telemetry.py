"""Telemetry streams: a client sends its settings, the server answers with the merged settings.

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

from ..replica import Replica
from ..wire.status import StatusError
from ..wire.validation import check_group, check_topic
from .client_settings import settings_command
from .sessions import ClientsHere, OpenStreams, TooManyClientsError
from .signs_of_life import SignsOfLife

logger = logging.getLogger(__name__)

#: (fifo, max attempts) of a consumer group that does not exist yet.
DEFAULT_GROUP_POLICY: Final = (False, 17)


@dataclass(eq=False, repr=False)
class TelemetryStreams:
    """Serves the Telemetry streams of this node."""

    _streams: OpenStreams
    _clients: ClientsHere
    _signs_of_life: SignsOfLife
    _replica: Replica
    _max_message_bytes: int

    async def serve(
        self, requests: AsyncIterator[bytes], context: Any, client_id: str, language: str
    ) -> None:
        """Serve one stream until the client ends it."""
        try:
            self._streams.check_room(client_id)
            self._signs_of_life.heard(client_id)
        except TooManyClientsError as error:
            await context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, str(error))
        await context.send_initial_metadata(())  # some clients wait for the headers before they write
        self._streams.opened(client_id)
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
            if self._streams.closed(client_id):
                self._clients.stream_ended(client_id)

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
        group = self._replica.state.groups.find(consumer_group)
        return (group.fifo, group.max_attempts) if group is not None else DEFAULT_GROUP_POLICY


def check_settings(settings: v2.Settings) -> None:
    """Check the topics and the consumer group that settings name. Raises: StatusError."""
    if settings.HasField("publishing"):
        for topic in settings.publishing.topics:
            check_topic(topic.name)
    elif settings.HasField("subscription"):
        check_group(settings.subscription.group.name)
        for entry in settings.subscription.subscriptions:
            check_topic(entry.topic.name)
    else:
        raise StatusError(v2.BAD_REQUEST, "there is no publishing or subscription data in settings")
