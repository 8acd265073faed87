"""Every argument of the public API has values that are refused at once, by errors of our own.

No node listens at the address of these tests: a call that went on would end with another error, or wait.
"""

from __future__ import annotations

import asyncio
import dataclasses
import inspect
import math
from collections.abc import Iterator
from typing import Any

import pytest

from ledgermq import client
from ledgermq.client import Message, PushOptions, QueueLimits, sync
from ledgermq.client.cluster.topic_route import BrokerGroup
from ledgermq.client.errors import ClosedError, LedgerMQError, UsageError
from ledgermq.client.message import LeasedMessage
from ledgermq.proto import rocketmq_v2_pb2 as v2

CLOSED_PORT = "127.0.0.1:1"
CLIENTS = ("Admin", "BrokerGroupAdmin", "Producer", "PullConsumer", "PushConsumer", "SimpleConsumer")
#: Not given to a call by users, or checked elsewhere.
NO_ARGUMENTS = {
    "FoundMessages": "an answer",
    "BrokerGroupStatistics": "an answer",
    "Hold": "an answer",
    "LeasedMessage": "an answer",
    "Message": "its fields are checked when it is sent: MESSAGES",
    "MessageQueue": "checked where it is given: `queue`, `queues`, `offsets`",
    "MessageView": "an answer",
    "ProducerStatistics": "an answer",
    "PushOptions": "OPTIONS",
    "QueueLimits": "LIMITS",
    "RetryLater": "checked when a listener returns it: test_push_listeners",
    "SendReceipt": "an answer",
}
#: Of `read_body(max_bytes)` and the like.
ANSWERS = ("ReceivedMessage",)

WHOLE: list[Any] = ["8", -1, 1.5, True, None, math.nan, [1]]
TIMES: list[Any] = ["5", math.nan, [1], True]
FLAGS: list[Any] = ["no", 1, 0, None, []]
TEXTS: list[Any] = [5, None, b"a", ["a"], {}]
NAMES: list[Any] = [*TEXTS, "a b", "x" * 200, "ä"]
QUEUES: list[Any] = [5, None, "orders", [5], ["orders"], [("orders", "g0")], [("orders", "g0", "0")]]
LEASED: list[Any] = [5, None, "message", Message("orders", b"x")]
SILENT: list[Any] = [5, "silent", [], True]

#: Values that are wrong wherever an argument has this name.
WRONG: dict[str, list[Any]] = {
    "allow_reordering": FLAGS,
    "argument": [5],  # without a selector
    "begin_ms": WHOLE,
    "body": [5, 0, True, [1, 2], {"a": 1}, 2.5, b"", "", "\udc80", None],
    "broadcast_file": [5, b"f", ["f"], True],
    "broker_group": TEXTS,
    "cluster": TEXTS,
    "compress_above": ["8", -1, 1.5, True],
    "consumer_group": NAMES,
    "dry_run": FLAGS,
    "end_ms": WHOLE,
    "even_the_last": FLAGS,
    "even_unexpired": FLAGS,
    "expression": [5, None, b"*", "a && b", "a = 'b'"],
    "fifo": FLAGS,
    "force": FLAGS,
    "group": NAMES,
    "if_not_exists": FLAGS,
    "invisible_ms": [*WHOLE[:4], math.nan, 12 * 3600 * 1000 + 1],
    "key": TEXTS,
    "keys": ["k", 5, None, {"k": 1}, ["k", 5], [""], ["a\nb"], [b"k"], {"k"}],
    "latency_fault_table": [5, "5", None, [], [5], [("a", "b")], [(0, 1)], [(500, True)]],
    "limit": [*WHOLE, 0],
    "listener": [5, None, "listener"],
    "max_attempts": [*WHOLE, 1 << 40],
    "max_buffer_bytes": [*WHOLE, 0],
    "max_parked": [*WHOLE, 1 << 40],
    "max_messages": [*WHOLE, 0],
    "max_pending_bytes": [*WHOLE, 0],
    "message": LEASED,
    "message_group": [5, None, b"g", " ", "a\nb", "g" * 64],
    "message_id": [5, None, b"A", ""],
    "message_type": [5, None, "Normal", "", ["normal"]],
    "messages": [5, None, "orders", [5], ["orders"], [("orders", b"x")], Message("orders", b"x")],
    "name": TEXTS,
    "nameservers": [5, None, b"127.0.0.1:9876", [5], "", "here", "127.0.0.1:99999", [CLOSED_PORT, None], []],
    "node": TEXTS,
    "offset": WHOLE,
    "offsets": [5, "orders", [5], {5: 1}, {client.MessageQueue("orders", "g0", 0): "1"}],
    "older_than_ms": WHOLE,
    "on_done": [5, None, "done"],
    "on_exhausted": [5, "hook"],
    "on_stored": [5, "stored"],
    "options": [5, {}, "options", QueueLimits()],
    "orderly": FLAGS,
    "properties": [5, ["a"], "a", {"a": 5}, {5: "a"}, {"": "a"}, {"a": "\n"}, {"a": None}],
    "queue": [5, None, "orders", ("orders", "g0"), ("orders", "g0", "0"), (5, "g0", 0)],
    "queues": [*WHOLE[:-1], 1 << 40],
    "reset": FLAGS,
    "keep_unread": FLAGS,
    "retention_ms": WHOLE,
    "selector": [5, "first", [0], object()],
    "send_latency_fault_enable": FLAGS,
    "silent": SILENT,
    "source": TEXTS,
    "start": [5, None, "x", "-1", b"latest"],
    "tag": [5, None, b"t", " ", "a|b", "a\nb", ["t"]],
    "timeout_ms": TIMES,
    "timestamp_ms": ["5", -1, 1.5, True, None, 1 << 63],
    "to": [5, None, "x", "", b"latest"],
    "to_node": TEXTS,
    "topic": NAMES,
    "topics": [5, None, "orders", [5], [None]],
    "trace": FLAGS,
    "when_deleted": [5, None, "x", ["raise"]],
    "zone": TEXTS,
}
#: Where the name means something else.
OTHERWISE: dict[tuple[str, str], list[Any]] = {
    ("Admin", "name"): NAMES,  # of a consumer group
    ("Admin", "node"): [5, None, b"127.0.0.1:1", "here", ["127.0.0.1:1"]],
    ("PullConsumer", "queues"): QUEUES,
    ("lag", "queues"): FLAGS,
    ("hold", "offsets"): [5, None, [5], {}, {5: 1}, {client.MessageQueue("orders", "g0", 0): -1}],
    ("hold", "name"): [*NAMES, "x" * 65],
    ("left", "group"): [*TEXTS, "g0"],
    ("Admin", "timeout_ms"): [*TIMES, 0, -1, None],
    ("Producer", "timeout_ms"): [*TIMES, 0, -1, None],
    ("PushConsumer", "timeout_ms"): [*TIMES, -1, None],
    ("commit", "timeout_ms"): [*TIMES, 0, None],
    ("BrokerGroupAdmin", "name"): TEXTS,  # of a broker group
    ("nack", "delay_ms"): WHOLE,
}
OTHERWISE |= {("SimpleConsumer.change_invisible", "invisible_ms"): [*WHOLE, 12 * 3600 * 1000 + 1]}
#: "" is the default of an argument that may be left out; None is that of others.
ADMIN_NAMES = ("group", "drain", "undrain", "remove_group", "lost_group", "forget_group", "add_group")

GIVEN: dict[str, Any] = {
    "body": b"x",
    "invisible_ms": 1000,
    "listener": None,  # see `given`
    "message": LeasedMessage(v2.Message(), "g0"),
    "message_id": "A",
    "messages": [Message("orders", b"x")],
    "name": "g0",
    "group": "billing",
    "node": CLOSED_PORT,
    "offset": 0,
    "offsets": {client.MessageQueue("orders", "g0", 0): 0},
    "on_done": lambda receipt, error: None,
    "queue": client.MessageQueue("orders", "g0", 0),
    "queues": [],
    "retention_ms": 0,
    "timestamp_ms": 1,
    "to": "latest",
    "topic": "orders",
}


async def listener(messages: list[client.MessageView]) -> None: ...


def plain_listener(messages: list[client.MessageView]) -> None: ...


def parameters(function: Any) -> dict[str, inspect.Parameter]:
    return {
        name: each
        for name, each in inspect.signature(function).parameters.items()
        if name != "self" and each.kind is not inspect.Parameter.VAR_KEYWORD
    }


def constructor(module: Any, kind: str) -> dict[str, inspect.Parameter]:
    """The parameters of a class; `**options` of a synchronous one are those of its twin."""
    found = parameters(getattr(module, kind).__init__)
    return {**parameters(getattr(client, kind).__init__), **found} if kind in CLIENTS else found


def methods(kind: type) -> list[str]:
    return [name for name, _ in inspect.getmembers(kind, inspect.isfunction) if not name.startswith("_")]


def given(module: Any, kind: str, method: str, function: Any) -> dict[str, Any]:
    """Return right values for what has no default."""
    found = parameters(function)
    right = {name: GIVEN[name] for name, each in found.items() if each.default is inspect.Parameter.empty}
    if "listener" in right:
        right["listener"] = listener if module is client else plain_listener
    if method == "left":
        right["group"] = BrokerGroup("c", "g0", 1, "n1", (), True)
    if method.startswith("send") and "body" in found:
        right["body"] = b"x"
    return right


def wrong_values(kind: str, method: str, name: str) -> list[Any]:
    for key in ((f"{kind}.{method}", name), (method, name)):
        if key in OTHERWISE:
            return OTHERWISE[key]
    if name == "name" and method in ADMIN_NAMES:
        return TEXTS
    return OTHERWISE.get((kind, name)) or WRONG[name]


def make(module: Any, kind: str) -> Any:
    more = {} if kind in ("Admin", "BrokerGroupAdmin", "Producer") else {"group": "billing"}
    if kind == "PushConsumer":
        more["listener"] = listener if module is client else plain_listener  # type: ignore[assignment]
    return getattr(module, kind)(CLOSED_PORT, **more)


def cases() -> Iterator[tuple[Any, str, str, str]]:
    """Every (module, class, method, argument) of the public API."""
    for module, kinds in ((client, CLIENTS), (sync, (*CLIENTS, "Consumer"))):
        for kind in kinds:
            for name in constructor(module, kind):
                yield module, kind, "__init__", name
            for method in methods(getattr(module, kind)):
                for name in parameters(getattr(getattr(module, kind), method)):
                    yield module, kind, method, name


def test_every_public_name_is_in_the_tables() -> None:
    errors = {name for name in client.__all__ if name.endswith("Error")}
    assert set(client.__all__) - set(CLIENTS) - errors - {"__version__"} == set(NO_ARGUMENTS)
    assert set(sync.__all__) == {*CLIENTS, "Consumer", *ANSWERS}


def test_every_argument_has_wrong_values() -> None:
    missing = []
    for module, kind, method, name in cases():
        try:
            assert len(wrong_values(kind, method, name)) >= 1
        except KeyError:
            missing.append(f"{module.__name__}.{kind}.{method}({name})")
    assert not missing, "an argument without a check, or without a row in WRONG"


async def refused(module: Any, kind: str, method: str, name: str, value: Any) -> None:
    """Use a wrong value. Raises: what the call raises."""
    if method == "__init__":
        right = given(module, kind, method, lambda: None)
        right |= {each: GIVEN[each] for each, p in constructor(module, kind).items() if p.default is p.empty}
        if "listener" in right:
            right["listener"] = listener if module is client else plain_listener
        getattr(module, kind)(**{"nameservers": CLOSED_PORT, **right, name: value})
        return
    it = make(module, kind)
    try:
        function = getattr(it, method)
        arguments = {**given(module, kind, method, function), name: value}
        if module is client:
            answer = function(**arguments)
            if inspect.isawaitable(answer):
                await asyncio.wait_for(answer, 20)
        else:
            await asyncio.to_thread(function, **arguments)
    finally:
        if method != "close":
            closing = it.close() if module is client else asyncio.to_thread(it.close)
            await closing


@pytest.mark.parametrize(
    ("module", "kind"), [(client, each) for each in CLIENTS] + [(sync, each) for each in CLIENTS]
)
async def test_wrong_arguments_are_refused_by_our_own_errors(module: Any, kind: str) -> None:
    found = []
    for _, _, method, name in [case for case in cases() if case[:2] == (module, kind)]:
        for value in wrong_values(kind, method, name):
            right = (
                parameters(getattr(getattr(module, kind), method))
                if method != "__init__"
                else constructor(module, kind)
            )
            default = right[name].default
            if type(value) is type(default) and value == default:
                continue  # it may be left out
            where = f"{kind}.{method}({name}={value!r})"
            try:
                await refused(module, kind, method, name, value)
            except UsageError as error:
                assert not isinstance(error, ClosedError), where
                continue
            except Exception as error:  # noqa: BLE001 - what it is, is the finding
                found.append(f"{where}: {error!r}")
                continue
            found.append(f"{where}: taken")
    assert not found, "\n".join(found)


def test_wrong_arguments_of_the_short_consumer_are_refused() -> None:
    for name in constructor(sync, "Consumer"):
        for value in wrong_values("Consumer", "__init__", name):
            if value is None and name == "timeout_ms":
                continue
            right = {"nameservers": CLOSED_PORT, "group": "billing", "topic": "orders", name: value}
            with pytest.raises(UsageError):
                sync.Consumer(**right)


#: Fields of Message, as the arguments of a send.
MESSAGES = {each.name: WRONG[each.name] for each in dataclasses.fields(Message)}


@pytest.mark.parametrize("field", MESSAGES)
async def test_wrong_fields_of_a_message_are_refused_when_it_is_sent(field: str) -> None:
    async with client.Producer(CLOSED_PORT) as producer:
        for value in MESSAGES[field]:
            message = Message(**{"topic": "orders", "body": b"x", field: value})
            for send in (producer.send, producer.send_nowait, producer.send_oneway):
                with pytest.raises(UsageError):
                    answer = send(message)
                    if inspect.isawaitable(answer):
                        await answer
    with sync.Producer(CLOSED_PORT) as plain:
        for value in MESSAGES[field]:
            message = Message(**{"topic": "orders", "body": b"x", field: value})
            for call in (plain.send, plain.send_async, plain.send_oneway):
                with pytest.raises(UsageError):
                    call(message)


@pytest.mark.parametrize(
    "beside",
    [
        {"body": b"y"},
        {"body": b""},
        {"tag": "t"},
        {"keys": ["k"]},
        {"properties": {"a": "b"}},
        {"message_group": "g"},
    ],
)
async def test_what_is_given_beside_a_message_is_not_dropped(beside: dict[str, Any]) -> None:
    async with client.Producer(CLOSED_PORT) as producer:
        with pytest.raises(UsageError, match="a Message and"):
            await producer.send(Message("orders", b"x"), **beside)
        with pytest.raises(UsageError, match="a Message and"):
            producer.send_nowait(Message("orders", b"x"), **beside)
    with sync.Producer(CLOSED_PORT) as producer:
        for send in (producer.send, producer.send_async, producer.send_oneway):
            with pytest.raises(UsageError, match="a Message and"):
                send(Message("orders", b"x"), **beside)


OPTIONS: dict[str, list[Any]] = {
    **{name: [*WHOLE, 1 << 50] for name in (each.name for each in dataclasses.fields(PushOptions))},
    "limits": [5, None, {}, "limits", (1, 2, 3)],
    "allocation": [5, None, "x", ["sticky"], "same-zone"],
    "zone": TEXTS,
}
LIMITS: dict[str, list[Any]] = {each.name: [*WHOLE, 0, 1 << 50] for each in dataclasses.fields(QueueLimits)}


@pytest.mark.parametrize(("kind", "table"), [(PushOptions, OPTIONS), (QueueLimits, LIMITS)])
def test_options_are_refused_where_they_are_made(kind: type, table: dict[str, list[Any]]) -> None:
    for name, values in table.items():
        for value in values:
            with pytest.raises(UsageError):
                kind(**{name: value})


def test_a_deadline_is_checked_when_it_is_changed() -> None:
    asynchronous = client.Producer(CLOSED_PORT)
    with sync.Producer(CLOSED_PORT) as producer:
        for each in (asynchronous, producer):
            with pytest.raises(LedgerMQError, match="timeout_ms"):
                each.timeout_ms = "5"  # type: ignore[assignment]
