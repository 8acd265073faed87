"""Errors of the client library. Each has fields; its text says what happened, why, and what to do next.

LedgerMQError
├── UsageError                  the call itself is wrong
│   ├── MessageTooLargeError    a body above 4 MiB
│   ├── InvalidMessageError     an empty body, a bad tag, key, property or message group
│   ├── InvalidNameError        the name of a topic or consumer group is not allowed
│   ├── InvalidAddressError     the address of a nameserver or node is malformed
│   ├── ClosedError             used after close()
│   └── BufferFullError         `send_nowait` or `send_async` with no room left (retryable)
├── RouteError                  no node to ask, or no answer to the question
│   ├── NameserversDownError    no nameserver answers
│   ├── NotANameserverError     something else answers at the address of a nameserver
│   ├── NoBrokersError          the nameserver answers, but no broker group has registered
│   ├── TopicNotFoundError
│   ├── BrokerUnreachableError  a node does not answer
│   ├── BrokerGroupsGoneError   no node of a broker group is up
│   └── BrokerGroupsSilentError a broker group does not answer before a change of all of them (every_group.py)
├── RefusedError                a node or nameserver refused; `code` names the reason
│   ├── NotLeaderError · NoQuorumError · TooManyRequestsError · DiskFullError · StaleRouteError
│   ├── ConsumerGroupNotFoundError · AlreadyExistsError · OffsetOutOfRangeError · SequenceGapError
│   ├── BrokerGroupDrainingError      the broker group is being drained
│   ├── OtherBrokerGroupError         another broker group has the name of the one that was meant
│   ├── FencedError             another consumer owns the queue now
│   └── InvalidHandleError      a receipt handle that is no longer valid
├── OutcomeUnknownError         sent, but no answer: it may or may not have been stored
│   └── SendTimeoutError        the deadline passed before the answer came
├── PartlyChangedError          a change of several broker groups stopped half way (every_group.py)
│   └── PartlyRefusedError      because one of them refuses it for good
├── BatchError                  a batch cannot be written exactly once
│   ├── AttemptEndedError       another attempt at this part of the batch has begun
│   ├── JobForgottenError       the brokers do not know the job, or no longer
│   └── RowsDifferError         an earlier attempt stored other messages
├── MessagesDeletedError        retention deleted messages before a consumer that wants to know had read them
├── OffsetsFileError            the file of a broadcast consumer cannot be used
├── CorruptMessageError         fetched bytes fail their checksum, or a message cannot be decoded
└── MissingExtraError           an optional part of the installation is missing

`retryable`: the same call may succeed later.  `refresh_route`: the route used by the call is outdated.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from difflib import get_close_matches
from typing import ClassVar, Self

from ledgermq.proto import route_pb2 as pb


class LedgerMQError(Exception):
    """Base of all client errors. `what`, `why` and `next_step` are the parts of its text."""

    retryable: ClassVar[bool] = False
    refresh_route: ClassVar[bool] = False
    # of a call to a broker group: an attempt without an answer may have taken effect
    perhaps_done: bool = False
    # of a batch: positions of the messages that failed, in the order of the batch
    failed_messages: tuple[range, ...] = ()

    def __init__(self, what: str, why: str = "", next_step: str = "") -> None:
        self.what = what
        self.why = why
        self.next_step = next_step
        super().__init__(" ".join(_sentence(part) for part in (what, why, next_step) if part))

    def __copy__(self) -> Self:
        copied = type(self).__new__(type(self), *self.args)
        copied.__dict__.update(self.__dict__)
        return copied


def _sentence(text: str) -> str:
    """Close a part with a full stop, unless it ends in a command (after a colon) or is closed already."""
    text = text.strip()
    closed = text.endswith((".", "?", "!")) or ": ledgermq " in text or ": pip " in text
    return text if closed else text + "."


def similar_names(name: str, known: Iterable[str]) -> list[str]:
    """Return up to three of the `known` names that resemble `name`, the most similar first."""
    return get_close_matches(name, list(known), n=3, cutoff=0.6)


def did_you_mean(similar: Sequence[str]) -> str:
    """Return a question with the similar names, or "" if there are none."""
    quoted = [f'"{name}"' for name in similar]
    return f"Did you mean {' or '.join(quoted)}?" if quoted else ""


def shortened(names: Sequence[str], most: int = 5) -> str:
    """Return the first names, and the number of the others."""
    more = len(names) - most
    return ", ".join(names[:most]) + (f", and {more:,} more" if more > 0 else "")


# --- usage ----------------------------------------------------------------------------------------------


class UsageError(LedgerMQError):
    """The caller must change the call."""


class MessageTooLargeError(UsageError):
    """A body is above the limit. Sizes are bytes."""

    def __init__(self, size: int, limit: int) -> None:
        super().__init__(
            f"the message body has {size:,} bytes; the limit is {limit:,}{' (4 MiB)' * (limit == 4 << 20)}",
            "Nothing was sent",
            "Split it, or store it elsewhere and send its address",
        )
        self.size = size
        self.limit = limit


class InvalidMessageError(UsageError):
    """A part of the message that no broker accepts."""

    def __init__(self, field: str, reason: str) -> None:
        super().__init__(f"the message has an invalid {field}: {reason}", "Nothing was sent")
        self.field = field
        self.reason = reason


class InvalidNameError(UsageError):
    """The name of a topic or consumer group is not allowed."""

    def __init__(self, kind: str, name: str, reason: str) -> None:
        super().__init__(
            f"{name!r} is not a valid {kind} name: {reason}",
            "Allowed are letters, digits, _ - % | and (but not in the first place) a dot, "
            "at most 127 characters for topics and 120 for consumer groups",
        )
        self.kind = kind
        self.name = name


class InvalidAddressError(UsageError, ValueError):
    """The address of a nameserver or node is malformed. No call was made.

    Also a ValueError, as in earlier versions.
    """

    def __init__(self, address: str, reason: str) -> None:
        super().__init__(f"{address!r} is not {reason}" if address else reason)
        self.address = address
        self.reason = reason


class ClosedError(UsageError):
    """Used before start() or after close()."""

    def __init__(self, what: str) -> None:
        super().__init__(f"this {what} is closed", "", "Make a new one")


class BufferFullError(UsageError):
    """The buffer has no room for `send_nowait` or `send_async`. Wait for `Producer.ready()`, then retry."""

    retryable = True

    def __init__(
        self,
        pending_bytes: int,
        limit: int,
        next_step: str = "Await producer.ready() before the next send_nowait(), or use send()",
    ) -> None:
        super().__init__(
            f"{pending_bytes:,} of at most {limit:,} bytes wait for their acknowledgement",
            "Messages are sent faster than the brokers acknowledge them",
            next_step,
        )
        self.pending_bytes = pending_bytes
        self.limit = limit


# --- routes -------------------------------------------------------------------------------------------------


class RouteError(LedgerMQError):
    """No node to ask, or no answer to the question."""

    retryable = True
    refresh_route = True


class NameserversDownError(RouteError):
    """No nameserver answers."""

    def __init__(self, addresses: Sequence[str]) -> None:
        count = len(addresses)
        verb = "does" if count == 1 else "do"
        super().__init__(
            f"{count} of {count} nameservers {verb} not answer ({', '.join(addresses)})",
            "",
            "Start one: ledgermq up",
        )
        self.addresses = tuple(addresses)


class NotANameserverError(RouteError):
    """Another service answers at the address of a nameserver."""

    retryable = False

    def __init__(self, address: str) -> None:
        host, _, port = address.rpartition(":")
        if port == "9876":
            why, next_step = "Another program has the port, or stands in between", "Check the host"
        else:
            why = (
                "It is probably a broker's port (8081 messaging, 8082 log, 5557 HTTP); "
                "a nameserver listens on 9876 unless told otherwise"
            )
            next_step = f"Give its port: --nameserver {host or 'HOST'}:9876"
        super().__init__(f"what answers at {address} is not a nameserver", why, next_step)
        self.address = address


class NoBrokersError(RouteError):
    """The nameserver answers, but no broker group has registered."""

    def __init__(self, asked: str, next_step: str = "See: ledgermq cluster status") -> None:
        super().__init__(
            f"no broker group is registered at the nameserver {asked}",
            "The brokers are down, or know another nameserver",
            next_step,
        )
        self.asked = asked


class TopicNotFoundError(RouteError):
    """No broker group has the topic."""

    retryable = False

    def __init__(
        self, topic: str, *, cluster: str = "", asked: str = "", similar: Sequence[str] = ()
    ) -> None:
        place = f' in cluster "{cluster}"' if cluster else ""
        who = f" (asked {asked})" if asked else ""
        super().__init__(
            f'topic "{topic}" does not exist{place}{who}',
            did_you_mean(similar),
            f"Create it: ledgermq topic create {topic}",
        )
        self.topic = topic
        self.cluster = cluster
        self.asked = asked
        self.similar = tuple(similar)

    def again(self) -> TopicNotFoundError:
        """Return a copy of the error for another caller."""
        return TopicNotFoundError(self.topic, cluster=self.cluster, asked=self.asked, similar=self.similar)


class BrokerUnreachableError(RouteError):
    """A node does not answer. `not_sent`: there was no connection; otherwise the call may have reached it."""

    def __init__(self, address: str, reason: str, *, not_sent: bool = False) -> None:
        super().__init__(
            f"the broker node at {address} does not answer", reason, "See: ledgermq cluster status"
        )
        self.address = address
        self.reason = reason
        self.not_sent = not_sent


class BrokerGroupsGoneError(RouteError):
    """These broker groups have no running node and were not removed, so their part of an answer is missing.

    `since`: time of the last contact by broker group, as far as known.
    """

    def __init__(
        self,
        groups: Sequence[str],
        since: Mapping[str, str] | None = None,
        why: str = "The others alone would be an incomplete answer, or change. Nothing was changed",
    ) -> None:
        one = len(groups) == 1
        named = ", ".join(f'"{name}"' for name in groups)
        heard = [
            since[name] if one else f"{name} {since[name]}" for name in groups if since and name in since
        ]
        last_heard = f" (last heard: {', '.join(heard)})" if heard else ""
        super().__init__(
            f"broker group{'' if one else 's'} {named} {'does' if one else 'do'} not answer: no node of "
            f"{'it' if one else 'them'} is up{last_heard}",
            why,
            f"Start {'its' if one else 'their'} nodes and repeat it (ledgermq cluster status). "
            f"{'It' if one else 'One'} is lost "
            f"for good: ledgermq cluster forget-group {groups[0] if one else 'NAME'}",
        )
        self.groups = tuple(groups)


# --- refusals -----------------------------------------------------------------------------------------------


class RefusedError(LedgerMQError):
    """A definite refusal: nothing was stored or changed. `code` is the name of the refusal code."""

    def __init__(
        self,
        code: str,
        message: str,
        *,
        retry_after_ms: int = 0,
        leader_id: str = "",
        leader_address: str = "",
        may_retry: bool | None = None,
    ) -> None:
        super().__init__(message or f"refused: {code}")
        self.code = code
        self.retry_after_ms = retry_after_ms
        self.leader_id = leader_id
        self.leader_address = leader_address
        if may_retry is not None:
            self.retryable = may_retry  # type: ignore[misc]  # the refusal itself knows better than its class


class NotLeaderError(RefusedError):
    """The node does not lead its broker group. `leader_address`: the leader's; "" during an election."""

    retryable = True
    refresh_route = True


class NoQuorumError(RefusedError):
    """The broker group has no leader now."""

    retryable = True
    refresh_route = True


class TooManyRequestsError(RefusedError):
    """A limit was reached. Retry after `retry_after_ms`."""

    retryable = True


class DiskFullError(RefusedError):
    """The broker group accepts no messages until disk space is freed."""

    retryable = True


class BrokerGroupDrainingError(RefusedError):
    """The broker group is draining and accepts no new messages; others do. Send the message again."""

    retryable = True
    refresh_route = True


class StaleRouteError(RefusedError):
    """The topic was created again or lost queues after the route was fetched."""

    retryable = True
    refresh_route = True


class OtherBrokerGroupError(RefusedError):
    """Another broker group has the name and address of the intended one. Nothing was done.

    `broker_group` and `group_id` identify the intended one, as far as this client knows it.
    """

    retryable = True
    refresh_route = True
    broker_group = ""
    group_id = 0


class ConsumerGroupNotFoundError(RefusedError):
    """The consumer group does not exist. `similar`: names of others that resemble its name."""

    similar: tuple[str, ...] = ()


class AlreadyExistsError(RefusedError):
    """The object to be created exists already."""


class OffsetOutOfRangeError(RefusedError):
    """The offset is already deleted, or not there yet."""


class SequenceGapError(RefusedError):
    """An earlier section of this producer is missing."""

    retryable = True


class FencedError(RefusedError):
    """Another consumer of the consumer group owns the queue now. Nothing was changed."""


class InvalidHandleError(RefusedError):
    """The lease of a received message is over. The message is delivered again."""


class OutcomeUnknownError(LedgerMQError):
    """Sent, but not answered: the message may or may not be stored."""

    retryable = True


class SendTimeoutError(OutcomeUnknownError):
    """The deadline passed. `sent` tells whether any node may have stored the message."""

    def __init__(self, topic: str, timeout_ms: int, *, sent: bool, reason: str) -> None:
        outcome = "it may or may not be stored" if sent else "it is not stored"
        super().__init__(
            f'a message to topic "{topic}" was not acknowledged within {timeout_ms:,} ms; {outcome}',
            # The reason may be a broker's text that already ends with the next step
            reason.removesuffix("See: ledgermq cluster status").rstrip(". "),
            "See: ledgermq cluster status",
        )
        self.topic = topic
        self.timeout_ms = timeout_ms
        self.sent = sent


class BatchError(LedgerMQError):
    """A batch cannot be written, or not exactly once (`ledgermq.client.batches`)."""


class AttemptEndedError(BatchError):
    """Another attempt at this part of the batch has begun. It finishes the part; this one must end."""

    def __init__(self, reason: str) -> None:
        super().__init__("this attempt at a part of a batch has ended", reason)


class JobForgottenError(BatchError):
    """No broker group knows the job, so none can tell what is stored of the batch. Nothing was sent."""

    def __init__(self, job: str, batch: int, topic: str) -> None:
        super().__init__(
            f'no broker group of topic "{topic}" knows job "{job}", so batch {batch} cannot be written '
            "exactly once",
            "They forget a job 7 days after its last write, or the topic was created again since",
            "Start with a new checkpoint, or write the batch again with the risk of storing it twice: "
            'option("failOnForgottenJob", "false")',
        )
        self.job = job
        self.batch = batch


class RowsDifferError(BatchError):
    """An earlier attempt at this part stored other messages: the job is not deterministic."""

    def __init__(self, topics: str) -> None:
        super().__init__(
            f"attempts at the same part of a batch wrote different messages to: {topics}",
            "The query gives other rows, or another division into partitions, each time it runs (random "
            "values, the current time, a changed number of partitions)",
            "Make it deterministic, then start with a new checkpoint",
        )


def _replaced(broker_group: str, group_id: int) -> str:
    return f'broker group "{broker_group}" (id {group_id:016x}) was replaced by another one of its name'


def message_of_replaced(broker_group: str, group_id: int, *, sent: bool) -> LedgerMQError:
    """Return the error of a message that waited for a replaced broker group.

    `sent`: it may have been stored there.
    """
    what = _replaced(broker_group, group_id)
    if sent:
        return OutcomeUnknownError(
            f"{what} before it had acknowledged the message",
            "It may or may not be stored in the former one, and the new one cannot tell",
            "Send it again if a second copy does no harm",
        )
    return _other_group(f"{what}. The message is certainly not stored. Send it again", broker_group, group_id)


def position_of_replaced(broker_group: str, group_id: int, positions: str) -> OtherBrokerGroupError:
    """Return the error of a consumer with positions in a replaced broker group."""
    return _other_group(
        f"{_replaced(broker_group, group_id)}. The position of {positions} means nothing in the new one. "
        "Choose where to go on: seek(), or begin anew: subscribe() or assign() again; "
        "or leave it: unassign()",
        broker_group,
        group_id,
        may_retry=False,
    )


def _other_group(
    text: str, broker_group: str, group_id: int, may_retry: bool | None = None
) -> OtherBrokerGroupError:
    error = OtherBrokerGroupError("OTHER_GROUP", text, may_retry=may_retry)
    error.broker_group, error.group_id = broker_group, group_id
    return error


class CorruptMessageError(LedgerMQError):
    """Fetched bytes fail their checksum, or a producer stored a message that cannot be decoded.

    In the second case `queue_offset` identifies the message. The error is raised where the message is used,
    not where it is fetched, so a loop that catches it continues with the next message.
    """

    def __init__(self, topic: str, queue_id: int, reason: str, queue_offset: int | None = None) -> None:
        self.topic = topic
        self.queue_id = queue_id
        self.queue_offset = queue_offset
        if queue_offset is not None:
            super().__init__(
                f'the message at offset {queue_offset} of topic "{topic}" queue {queue_id} '
                f"cannot be read: {reason}",
                "Its checksum is right: it was stored like this by its producer",
                "Catch this error to go on with the next message, and correct the producer",
            )
            return
        super().__init__(
            f'what was fetched from topic "{topic}" queue {queue_id} is damaged: {reason}',
            "A node's disk or memory changed the bytes",
            "Find the node: ledgermq dump, then ledgermq check",
        )


class MessagesDeletedError(LedgerMQError):
    """Retention deleted messages before they were read. The next poll continues at offset `begin`."""

    def __init__(self, topic: str, queue_id: int, count: int, begin: int) -> None:
        super().__init__(
            f'{count:,} messages of topic "{topic}" queue {queue_id} were deleted before they were read; '
            "the queue begins at "
            f"offset {begin} now",
            "This consumer was behind for longer than the messages are kept",
            "Poll again to go on there; keep messages longer: "
            "retention_hours of the brokers, or ledgermq topic update",
        )
        self.topic = topic
        self.queue_id = queue_id
        self.count = count
        self.begin = begin


class OffsetsFileError(LedgerMQError):
    """The offsets file of a broadcast consumer cannot be read, written or shared."""

    def __init__(self, path: str, reason: str, next_step: str) -> None:
        super().__init__(f"the offsets file {path} cannot be used", reason, next_step)
        self.path = path


class MissingExtraError(LedgerMQError):
    """A command needs an optional part of LedgerMQ that is not installed."""

    def __init__(self, what: str, extra: str, module: str) -> None:
        super().__init__(
            f"{what} needs the module {module}, which is not installed",
            f"It belongs to the extra [{extra}]",
            f"Install it: pip install 'ledgermq[{extra}]' "
            f"(in a clone: make {'spark' if extra == 'spark' else 'setup'})",
        )
        self.extra = extra
        self.module = module


_BY_CODE: dict[int, type[RefusedError]] = {
    pb.NOT_LEADER: NotLeaderError,
    pb.NO_QUORUM: NoQuorumError,
    pb.SHUTTING_DOWN: NoQuorumError,
    pb.TOO_MANY_REQUESTS: TooManyRequestsError,
    pb.DISK_FULL: DiskFullError,
    pb.GROUP_DRAINING: BrokerGroupDrainingError,
    pb.STALE_ROUTE: StaleRouteError,
    pb.QUEUE_NOT_FOUND: StaleRouteError,
    pb.OTHER_GROUP: OtherBrokerGroupError,
    pb.GROUP_NOT_FOUND: ConsumerGroupNotFoundError,
    pb.ALREADY_EXISTS: AlreadyExistsError,
    pb.OFFSET_OUT_OF_RANGE: OffsetOutOfRangeError,
    pb.SEQUENCE_GAP: SequenceGapError,
    pb.FENCED: FencedError,
}


def error_of(refusal: pb.Refusal) -> LedgerMQError:
    """Translate a refusal into the error to raise."""
    if refusal.code in (pb.OUTCOME_UNKNOWN, pb.SLAVE_TIMEOUT, pb.SLAVES_AWAY):
        return OutcomeUnknownError(refusal.message or "the outcome is unknown: it may or may not be stored")
    make: Callable[..., RefusedError] = _BY_CODE.get(refusal.code, RefusedError)
    return make(
        pb.RefusalCode.Name(refusal.code),
        refusal.message,
        retry_after_ms=refusal.retry_after_ms,
        leader_id=refusal.leader_id,
        leader_address=refusal.leader_address,
        may_retry=True if refusal.retryable else None,
    )
