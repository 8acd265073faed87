"""Errors of the broker's state machine and storage.

BrokerError
├── StateError                  the log and the state do not fit: the node must stop, replicas would differ
│   ├── UnknownCommandError     a command (or a version of one) that this build does not know (D23)
│   └── DivergedError           an entry contradicts the state it is applied to
├── NotThereError               something was named that does not exist
│   ├── TopicNotFoundError
│   ├── QueueNotFoundError
│   └── ConsumerGroupNotFoundError
├── LimitReachedError           there are as many topics, queues, consumer groups, clients as a setting allows
├── InvalidReceiptHandleError   a receipt handle that is not ours, damaged, or no longer the current one
├── CertificateError            the files that a port should speak TLS with cannot be used
├── CheckpointError             a checkpoint that cannot be used
│   └── CheckpointVersionError  ... because a newer LedgerMQ wrote it
└── ConsumeQueueError           queue files that do not fit the checkpoint
"""

from __future__ import annotations

from ledgermq.proto.foreign_text import safe_text


class BrokerError(Exception):
    """Base of the package's errors."""


class CertificateError(BrokerError):
    """The messaging ports cannot speak TLS."""

    def __init__(self, path: str, reason: str) -> None:
        super().__init__(
            f"{path} (tls_certificate) and its key cannot be used: {reason}. Give PEM files that belong"
            " together and can be read, or set client_tls to plaintext, then start again"
        )


class StateError(BrokerError):
    """The log cannot be applied to this state. Continuing would make replicas diverge."""


class UnknownCommandError(StateError):
    """A committed command that this build cannot apply."""

    def __init__(self, command_type: int, version: int, index: int) -> None:
        super().__init__(
            f"entry {index} holds command type {command_type} version {version}, which this build does not"
            " know; a newer LedgerMQ wrote it. Install that version on this node and start it again; nothing"
            " was changed"
        )
        self.command_type = command_type
        self.version = version
        self.index = index


class DivergedError(StateError):
    """An entry that contradicts the state: this node has diverged from the broker group."""

    def __init__(self, reason: str, index: int) -> None:
        super().__init__(
            f"entry {index} does not fit this node's state: {reason}. Compare the nodes with `ledgermq dump`"
            " and `ledgermq check`, then rebuild this one: ledgermq broker --rejoin"
        )
        self.reason = reason
        self.index = index


class NotThereError(BrokerError):
    """A topic, queue or consumer group that does not exist."""


class TopicNotFoundError(NotThereError):
    def __init__(self, topic: str | int) -> None:
        super().__init__(f'topic "{safe_text(str(topic))}" does not exist')
        self.topic = topic


class QueueNotFoundError(NotThereError):
    def __init__(self, topic: str | int, queue_id: int) -> None:
        super().__init__(f'topic "{safe_text(str(topic))}" has no queue {queue_id}')
        self.topic = topic
        self.queue_id = queue_id


class ConsumerGroupNotFoundError(NotThereError):
    def __init__(self, consumer_group: str | int) -> None:
        super().__init__(f'consumer group "{safe_text(str(consumer_group))}" does not exist')
        self.consumer_group = consumer_group


class LimitReachedError(BrokerError):
    """A limit of the configuration is reached. The text names the setting and a remedy."""

    def __init__(self, what: str, limit: int, setting: str, room: str) -> None:
        super().__init__(
            f"{what}; the limit is {limit} ({setting} of the brokers). Nothing was made. {room}, or raise"
            f" {setting} on every node"
        )


class InvalidReceiptHandleError(BrokerError):
    """A receipt handle that cannot be used."""

    def __init__(self, reason: str) -> None:
        super().__init__(f"receipt handle is not valid: {reason}")
        self.reason = reason


class CheckpointError(BrokerError):
    """A checkpoint file that cannot be used."""

    def __init__(self, path: str, reason: str) -> None:
        super().__init__(f"{path}: {reason}")
        self.path = path
        self.reason = reason


class CheckpointVersionError(CheckpointError):
    """A checkpoint of a newer format."""

    def __init__(self, path: str, found: int, supported: int) -> None:
        super().__init__(
            path,
            f"the checkpoint has format version {found}; this build reads up to version {supported}. "
            "Start this node with the LedgerMQ version that wrote it; nothing was changed",
        )
        self.found = found
        self.supported = supported


class ConsumeQueueError(BrokerError):
    """The files of a ConsumeQueue do not match the checkpoint."""

    def __init__(self, path: str, reason: str, block: tuple[tuple[int, int], int] | None = None) -> None:
        """`block`: queue key and number of the damaged block; None: it cannot be rebuilt from the log."""
        super().__init__(
            f"{path}: {reason}. Move this node's folder `consumequeue` away and start the node again: it is"
            " made again from the log. If that fails, too, let the other nodes send everything: ledgermq"
            " broker --rejoin"
        )
        self.block = block
        self.path = path
        self.reason = reason
