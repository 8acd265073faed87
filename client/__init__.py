"""Client library: producers, consumers, admin, and the command line.

`from ledgermq.client import Producer, PullConsumer, SimpleConsumer, Admin, Message`: asyncio.
`from ledgermq.client.sync import Producer, PullConsumer, SimpleConsumer, Admin`: the same without asyncio,
and Consumer, a loop.

Names are imported on first use: the command line prints its help before gRPC and numpy are loaded.
Importing has no side effects: no environment variable, signal handler, log handler or thread. Connections
live in the event loop of the caller, without gRPC's threads and settings.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    __version__: str
    from .admin.admin import Admin
    from .admin.broker_groups import BrokerGroupAdmin
    from .admin.held_queues import Hold
    from .admin.message_query import FoundMessages
    from .cluster.every_group import BrokerGroupsSilentError, PartlyChangedError, PartlyRefusedError
    from .consume.bulk_reader import NodesUnreachableError
    from .consume.pull_consumer import PullConsumer
    from .consume.simple_consumer import SimpleConsumer
    from .errors import (
        AlreadyExistsError,
        AttemptEndedError,
        BatchError,
        BrokerGroupDrainingError,
        BrokerGroupsGoneError,
        BrokerUnreachableError,
        BufferFullError,
        ClosedError,
        ConsumerGroupNotFoundError,
        CorruptMessageError,
        DiskFullError,
        FencedError,
        InvalidAddressError,
        InvalidHandleError,
        InvalidMessageError,
        InvalidNameError,
        JobForgottenError,
        LedgerMQError,
        MessagesDeletedError,
        MessageTooLargeError,
        MissingExtraError,
        NameserversDownError,
        NoBrokersError,
        NoQuorumError,
        NotANameserverError,
        NotLeaderError,
        OffsetOutOfRangeError,
        OffsetsFileError,
        OtherBrokerGroupError,
        OutcomeUnknownError,
        RefusedError,
        RouteError,
        RowsDifferError,
        SendTimeoutError,
        SequenceGapError,
        StaleRouteError,
        TooManyRequestsError,
        TopicNotFoundError,
        UsageError,
    )
    from .message import LeasedMessage, Message, MessageQueue, MessageView, SendReceipt
    from .produce.producer import Producer
    from .produce.producer_statistics import BrokerGroupStatistics, ProducerStatistics
    from .push.listener_calls import WrongListenerError
    from .push.options import PushOptions, RetryLater
    from .push.owned_queue import QueueLimits
    from .push.push_consumer import PushConsumer

#: Modules of the public names that are not in errors.py.
_HOMES: Final = {
    "Admin": "admin.admin",
    "BrokerGroupsSilentError": "cluster.every_group",
    "FoundMessages": "admin.message_query",
    "Hold": "admin.held_queues",
    "BrokerGroupAdmin": "admin.broker_groups",
    "BrokerGroupStatistics": "produce.producer_statistics",
    "LeasedMessage": "message",
    "Message": "message",
    "MessageQueue": "message",
    "MessageView": "message",
    "NodesUnreachableError": "consume.bulk_reader",
    "PartlyChangedError": "cluster.every_group",
    "PartlyRefusedError": "cluster.every_group",
    "Producer": "produce.producer",
    "ProducerStatistics": "produce.producer_statistics",
    "PullConsumer": "consume.pull_consumer",
    "PushConsumer": "push.push_consumer",
    "PushOptions": "push.options",
    "QueueLimits": "push.owned_queue",
    "RetryLater": "push.options",
    "SendReceipt": "message",
    "SimpleConsumer": "consume.simple_consumer",
    "WrongListenerError": "push.listener_calls",
}

__all__ = [
    "Admin",
    "AlreadyExistsError",
    "AttemptEndedError",
    "BatchError",
    "BrokerGroupAdmin",
    "BrokerGroupDrainingError",
    "BrokerGroupStatistics",
    "BrokerGroupsGoneError",
    "BrokerGroupsSilentError",
    "BrokerUnreachableError",
    "BufferFullError",
    "ClosedError",
    "ConsumerGroupNotFoundError",
    "CorruptMessageError",
    "DiskFullError",
    "FencedError",
    "FoundMessages",
    "Hold",
    "InvalidAddressError",
    "InvalidHandleError",
    "InvalidMessageError",
    "InvalidNameError",
    "JobForgottenError",
    "LeasedMessage",
    "LedgerMQError",
    "Message",
    "MessageQueue",
    "MessageTooLargeError",
    "MessageView",
    "MessagesDeletedError",
    "MissingExtraError",
    "NameserversDownError",
    "NoBrokersError",
    "NoQuorumError",
    "NodesUnreachableError",
    "NotANameserverError",
    "NotLeaderError",
    "OffsetOutOfRangeError",
    "OffsetsFileError",
    "OtherBrokerGroupError",
    "OutcomeUnknownError",
    "PartlyChangedError",
    "PartlyRefusedError",
    "Producer",
    "ProducerStatistics",
    "PullConsumer",
    "PushConsumer",
    "PushOptions",
    "QueueLimits",
    "RefusedError",
    "RetryLater",
    "RouteError",
    "RowsDifferError",
    "SendReceipt",
    "SendTimeoutError",
    "SequenceGapError",
    "SimpleConsumer",
    "StaleRouteError",
    "TooManyRequestsError",
    "TopicNotFoundError",
    "UsageError",
    "WrongListenerError",
    "__version__",
]


def __getattr__(name: str) -> Any:
    """Import the module that defines a public name."""
    if name == "__version__":  # version of the installed package
        from importlib.metadata import version

        return version("ledgermq")
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = globals()[name] = getattr(import_module(f".{_HOMES.get(name, 'errors')}", __name__), name)
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
