"""Producers, consumers, admin and the command line.

`from ledgermq.client import Producer, PullConsumer, SimpleConsumer, Admin, Message`: asyncio.
`from ledgermq.client.sync import Producer, PullConsumer, SimpleConsumer, Admin`: the same without asyncio, and Consumer, a loop.
"""

# ruff: noqa: E402  # gRPC is loaded by the imports; its setting must stand before them.

import os

# gRPC reads this once, when it is loaded: no "Got goaway" on stderr whenever a broker stops. What it has to say reaches
# us as exceptions. Set for the loading only, so that processes started by this one decide for themselves.
# And without the event engine's own threads a message on a stream wakes one thread less (docs/performance.md).
_SETTINGS = {
    "GRPC_VERBOSITY": "ERROR",
    "GRPC_EXPERIMENTS": "-event_engine_client,-event_engine_listener",
}
_OURS = _SETTINGS.keys() - os.environ.keys()
os.environ.update({name: _SETTINGS[name] for name in _OURS})

from .admin import Admin
from .errors import LedgerMQError
from .group_admin import GroupAdmin
from .message import LeasedMessage, Message, MessageQueue, MessageView, SendReceipt
from .message_query import FoundMessages
from .owned_queue import QueueLimits
from .producer import Producer
from .producer_statistics import GroupStatistics, ProducerStatistics
from .pull_consumer import PullConsumer
from .push_consumer import PushConsumer
from .push_options import PushOptions, RetryLater
from .simple_consumer import SimpleConsumer

for name in _OURS:
    del os.environ[name]

__all__ = [
    "Admin",
    "FoundMessages",
    "GroupAdmin",
    "GroupStatistics",
    "LeasedMessage",
    "LedgerMQError",
    "Message",
    "MessageQueue",
    "MessageView",
    "Producer",
    "ProducerStatistics",
    "PullConsumer",
    "PushConsumer",
    "PushOptions",
    "QueueLimits",
    "RetryLater",
    "SendReceipt",
    "SimpleConsumer",
]
