"""Validation of names and messages in MessagingService, with the codes and texts that official clients know.

Pure. Limits and order of the checks: docs/protocol.md, Sending.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Final

from ledgermq.proto import rocketmq_v2_pb2 as v2
from ledgermq.proto.foreign_text import safe_text
from ledgermq.proto.record import MAX_BODY_SIZE, MAX_KEYS, MAX_PROPERTIES_SIZE

from .status import StatusError

MAX_TOPIC_LENGTH: Final = 127
MAX_GROUP_LENGTH: Final = 120
MAX_HOLD_LENGTH: Final = 64
MAX_USER_PROPERTIES: Final = 128
MAX_MESSAGE_GROUP_SIZE: Final = 63
MAX_INVISIBLE_MS: Final = 12 * 3600 * 1000
#: Maximum length of client ids and message ids; those of official clients have at most about 120 characters.
MAX_ID_LENGTH: Final = 255
#: Maximum of messages or acknowledgements in one request: each costs some 15 µs of the event loop.
MAX_ENTRIES: Final = 4096
MAX_FILTER_LENGTH: Final = 4096
#: Allowance (bytes) for system properties other than tag and keys: ids, addresses, a trace context.
_MAX_OTHER_PROPERTIES: Final = 8192

#: Names become folder names (`consumequeue/<topic>@<id>`), so none begins with a dot. Official clients refuse
#: dots.
_NAME: Final = re.compile(r"[%|a-zA-Z0-9_-][%|a-zA-Z0-9_.-]*")
_ALLOWED: Final = 'characters besides letters, digits, "%", "|", "-", "_" and, not in the first place, "."'
_CONTROL: Final = re.compile(r"[\x00-\x1f\x7f-\x9f]")
_SYSTEM_TOPICS: Final = (
    "TBW102 SCHEDULE_TOPIC_XXXX BenchmarkTest RMQ_SYS_TRANS_HALF_TOPIC RMQ_SYS_TRACE_TOPIC "
    "RMQ_SYS_TRANS_OP_HALF_TOPIC TRANS_CHECK_MAX_TIME_TOPIC SELF_TEST_TOPIC OFFSET_MOVED_EVENT "
    "CHECKPOINT_TOPIC"
)
SYSTEM_TOPICS: Final = frozenset(_SYSTEM_TOPICS.split())
_RESERVED_KEYS: Final = (
    "TRACE_ON MSG_REGION KEYS TAGS WAIT DELAY RETRY_TOPIC REAL_TOPIC REAL_QID TRAN_MSG PGROUP "
    "MIN_OFFSET MAX_OFFSET BUYER_ID ORIGIN_MESSAGE_ID TRANSFER_FLAG CORRECTION_FLAG MQ2_FLAG "
    "RECONSUME_TIME UNIQ_KEY MAX_RECONSUME_TIMES CONSUME_START_TIME POP_CK POP_CK_OFFSET "
    "1ST_POP_TIME TRAN_PREPARED_QUEUE_OFFSET DUP_INFO EXTEND_UNIQ_INFO INSTANCE_ID CORRELATION_ID "
    "REPLY_TO_CLIENT TTL ARRIVE_TIME PUSH_REPLY_TIME CLUSTER MSG_TYPE INNER_MULTI_QUEUE_OFFSET "
    "TIMER_DELAY_MS TIMER_DELAY_SEC TIMER_DELIVER_MS TIMER_ENQUEUE_MS TIMER_DEQUEUE_MS "
    "TIMER_ROLL_TIMES TIMER_OUT_MS TIMER_DEL_UNIQKEY TIMER_DELAY_LEVEL __BORNHOST BORN_TIMESTAMP "
    "DLQ_ORIGIN_TOPIC DLQ_ORIGIN_MESSAGE_ID __CRC32#"
)
RESERVED_KEYS: Final = frozenset(_RESERVED_KEYS.split())


def check_topic(name: str) -> None:
    """Check a topic name. Raises: StatusError (ILLEGAL_TOPIC)."""
    if reason := topic_problem(name):
        raise StatusError(v2.ILLEGAL_TOPIC, reason)


def check_resource(topic: v2.Resource) -> None:
    """Check a topic that is returned or stored unchanged. Raises: StatusError (ILLEGAL_TOPIC)."""
    check_topic(topic.name)
    namespace = topic.resource_namespace
    if namespace and (problem := id_problem("resource namespace", namespace)):
        raise StatusError(v2.ILLEGAL_TOPIC, problem)


def topic_problem(name: str) -> str:
    """Return the reason why `name` cannot be a user's topic; "": it can."""
    problem = _name_problem("topic", name, MAX_TOPIC_LENGTH)
    if not problem and (name in SYSTEM_TOPICS or name.startswith("rmq_sys_")):
        return f"cannot access system topic {name}"
    return problem


def check_consumer_group(name: str) -> None:
    """Check a consumer group name. Raises: StatusError (ILLEGAL_CONSUMER_GROUP)."""
    if reason := group_problem(name):
        raise StatusError(v2.ILLEGAL_CONSUMER_GROUP, reason)


def group_problem(name: str) -> str:
    """Return the reason why `name` cannot be a consumer group; "": it can."""
    problem = _name_problem("consumer group", name, MAX_GROUP_LENGTH)
    if not problem and name.startswith("CID_RMQ_SYS_"):
        return f"cannot use system consumer group {name}"
    return problem


def hold_problem(name: str) -> str:
    """Return the reason why `name` cannot be that of a hold; "": it can."""
    return _name_problem("the name of a hold", name, MAX_HOLD_LENGTH)


def _name_problem(what: str, name: str, length_max: int) -> str:
    if not name.strip():
        return f"{what} cannot be empty"
    if len(name) > length_max:
        return f"{what} is longer than {length_max} characters"
    return "" if _NAME.fullmatch(name) else f'{what} "{safe_text(name)}" has {_ALLOWED}'


def id_problem(what: str, text: str) -> str:
    """Return the reason why a client cannot use `text` as an id; "": it can.

    Ids are stored, compared, logged and displayed.
    """
    if not text.strip():
        return f"{what} cannot be empty"
    if len(text) > MAX_ID_LENGTH:
        return f"{what} is longer than {MAX_ID_LENGTH} characters"
    if not text.isprintable():
        return f"{what} {safe_text(text, 100)} has a character that cannot be printed"
    return ""


def check_client_id(client_id: str) -> None:
    """Check a client id. Raises: StatusError (BAD_REQUEST, CLIENT_ID_REQUIRED)."""
    if problem := id_problem("client id", client_id):
        raise StatusError(v2.BAD_REQUEST if client_id.strip() else v2.CLIENT_ID_REQUIRED, problem)


def text_problem(what: str, text: str) -> str:
    """Return the reason why a text cannot be shown unescaped in logs and on terminals; "": it can."""
    return f"the {what} {safe_text(text, 100)} has a control character" if _CONTROL.search(text) else ""


def check_messages(messages: Sequence[v2.Message], max_message_bytes: int = MAX_BODY_SIZE) -> str:
    """Check a whole SendMessage request; return its topic. Raises: StatusError."""
    if not messages:
        raise StatusError(v2.MESSAGE_CORRUPTED, "no message to send")
    if len(messages) > MAX_ENTRIES:
        raise StatusError(
            v2.PAYLOAD_TOO_LARGE, f"{len(messages):,} messages in one request; send at most {MAX_ENTRIES:,}"
        )
    first = messages[0].topic
    check_resource(first)
    for i, message in enumerate(messages):
        if i and message.topic != first:
            raise StatusError(v2.MESSAGE_CORRUPTED, "topic in message is not same")
        check_message(message, max_message_bytes)
    return first.name


def check_message(message: v2.Message, max_message_bytes: int) -> None:
    """Check the parts of a message that do not depend on its topic. Raises: StatusError."""
    size = len(message.body)
    if size == 0:
        raise StatusError(v2.MESSAGE_BODY_EMPTY, "message body cannot be empty")
    if size > max_message_bytes:
        raise StatusError(
            v2.MESSAGE_BODY_TOO_LARGE, f"message body cannot exceed the max {max_message_bytes}"
        )
    system = message.system_properties
    labels = _check_user_properties(message) if message.user_properties else 0
    if tag := system.tag:
        _check_tag(tag)
        labels += _bytes((tag,))
    if keys := system.keys:
        _check_keys(keys)
        labels += _bytes(keys)
    if labels > MAX_PROPERTIES_SIZE:
        raise StatusError(v2.MESSAGE_PROPERTIES_TOO_LARGE, f"properties exceed {MAX_PROPERTIES_SIZE} bytes")
    if problem := id_problem("message id", system.message_id):
        raise StatusError(v2.ILLEGAL_MESSAGE_ID, problem)
    if system.ByteSize() > MAX_PROPERTIES_SIZE + _MAX_OTHER_PROPERTIES:
        raise StatusError(
            v2.MESSAGE_PROPERTIES_TOO_LARGE, f"system properties exceed {MAX_PROPERTIES_SIZE} bytes"
        )
    for what, text in (("born host", system.born_host), ("trace context", system.trace_context)):
        if text and (problem := text_problem(what, text)):
            raise StatusError(v2.MESSAGE_CORRUPTED, problem)
    if system.HasField("message_group"):
        _check_message_group(system.message_group)


def _check_keys(keys: Sequence[str]) -> None:
    if len(keys) > MAX_KEYS:
        raise StatusError(v2.MESSAGE_PROPERTIES_TOO_LARGE, f"too many keys, max is {MAX_KEYS}")
    for key in keys:
        if not key.strip() or _CONTROL.search(key):
            raise StatusError(v2.ILLEGAL_MESSAGE_KEY, "message key is blank or has a control character")


def _bytes(texts: Iterable[str]) -> int:
    return sum(len(text.encode()) for text in texts)


def _check_user_properties(message: v2.Message) -> int:
    """Check the user properties; return the size of their keys and values in bytes. Raises: StatusError."""
    properties = message.user_properties
    if len(properties) > MAX_USER_PROPERTIES:
        raise StatusError(
            v2.MESSAGE_PROPERTIES_TOO_LARGE, f"too many user properties, max is {MAX_USER_PROPERTIES}"
        )
    for key, value in properties.items():
        if key in RESERVED_KEYS:
            raise StatusError(v2.ILLEGAL_MESSAGE_PROPERTY_KEY, f"property is used by system: {key}")
        if _CONTROL.search(key) or _CONTROL.search(value):
            problem = f"property {safe_text(key, 100)} has a control character"
            raise StatusError(v2.ILLEGAL_MESSAGE_PROPERTY_KEY, problem)
    return _bytes(properties.keys()) + _bytes(properties.values())


def _check_tag(tag: str) -> None:
    if not tag.strip() or "|" in tag or _CONTROL.search(tag):
        raise StatusError(v2.ILLEGAL_MESSAGE_TAG, 'tag is blank, has "|" or a control character')


def _check_message_group(name: str) -> None:
    if not name.strip() or len(name.encode()) > MAX_MESSAGE_GROUP_SIZE or _CONTROL.search(name):
        raise StatusError(
            v2.ILLEGAL_MESSAGE_GROUP,
            f"message group is blank, longer than {MAX_MESSAGE_GROUP_SIZE} bytes, or has a control character",
        )


def derived_type(system: v2.SystemProperties) -> v2.MessageType:
    """Return the message type by its properties; the client's own field counts for transactions only."""
    if system.message_type == v2.TRANSACTION:
        return v2.TRANSACTION
    if system.HasField("delivery_timestamp"):
        return v2.DELAY
    return v2.FIFO if system.HasField("message_group") else v2.NORMAL


def invisible_ms(request: v2.ReceiveMessageRequest, minimum_ms: int) -> int:
    """Return the invisible time (ms) of a receive without auto-renew. Raises: StatusError."""
    duration = request.invisible_duration.ToMilliseconds()
    if duration < minimum_ms:
        raise StatusError(v2.ILLEGAL_INVISIBLE_TIME, f"the invisibleTime is too small. min is {minimum_ms}")
    if duration > MAX_INVISIBLE_MS:
        raise StatusError(
            v2.ILLEGAL_INVISIBLE_TIME, f"the invisibleTime is too large. max is {MAX_INVISIBLE_MS}"
        )
    return duration
