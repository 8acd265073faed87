"""Producers, consumers, admin and the command line.

`from ledgermq.client import Producer, PullConsumer, SimpleConsumer, Admin, Message`: asyncio.
`from ledgermq.client.sync import Producer, Consumer`: the same without asyncio.
"""

from .admin import Admin
from .errors import LedgerMQError
from .message import LeasedMessage, Message, MessageQueue, MessageView, SendReceipt
from .producer import Producer
from .pull_consumer import PullConsumer
from .simple_consumer import SimpleConsumer

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
