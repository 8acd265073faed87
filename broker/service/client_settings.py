"""Settings that official clients need to start and behave (docs/protocol.md, Settings).

Pure: echoes the client's own settings with the server's values merged in.
"""

from __future__ import annotations

from typing import Final

from ledgermq.proto import rocketmq_v2_pb2 as v2
from ledgermq.proto.record import MAX_BODY_SIZE

from ..wire.status import ok

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
