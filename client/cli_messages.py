"""Commands `ledgermq send` and `ledgermq consume`."""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Annotated

import typer

from ledgermq.proto.record import MAX_BODY_SIZE

from .admin import Admin
from .cli_group import position
from .cli_output import (
    DEFAULT_NAMESERVER,
    JsonOption,
    NameserverOption,
    err,
    out,
    print_error,
    print_json,
    run,
)
from .errors import CorruptMessageError, GroupNotFoundError, MessageTooLargeError, UsageError
from .message import LeasedMessage, SendReceipt
from .producer import Producer
from .simple_consumer import RECEIVE_BATCH, SimpleConsumer

_DAY = 86_400.0  # seconds; the longest --timeout


def register(app: typer.Typer) -> None:
    """Add the commands to the app."""
    app.command("send")(send)
    app.command("consume")(consume)


@dataclass(frozen=True, slots=True)
class _Plan:
    """What to send: `bodies` in turn, or `count` bodies of `size` bytes."""

    topic: str
    bodies: tuple[bytes, ...]
    count: int
    tag: str
    keys: tuple[str, ...]
    message_group: str
    rate: int  # messages per second, 0: as fast as they are acknowledged


def send(
    topic: Annotated[str, typer.Argument(metavar="TOPIC", help="Where to send to.")],
    body: Annotated[
        str | None,
        typer.Argument(metavar="[BODY|-]", help="The message; - reads one message per line of stdin."),
    ] = None,
    count: Annotated[int, typer.Option("--count", "-c", min=1, help="Send it this many times.")] = 1,
    size: Annotated[
        int, typer.Option("--size", min=0, max=2**31 - 1, help="Send a body of so many bytes instead.")
    ] = 0,
    tag: Annotated[str, typer.Option("--tag", help="Tag for filters.")] = "",
    key: Annotated[list[str] | None, typer.Option("--key", help="Key for look-ups; may be repeated.")] = None,
    message_group: Annotated[
        str, typer.Option("--message-group", help="Messages of one group stay in order.")
    ] = "",
    rate: Annotated[int, typer.Option("--rate", min=0, help="At most so many messages per second.")] = 0,
    timeout: Annotated[
        float,
        typer.Option("--timeout", min=0.1, max=_DAY, help="Seconds for each message, with all retries."),
    ] = 10.0,
    nameserver: NameserverOption = DEFAULT_NAMESERVER,
    as_json: JsonOption = False,
) -> None:
    """Send messages and wait until they are committed."""
    bodies = _bodies(body, size)
    plan = _Plan(topic, bodies, count * len(bodies), tag, tuple(key or ()), message_group, rate)
    started = time.monotonic()
    receipts = run(_send(plan, nameserver, int(timeout * 1000)))
    seconds = time.monotonic() - started
    if as_json:
        print_json([receipt._asdict() for receipt in receipts])
    elif len(receipts) == 1:
        r = receipts[0]
        out.print(
            f"stored {r.message_id} in {r.topic}[{r.queue_id}] of {r.broker_group} at offset {r.queue_offset}"
        )
    else:
        out.print(
            f"stored {len(receipts):,} messages in {seconds:.2f} s ({len(receipts) / seconds:,.0f} msg/s)"
        )


def _bodies(body: str | None, size: int) -> tuple[bytes, ...]:
    """Return what to send. Raises: typer.BadParameter, MessageTooLargeError; then nothing was sent."""
    if size and body is not None:
        raise typer.BadParameter("give BODY or --size, not both")
    if max(size, len(body or "")) > MAX_BODY_SIZE:
        raise MessageTooLargeError(size or len(body or ""), MAX_BODY_SIZE)
    if size:
        return (b"x" * size,)
    if body == "-":
        return _lines(sys.stdin.buffer)
    if not body:
        raise typer.BadParameter("nothing to send: give BODY, - for stdin, or --size BYTES")
    return (os.fsencode(body),)


def _lines(source: Iterable[bytes]) -> tuple[bytes, ...]:
    """Return the lines that are not empty; all are checked before the first is sent."""
    lines = [line.rstrip(b"\n") for line in source]
    for number, line in enumerate(lines, 1):
        if len(line) > MAX_BODY_SIZE:
            raise UsageError(
                f"line {number} of stdin has {len(line):,} bytes; the limit is {MAX_BODY_SIZE:,} (4 MiB)",
                "Nothing was sent",
                "Split it, or store it elsewhere and send its address",
            )
    return tuple(line for line in lines if line)


async def _send(plan: _Plan, nameserver: str, timeout_ms: int) -> list[SendReceipt]:
    async with Producer(nameserver, timeout_ms=timeout_ms) as producer:
        await producer.prepare(plan.topic)
        futures = []
        started = time.monotonic()
        for number in range(plan.count):
            if plan.rate and (ahead := number / plan.rate - (time.monotonic() - started)) > 0:
                await asyncio.sleep(ahead)
            elif number % 256 == 255:
                await asyncio.sleep(0)  # let requests go out while more are made
            await producer.ready()
            futures.append(
                producer.send_nowait(
                    plan.topic,
                    plan.bodies[number % len(plan.bodies)],
                    tag=plan.tag,
                    keys=plan.keys,
                    message_group=plan.message_group,
                )
            )
        results = await asyncio.gather(*futures, return_exceptions=True)
        failures = [result for result in results if isinstance(result, BaseException)]
        if failures:
            if len(results) > 1:
                err.print(
                    f"{len(failures):,} of {len(results):,} messages were not acknowledged; the first error:"
                )
            raise failures[0]
        return [result for result in results if isinstance(result, SendReceipt)]


def consume(
    topic: Annotated[str, typer.Argument(metavar="TOPIC", help="What to read.")],
    group: Annotated[
        str, typer.Option("--group", "-g", help="Consumer group; created when it does not exist.")
    ],
    count: Annotated[
        int, typer.Option("--count", "-c", min=0, help="Stop after so many messages; 0: never.")
    ] = 0,
    timeout: Annotated[
        float,
        typer.Option(
            "--timeout", min=0, max=_DAY, help="Stop after so many seconds without a message; 0: never."
        ),
    ] = 0,
    start: Annotated[
        str, typer.Option("--from", help="Where a new group starts: earliest, latest, or a time.")
    ] = "earliest",
    tag: Annotated[str, typer.Option("--tag", help='Only these tags, for example "a || b".')] = "*",
    quiet: Annotated[bool, typer.Option("--quiet", help="Print only how many came.")] = False,
    nameserver: NameserverOption = DEFAULT_NAMESERVER,
    as_json: JsonOption = False,
) -> None:
    """Receive, print and acknowledge messages."""
    at = position(start)
    received = 0

    def show(message: LeasedMessage) -> None:
        nonlocal received
        received += 1
        if quiet:
            return
        try:
            _show(message, as_json)
        except CorruptMessageError as unreadable:  # acknowledged all the same: it would come for ever
            print_error(str(unreadable))

    with contextlib.suppress(KeyboardInterrupt):
        run(_consume(topic, group, count, timeout, at, tag, nameserver, show))
    if quiet or sys.stderr.isatty():
        err.print(f"received {received:,} messages")
    if count and received < count:
        err.print(f"{count - received:,} messages fewer than asked for. See: ledgermq topic describe {topic}")
        raise typer.Exit(1)


def _show(message: LeasedMessage, as_json: bool) -> None:
    if as_json:
        print_json(
            {
                "message_id": message.message_id, "topic": message.topic, "queue_id": message.queue_id,
                "queue_offset": message.queue_offset, "tag": message.tag, "keys": list(message.keys),
                "properties": message.properties, "attempt": message.delivery_attempt,
                "body": message.body.decode(errors="replace"),
            }
        )  # fmt: skip
    elif sys.stdout.isatty():
        sys.stdout.write(printable(message.body) + "\n")
    else:  # into a file or a pipe: the very bytes
        sys.stdout.flush()
        sys.stdout.buffer.write(message.body + b"\n")
    sys.stdout.flush()


def printable(body: bytes) -> str:
    """Return the body as text that cannot move the cursor or change a terminal: control characters are escaped."""
    text = body.decode(errors="backslashreplace")
    return "".join(
        char if char.isprintable() or char in "\n\t" else char.encode("unicode_escape").decode()
        for char in text
    )


async def _consume(
    topic: str,
    group: str,
    count: int,
    timeout: float,
    start: str,
    tag: str,
    nameserver: str,
    show: Callable[[LeasedMessage], None],
) -> None:
    async with SimpleConsumer(nameserver, group=group) as consumer:
        await consumer.subscribe(topic, tag)
        if start != "earliest":  # the first receive would create the group with the default start
            async with Admin(nameserver) as admin:
                await admin.create_group(group, start=start, if_not_exists=True)
        received = 0
        while not count or received < count:
            wanted = min(RECEIVE_BATCH, count - received) if count else RECEIVE_BATCH
            try:
                messages = await consumer.receive(wanted, timeout_ms=int(timeout * 1000) or None)
            except GroupNotFoundError:
                async with Admin(nameserver) as admin:
                    await admin.create_group(group, start=start, if_not_exists=True)
                continue
            if not messages:
                return
            for message in messages:
                show(message)
            await asyncio.gather(*(consumer.ack(message) for message in messages))
            received += len(messages)
