"""Telemetry streams: settings up, merged settings down, for the life of a client.

Owns: which clients have a stream open at this node. Must not: rely on settings (a client may send none for minutes
after a restart), or wait for a client to read.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import suppress
from typing import Any

import grpc
from google.protobuf.message import DecodeError

from ledgermq.proto import rocketmq_v2_pb2 as v2

from ..wire.status import StatusError
from ..wire.validation import check_group, check_topic
from .client_settings import settings_command
from .sessions import TooManyClientsError

logger = logging.getLogger(__name__)

#: (fifo, max attempts) of a consumer group.
GroupPolicy = Callable[[str], tuple[bool, int]]


class TelemetryStreams:
    """The open streams of this node, by client id."""

    def __init__(
        self,
        group_policy: GroupPolicy,
        on_sign_of_life: Callable[[str], None],
        on_end: Callable[[str], None],
        max_message_bytes: int,
        max_clients: int,
    ) -> None:
        self._group_policy = group_policy
        self._on_sign_of_life = on_sign_of_life
        self._on_end = on_end
        self._max_message_bytes = max_message_bytes
        self._max_clients = max_clients
        self._open: Counter[str] = Counter()

    def client_ids(self) -> Iterable[str]:
        """Return the clients with an open stream."""
        return list(self._open)

    async def serve(
        self, requests: AsyncIterator[bytes], context: Any, client_id: str, language: str
    ) -> None:
        """Serve one stream until the client ends it."""
        try:
            if client_id not in self._open and len(self._open) >= self._max_clients:
                raise TooManyClientsError(self._max_clients)
            self._on_sign_of_life(client_id)
        except TooManyClientsError as error:
            await context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, str(error))
        await context.send_initial_metadata(())  # some clients wait for the headers before they write
        self._open[client_id] += 1
        try:
            async for raw in requests:
                with suppress(TooManyClientsError):  # it is connected, so it lives
                    self._on_sign_of_life(client_id)
                try:
                    command = v2.TelemetryCommand.FromString(raw)
                except DecodeError:
                    await context.abort(
                        grpc.StatusCode.INVALID_ARGUMENT, "the telemetry command cannot be decoded"
                    )
                if command.HasField("settings"):
                    await context.write(await self._answer(command.settings, context, language))
        finally:
            self._open[client_id] -= 1
            if not self._open[client_id]:
                del self._open[client_id]
                self._on_end(client_id)

    async def _answer(self, settings: v2.Settings, context: Any, language: str) -> v2.TelemetryCommand:
        try:
            check_settings(settings)
        except StatusError as error:
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, error.message)
        fifo, max_attempts = self._group_policy(settings.subscription.group.name)
        return settings_command(
            settings,
            fifo=fifo,
            max_attempts=max_attempts,
            language=language,
            max_message_bytes=self._max_message_bytes,
        )


def check_settings(settings: v2.Settings) -> None:
    """Raises: StatusError."""
    if settings.HasField("publishing"):
        for topic in settings.publishing.topics:
            check_topic(topic.name)
    elif settings.HasField("subscription"):
        check_group(settings.subscription.group.name)
        for entry in settings.subscription.subscriptions:
            check_topic(entry.topic.name)
    else:
        raise StatusError(v2.BAD_REQUEST, "there is no publishing or subscription data in settings")
