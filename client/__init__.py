"""Producers, consumers, admin and the command line.

`from ledgermq.client import Producer, PullConsumer, SimpleConsumer, Admin, Message`: asyncio.
`from ledgermq.client.sync import Producer, Consumer`: the same without asyncio.
"""

# ruff: noqa: E402  # gRPC is loaded by the imports; its setting must stand before them.

import os

# gRPC reads this once, when it is loaded: no "Got goaway" on stderr whenever a broker stops. What it has to say reaches
# us as exceptions. Set for the loading only, so that processes started by this one decide for themselves.
_QUIETED = "GRPC_VERBOSITY" not in os.environ
os.environ.setdefault("GRPC_VERBOSITY", "ERROR")

from .admin import Admin
from .errors import LedgerMQError
from .message import LeasedMessage, Message, MessageQueue, MessageView, SendReceipt
from .producer import Producer
from .pull_consumer import PullConsumer
from .simple_consumer import SimpleConsumer

if _QUIETED:
    del os.environ["GRPC_VERBOSITY"]

__all__ = [
    "Admin",
    "LeasedMessage",
    "LedgerMQError",
    "Message",
    "MessageQueue",
    "MessageView",
    "Producer",
    "PullConsumer",
    "SendReceipt",
    "SimpleConsumer",
]
