"""Commands `ledgermq send` and `ledgermq consume`."""

from __future__ import annotations

import asyncio
import os
import sys
import time
from collections import deque
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from ledgermq.proto.foreign_text import safe_lines
from ledgermq.proto.record import MAX_BODY_SIZE

from ..admin.admin import Admin
from ..arguments import check_name, check_tag_filter, check_text
from ..consume.simple_consumer import RECEIVE_BATCH, SimpleConsumer
from ..errors import (
    ConsumerGroupNotFoundError,
    CorruptMessageError,
    InvalidNameError,
    LedgerMQError,
    MessageTooLargeError,
    UsageError,
)
from ..interrupts import EXIT_INTERRUPTED
from ..message import LeasedMessage, Message, SendReceipt
from ..produce.many import Item
from ..produce.producer import Producer
from .line_source import lines_of
from .message_file import is_table, messages_of
from .output import (
    DEFAULT_NAMESERVER,
    JsonOption,
    NameserverOption,
    err,
    out,
    print_error,
    print_json_line,
    run,
)
from .standard_streams import close_output
from .times import position

_DAY = 86_400.0  # s; the longest --timeout
_MOST_RANGES = 10  # of messages that failed, printed
_MAX_OPEN_SENDS = 50_000  # unanswered messages; above it `send` reads no more input


def register(app: typer.Typer) -> None:
    """Add the commands to the app."""
    app.command("send")(send)
    app.command("consume")(consume)


@dataclass(frozen=True, slots=True)
class _Plan:
    """What to send: `body` as often as `count` says, or (None) every line of `file` or stdin once."""

    topic: str
    body: bytes | None
    file: Path | None
    count: int
    tag: str
    keys: tuple[str, ...]
    message_group: str
    rate: int  # messages per second; 0: as fast as they are acknowledged


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
    file: Annotated[
        Path | None,
        typer.Option(
            "--file",
            dir_okay=False,
            exists=True,
            help="Send the lines of a file; of .parquet and .arrow the rows (column body; tag, keys, "
            "message_group).",
        ),
    ] = None,
    tag: Annotated[str | None, typer.Option("--tag", help="Tag for filters.")] = None,
    key: Annotated[list[str] | None, typer.Option("--key", help="Key for look-ups; may be repeated.")] = None,
    message_group: Annotated[
        str | None, typer.Option("--message-group", help="Messages of one message group stay in order.")
    ] = None,
    rate: Annotated[int, typer.Option("--rate", min=0, help="At most so many messages per second.")] = 0,
    timeout: Annotated[
        float,
        typer.Option("--timeout", min=0.1, max=_DAY, help="Seconds for each message, with all retries."),
    ] = 10.0,
    nameserver: NameserverOption = DEFAULT_NAMESERVER,
    as_json: JsonOption = False,
) -> None:
    """Send messages and wait until they are committed."""
    if file is not None:
        _check_file(
            file, alone=body is None and not size, rate=rate, has_fields=bool(tag or key or message_group)
        )
    given = None if file is not None else _body(body, size)
    if given is None and count != 1:
        raise typer.BadParameter(
            "--count goes with BODY or --size; the lines of stdin or a file are sent once each"
        )
    try:
        check_name("topic", topic)
    except InvalidNameError as error:
        raise UsageError(error.what, f"{error.why}. Nothing was sent") from None
    if tag is not None:
        check_text("tag", tag)
    if message_group is not None:
        check_text("message_group", message_group)
    plan = _Plan(topic, given, file, count, tag or "", tuple(key or ()), message_group or "", rate)
    started = time.monotonic()
    report = _JsonReport() if as_json else _Report()
    try:
        sending = _send if file is None else _send_file
        run(sending(plan, nameserver, int(timeout * 1000), report))
    except BrokenPipeError:
        close_output()
        raise LedgerMQError(
            f"the receipts are not read any more; {report.stored:,} were printed",
            "What was open then is stored, too; what came behind it was not sent",
        ) from None
    report.end(time.monotonic() - started)


def _body(body: str | None, size: int) -> bytes | None:
    """Return what to send; None: the lines of stdin. Raises: typer.BadParameter, MessageTooLargeError."""
    if size and body is not None:
        raise typer.BadParameter("give BODY or --size, not both")
    if max(size, len(body or "")) > MAX_BODY_SIZE:
        raise MessageTooLargeError(size or len(body or ""), MAX_BODY_SIZE)
    if size:
        return b"x" * size
    if body == "-":
        return None
    if not body:
        raise typer.BadParameter("nothing to send: give BODY, - for stdin, --file FILE, or --size BYTES")
    return os.fsencode(body)


def _check_file(file: Path, *, alone: bool, rate: int, has_fields: bool) -> None:
    """Check what does not go with --file. Raises: typer.BadParameter."""
    if not alone:
        raise typer.BadParameter("give --file, BODY or --size, not two of them")
    if rate:
        raise typer.BadParameter("--rate goes with stdin: ledgermq send TOPIC - --rate N < FILE")
    if has_fields and is_table(file):
        raise typer.BadParameter(
            "--tag, --key and --message-group go with lines; a table has columns for them"
        )


class _Report:
    """What a person is told: where one message is, or how many are stored."""

    def __init__(self) -> None:
        self.stored = 0
        self._last: SendReceipt | None = None

    def add(self, receipt: SendReceipt) -> None:
        """One more message is stored; called in the order of sending."""
        self.stored += 1
        self._last = receipt

    def add_all(self, receipts: Sequence[SendReceipt]) -> None:
        """Do the same with many."""
        self.stored += len(receipts)
        self._last = receipts[-1]

    def end(self, seconds: float) -> None:
        """All are stored."""
        if self.stored == 1 and (r := self._last) is not None:
            out.print(
                f"stored {r.message_id} in {r.topic}[{r.queue_id}] of {r.broker_group} at offset "
                f"{r.queue_offset}"
            )
            return
        out.print(f"stored {self.stored:,} messages in {seconds:.2f} s ({self.stored / seconds:,.0f} msg/s)")


class _JsonReport(_Report):
    """One line of JSON for every receipt, printed as they come: memory might not hold all."""

    def add(self, receipt: SendReceipt) -> None:
        """Print it."""
        print_json_line(receipt._asdict())
        sys.stdout.flush()  # a reader may wait for it before the next line
        super().add(receipt)

    def add_all(self, receipts: Sequence[SendReceipt]) -> None:
        """Print them."""
        for receipt in receipts:
            self.add(receipt)

    def end(self, seconds: float) -> None:
        """Every line is printed already."""


async def _bodies(plan: _Plan) -> AsyncIterator[bytes]:
    """Yield the bodies to send, at the rate that was asked for."""
    started, number = time.monotonic(), 0
    given = plan.body
    source = (
        lines_of(sys.stdin.buffer, MAX_BODY_SIZE, _tell_blank)
        if given is None
        else _repeated(given, plan.count)
    )
    async for body in source:
        if plan.rate and (ahead := number / plan.rate - (time.monotonic() - started)) > 0:
            await asyncio.sleep(ahead)
        elif number % 256 == 255:
            await asyncio.sleep(0)  # let requests go out meanwhile
        yield body
        number += 1


def _tell_blank(lines: int) -> None:
    if lines:
        err.print(f"{lines:,} blank line{'s were' if lines > 1 else ' was'} left out: a message has a body")


async def _repeated(body: bytes, count: int) -> AsyncIterator[bytes]:
    for _ in range(count):
        yield body


async def _send(plan: _Plan, nameserver: str, timeout_ms: int, report: _Report) -> None:
    """Send all; report in order. After the first failure nothing more is taken, and it is raised."""
    open_sends: deque[asyncio.Future[SendReceipt]] = deque()
    failures: list[BaseException] = []

    async def settle(most: int) -> None:
        """Report what is decided, and wait until at most so many sends are open."""
        while open_sends and (len(open_sends) > most or open_sends[0].done()):
            try:
                report.add(await open_sends[0])
            except LedgerMQError as error:
                failures.append(error)
            open_sends.popleft()

    async with Producer(nameserver, timeout_ms=timeout_ms) as producer:
        await producer.prepare(plan.topic)
        try:
            async for body in _bodies(plan):
                await producer.ready()
                await settle(_MAX_OPEN_SENDS)
                if failures:
                    break
                open_sends.append(
                    producer.send_nowait(
                        plan.topic, body, tag=plan.tag, keys=plan.keys, message_group=plan.message_group
                    )
                )
        except (LedgerMQError, OSError):  # the input failed: what was read before is still sent
            await settle(0)
            raise
        await settle(0)
    if failures:
        if (total := report.stored + len(failures)) > 1:
            err.print(f"{len(failures):,} of {total:,} messages were not acknowledged; the first error:")
        raise failures[0]


async def _send_file(plan: _Plan, nameserver: str, timeout_ms: int, report: _Report) -> None:
    """Send a file in large parts. After the first failure nothing more is read, and it is raised."""
    read = 0
    has_fields = bool(plan.tag or plan.keys or plan.message_group)

    async def items(file: Path) -> AsyncIterator[Item]:
        nonlocal read
        async for item in messages_of(file, plan.topic, _tell_blank):
            read += 1
            if has_fields and isinstance(item, bytes):
                yield Message(plan.topic, item, plan.tag, plan.keys, message_group=plan.message_group)
            else:
                yield item

    def stored(_first: int, receipts: Sequence[SendReceipt]) -> None:
        report.add_all(receipts)

    assert plan.file is not None
    async with Producer(nameserver, timeout_ms=timeout_ms) as producer:
        try:
            await producer.produce_many(items(plan.file), topic=plan.topic, on_stored=stored)
        except LedgerMQError as error:
            if error.failed_messages:
                failed = ", ".join(_from_one(each) for each in error.failed_messages[:_MOST_RANGES])
                more = ", ..." * (len(error.failed_messages) > _MOST_RANGES)
                err.print(f"{read:,} messages were read; of these were not acknowledged: {failed}{more}")
            raise


def _from_one(positions: range) -> str:
    """Return the numbers of messages, counted from 1 as lines are: "5" or "5-9"."""
    first, last = positions[0] + 1, positions[-1] + 1
    return f"{first}-{last}" if last > first else f"{first}"


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
        str, typer.Option("--from", help="Where a new consumer group starts: earliest, latest, or a time.")
    ] = "earliest",
    tag: Annotated[str, typer.Option("--tag", help='Only these tags, for example "a || b".')] = "*",
    quiet: Annotated[bool, typer.Option("--quiet", help="Print only how many came.")] = False,
    nameserver: NameserverOption = DEFAULT_NAMESERVER,
    as_json: JsonOption = False,
) -> None:
    """Receive, print and acknowledge messages."""
    at = position(start)
    if not tag.strip():
        raise typer.BadParameter('the tag filter is empty; leave --tag out, or name tags: "a || b"')
    try:
        check_tag_filter(tag)
    except UsageError as error:
        raise typer.BadParameter(str(error)) from None
    received = 0

    def show(message: LeasedMessage) -> None:
        nonlocal received
        received += 1
        if quiet:
            return
        try:
            _show(message, as_json)
        except CorruptMessageError as unreadable:  # acknowledge it: it would be redelivered for ever
            print_error(str(unreadable))

    interrupted = False
    try:
        run(_consume(topic, group, count, timeout, at, tag, nameserver, show))
    except KeyboardInterrupt:
        interrupted = True
    if quiet or sys.stderr.isatty():
        err.print(f"received {received:,} message{'s' * (received != 1)}")
    if count and received < count:
        missing = f"{count - received:,} message{'s' * (count - received != 1)}"
        err.print(f"{missing} fewer than asked for. See: ledgermq topic describe {topic}")
    if interrupted:
        raise typer.Exit(EXIT_INTERRUPTED)
    if count and received < count:
        raise typer.Exit(1)


def _show(message: LeasedMessage, as_json: bool) -> None:
    if as_json:
        print_json_line(
            {
                "message_id": message.message_id, "topic": message.topic, "queue_id": message.queue_id,
                "queue_offset": message.queue_offset, "tag": message.tag, "keys": list(message.keys),
                "properties": message.properties, "attempt": message.delivery_attempt,
                "body": message.body.decode(errors="replace"),
            }
        )  # fmt: skip
    elif sys.stdout.isatty():
        sys.stdout.write(printable(message.body) + "\n")
    else:  # to a file or a pipe: the exact bytes
        sys.stdout.flush()
        sys.stdout.buffer.write(message.body + b"\n")
    sys.stdout.flush()


def printable(body: bytes) -> str:
    """Return the body as text that cannot move the cursor or change a terminal:
    control characters are escaped.
    """
    return safe_lines(body.decode(errors="backslashreplace"))


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
        if start != "earliest":  # the first receive would create the consumer group with the default start
            async with Admin(nameserver) as admin:
                await admin.create_group(group, start=start, if_not_exists=True)
        received = 0
        while not count or received < count:
            wanted = min(RECEIVE_BATCH, count - received) if count else RECEIVE_BATCH
            try:
                messages = await consumer.receive(wanted, timeout_ms=int(timeout * 1000) or None)
            except ConsumerGroupNotFoundError:
                async with Admin(nameserver) as admin:
                    await admin.create_group(group, start=start, if_not_exists=True)
                continue
            if not messages:
                return
            for message in messages:
                show(message)
            await asyncio.gather(*(consumer.ack(message) for message in messages))
            received += len(messages)
