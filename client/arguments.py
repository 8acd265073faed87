"""Argument checks that need no broker. Every public call makes them before anything is sent or kept. Pure.

Owns: errors about argument values, with advice on what to pass instead. Limits of a record (sizes of body and
labels) are checked where it is encoded.

Use `checked(topic=a_topic, queues=whole(0))` for calls that are not made per message. Other calls check by
hand.
"""

from __future__ import annotations

import inspect
import math
import os
import re
import reprlib
from collections.abc import Callable, Iterable, MutableMapping, Sequence
from functools import wraps
from types import UnionType
from typing import Any, Final, TypeVar, cast

from .errors import InvalidMessageError, InvalidNameError, UsageError
from .message import MessageQueue

F = TypeVar("F", bound=Callable[..., Any])
#: Gets the name and value of an argument. Raises: UsageError.
Check = Callable[[str, Any], None]

#: Maximum lease that brokers grant, ms.
LONGEST_LEASE_MS: Final = 12 * 3600 * 1000
_MAX_TOPIC: Final = 127
_MAX_CONSUMER_GROUP: Final = 120
_MAX_HOLD: Final = 64
_NAME: Final = re.compile(r"[%|a-zA-Z0-9_-][%|a-zA-Z0-9_.-]*")
#: Operators in RocketMQ's SQL filters. A tag may contain such a sign: "a=b".
_SQL: Final = re.compile(
    r"\s(AND|OR|NOT|IN|IS|BETWEEN|CONTAINS|STARTSWITH|ENDSWITH)\s|\s(=|<>|<=?|>=?)(\s|$)"
    r"|^\s*\w+\s*(<>|<=?|>=?)\s*[\w'.-]+\s*$"
)
_CONTROL: Final = re.compile(r"[\x00-\x1f\x7f-\x9f]")
_TIME_DIGITS_MAX: Final = 18  # as brokers read it: must fit into 64 bits


def checked(**checks: Check) -> Callable[[F], F]:
    """Check arguments of a function or coroutine function by name. Defaults are not checked."""

    def decorate(function: F) -> F:
        signature = inspect.signature(function)

        def check(arguments: tuple[Any, ...], named: dict[str, Any]) -> None:
            for name, value in signature.bind(*arguments, **named).arguments.items():
                if name in checks:
                    checks[name](name, value)

        @wraps(function)
        def call(*arguments: Any, **named: Any) -> Any:
            check(arguments, named)
            return function(*arguments, **named)

        @wraps(function)
        async def call_later(*arguments: Any, **named: Any) -> Any:
            check(arguments, named)
            return await function(*arguments, **named)

        return cast("F", call_later if inspect.iscoroutinefunction(function) else call)

    return decorate


def wrong(name: str, value: object, wanted: str) -> UsageError:
    """Return the error for an argument."""
    return UsageError(f"{name} is {reprlib.repr(value)}", "", f"It must be {wanted}")


def a_topic(name: str, value: Any) -> None:
    check_name("topic", value)


def a_consumer_group(name: str, value: Any) -> None:
    check_name("group", value)


def a_hold(name: str, value: Any) -> None:
    check_name("hold", value)


def an_iterable(name: str, value: object) -> None:
    """Accept any iterable. Its items are checked when it is read: that may be possible only once."""
    if not isinstance(value, Iterable) or isinstance(value, str | bytes):
        raise wrong(name, value, "a list or another iterable")


def texts(name: str, value: object) -> None:
    if not isinstance(value, Sequence) or not all(isinstance(each, str) for each in value):
        raise wrong(name, value, "a list of str")
    if isinstance(value, str):
        raise wrong(name, value, "a list of str; this is a single one")


def a_function(name: str, value: object) -> None:
    if not callable(value):
        raise UsageError(f"{name} is {reprlib.repr(value)}", "", "Give a function")


def a_time(name: str, value: object) -> None:
    if not isinstance(value, int) or isinstance(value, bool) or not 0 < value < 1 << 63:
        step = "Give ms since the epoch, for example 1767225600000"
        raise UsageError(f"{name}={reprlib.repr(value)} is no time", "", step)


def start_position(name: str, value: Any) -> None:
    check_start(value)


def a_queue(name: str, value: Any) -> None:
    check_queue(value)


def whole(least: int, most: int = (1 << 63) - 1) -> Check:
    """Accept a whole number within these bounds."""

    def check(name: str, value: object) -> None:
        if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= most:
            to = f" to {most:,}" if most < 1 << 62 else " on"
            raise wrong(name, value, f"a whole number from {least:,}{to}")

    return check


def one_of(*choices: str) -> Check:
    """Accept one of these texts."""

    def check(name: str, value: object) -> None:
        if value not in choices:
            raise wrong(name, value, "one of " + ", ".join(choices))

    return check


def instance_of(kind: type | UnionType, wanted: str) -> Check:
    """Accept an object of that type."""

    def check(name: str, value: object) -> None:
        if not isinstance(value, kind):
            raise wrong(name, value, wanted)

    return check


a_text: Final = instance_of(str, "a str")
a_flag: Final = instance_of(bool, "True or False")
a_path: Final = instance_of(str | os.PathLike, "the path of a file")
silent_groups: Final = instance_of(MutableMapping, "None, or a dict that takes why broker groups are silent")


def none_or(check: Check) -> Check:
    """Accept None, or what `check` accepts."""
    return lambda name, value: None if value is None else check(name, value)


def empty_or(check: Check) -> Check:
    """Accept "", or what `check` accepts."""
    return lambda name, value: None if value == "" else check(name, value)


# --- names, texts, filters ----------------------------------------------------------------------------------


def check_name(kind: str, name: str) -> None:
    """Check the name of a topic, consumer group or hold as every broker does. Raises: InvalidNameError."""
    if not isinstance(name, str):
        raise InvalidNameError(kind, name, f"it is of type {type(name).__name__}; a str is wanted")
    limit = {"topic": _MAX_TOPIC, "hold": _MAX_HOLD}.get(kind, _MAX_CONSUMER_GROUP)
    if not name:
        raise InvalidNameError(kind, name, "it is empty")
    if len(name) > limit:
        raise InvalidNameError(kind, name, f"it has {len(name)} characters, {limit} are allowed")
    if not _NAME.fullmatch(name):
        bad = next((each for each in name if not _NAME.fullmatch("_" + each)), name[0])
        raise InvalidNameError(kind, name, f"the character {bad!r} is not allowed")


def check_count(name: str, count: int) -> None:
    """Check that a count is 1 or more: otherwise a call would wait for ever. Raises: UsageError."""
    if not isinstance(count, int) or isinstance(count, bool) or count < 1:
        raise UsageError(f"{name} is {count!r}", "", "It must be a whole number from 1 on")


def check_text(field: str, text: str) -> None:
    """Check a tag, key, property or message group. Raises: InvalidMessageError."""
    if not isinstance(text, str):
        raise InvalidMessageError(field, f"{text!r} is of type {type(text).__name__}; a str is wanted")
    if not text.strip():
        raise InvalidMessageError(field, "it is empty or only white space")
    if _CONTROL.search(text):
        raise InvalidMessageError(field, f"{text!r} contains a control character")
    encode_text(field, text)


def check_tag_filter(expression: str) -> None:
    """Check that a filter is "*", "" (both: everything) or tags joined by "||". Raises: UsageError.

    A broker takes everything between two "||" as one tag, so another operator would match nothing.
    """
    if not isinstance(expression, str):
        raise UsageError(
            f"{expression!r} is not a tag filter",
            "",
            'Give a str: tags joined by ||, for example "a || b", or * for all',
        )
    tags = expression.split("||")
    if _SQL.search(expression):
        raise UsageError(
            f"{expression!r} is an SQL filter, and messages are filtered by tags only",
            "As a tag it would match nothing, and the consumer group would pass all messages over",
            'Name tags joined by ||, for example "a || b"; properties can be looked at by the listener',
        )
    foreign = next((sign for tag in tags for sign in ("&&", "|") if sign in tag), "")
    if foreign or (len(tags) > 1 and not any(tag.strip() for tag in tags)):
        raise UsageError(
            f"{expression!r} is not a tag filter: "
            f"{f'{foreign!r} joins no tags' if foreign else 'it names no tag'}",
            "",
            'Name tags joined by ||, for example "a || b", or * for all',
        )


def encode_text(field: str, text: str) -> bytes:
    """Return the text as UTF-8. Raises: InvalidMessageError (lone surrogates, as in non-UTF-8 arguments)."""
    try:
        return text.encode()
    except UnicodeEncodeError:
        raise InvalidMessageError(field, f"{text[:100]!r} cannot be written as UTF-8") from None


# --- numbers and times --------------------------------------------------------------------------------------


def check_timeout(timeout_ms: float, *, least: float = -math.inf) -> None:
    """Check a timeout. Raises: UsageError (not a number, or less than `least`)."""
    is_number = isinstance(timeout_ms, int | float) and not isinstance(timeout_ms, bool)
    if not is_number or math.isnan(timeout_ms) or timeout_ms < least:
        at_least = "" if least == -math.inf else f" from {least:g} on"
        raise UsageError(f"timeout_ms is {timeout_ms!r}", "", f"It must be a number of ms{at_least}")


def check_wait(timeout_ms: float | None) -> None:
    """Check how long to wait for a message; None: for ever. Raises: UsageError."""
    if timeout_ms is not None:
        check_timeout(timeout_ms)
        if math.isinf(timeout_ms):
            raise UsageError(f"timeout_ms is {timeout_ms!r}", "", "Give None to wait without end")


def check_lease(name: str, lease_ms: int, *, least: int = 1) -> None:
    """Check how long a message is to be invisible to others, ms. Raises: UsageError."""
    is_whole = isinstance(lease_ms, int) and not isinstance(lease_ms, bool)
    if not is_whole or not least <= lease_ms <= LONGEST_LEASE_MS:
        step = f"It must be a whole number of ms, {least} to {LONGEST_LEASE_MS:,} (12 h)"
        raise UsageError(f"{name} is {lease_ms!r}", "", step)


def check_start(start: str) -> None:
    """Check a start position. Raises: UsageError."""
    if start in ("earliest", "latest"):
        return
    if not (
        isinstance(start, str) and start.isascii() and start.isdecimal() and len(start) <= _TIME_DIGITS_MAX
    ):
        step = 'It must be "earliest", "latest" or a time in ms since the epoch, as text: "1767225600000"'
        raise UsageError(f"start is {start!r}", "", step)


# --- queues -------------------------------------------------------------------------------------------------


def check_offset(offset: int) -> None:
    """Check a queue offset. Raises: UsageError."""
    if not isinstance(offset, int) or isinstance(offset, bool) or not 0 <= offset < 1 << 63:
        raise UsageError(f"{offset!r} is no queue offset", "They count from 0")


def check_queue(queue: MessageQueue) -> MessageQueue:
    """Check a queue; a tuple of the three parts is accepted. Raises: UsageError."""
    parts: tuple[Any, ...] = tuple(queue) if isinstance(queue, tuple | list) else ()
    named = len(parts) == 3 and isinstance(parts[0], str) and isinstance(parts[1], str)
    if named and isinstance(parts[2], int) and not isinstance(parts[2], bool):
        return MessageQueue(*parts)
    raise UsageError(
        f"{queue!r} is no queue",
        "",
        "Give a MessageQueue(topic, broker_group, queue_id), as queues() returns them",
    )
