"""Command `ledgermq message trace`: sender, store time and consumers of a message."""

from __future__ import annotations

import time
from operator import itemgetter
from typing import Annotated, Any

import typer
from rich.markup import escape

from ledgermq.proto.foreign_text import safe_text

from ..admin.trace_query import MessageTrace, TracedEvent, TraceReport, begin_of, find_traces
from ..errors import LedgerMQError, TopicNotFoundError, UsageError
from ..trace.events import TRACE_TOPIC
from .output import DEFAULT_NAMESERVER, JsonOption, NameserverOption, err, out, print_json, run
from .times import local_time, time_ms

_SHOWN = 64 * 1024  # characters of a line
_HOW = "Traces are written by clients with trace=True, and kept by brokers with trace_topic = true"


def trace(
    message_id: Annotated[str, typer.Argument(metavar="[ID]", help="Id of the message.")] = "",
    key: Annotated[str, typer.Option("--key", help="Instead of an id: all messages with this key.")] = "",
    since: Annotated[
        str,
        typer.Option(
            "--since", help="Read traces from this time on; default: when the id was made, else a day ago."
        ),
    ] = "",
    until: Annotated[str, typer.Option("--until", help="Read traces up to this time; default: now.")] = "",
    nameserver: NameserverOption = DEFAULT_NAMESERVER,
    as_json: JsonOption = False,
) -> None:
    """Show what became of a message: who sent it, when it was stored, who consumed it."""
    if bool(message_id) == bool(key):
        raise UsageError(
            "give the id of a message, or --key", "", "For example: ledgermq message trace --key order-7"
        )
    now_ms = time.time_ns() // 1_000_000
    since_ms = time_ms(since, earliest=1, latest=now_ms) if since else begin_of(message_id, now_ms)
    until_ms = time_ms(until, earliest=1, latest=now_ms) if until else None
    if until_ms is not None and until_ms < since_ms:
        begin, end = local_time(since_ms, timespec="seconds"), local_time(until_ms, timespec="seconds")
        raise UsageError(
            f"--until {end} is before the beginning, {begin}",
            "" if since else "Without --since that is when the id was made, else a day ago",
            "Give a --since that is earlier, or a later --until",
        )
    try:
        report = run(
            find_traces(nameserver, since_ms=since_ms, until_ms=until_ms, message_id=message_id, key=key)
        )
    except TopicNotFoundError as error:
        if error.topic != TRACE_TOPIC:
            raise
        raise LedgerMQError("no broker keeps traces", _HOW) from None
    if as_json:
        content = [_as_dict(each) for each in report.traces]
        print_json({"traces": content, "incomplete": report.incomplete, "skipped": report.skipped})
    else:
        for each in report.traces:
            _print(each)
    if report.skipped:
        err.print(_skipped(report.skipped))
    if report.incomplete:
        err.print(escape(f"there may be more: {report.incomplete}"))
    if not report.traces:
        raise LedgerMQError(_nothing(message_id, key, report), _HOW, "Look further back: --since TIME")


def _nothing(message_id: str, key: str, report: TraceReport) -> str:
    what = f"message {message_id}" if message_id else f"a message with key {key!r}"
    since = local_time(report.since_ms, timespec="seconds")
    return f"no trace of {what} among {report.read:,} trace messages since {since}"


def _skipped(count: int) -> str:
    what = "record of the trace topic was" if count == 1 else "records of the trace topic were"
    return f"{count:,} {what} skipped: no traces that can be read, or contrary to what is stored"


def _print(trace: MessageTrace) -> None:
    labels = [f"topic {trace.topic}"]
    labels += [f"tag {trace.tag}"] if trace.tag else []
    labels += [f"keys {', '.join(trace.keys)}"] if trace.keys else []
    labels += [f"{trace.size:,} bytes"] if trace.size >= 0 else []
    out.print(_shown(f"{trace.message_id}  {', '.join(labels)}"))
    lines = [(step.event.begin_ms, _step(step)) for step in trace.steps]
    if trace.stored_ms:
        lines.append((trace.stored_ms, f"stored     {_place(trace)}"))
    for at_ms, text in sorted(lines, key=itemgetter(0)):
        out.print(_shown(f"  {local_time(at_ms, sep=' ')}  {text}"))
    if not any(step.event.kind == "send" for step in trace.steps):
        out.print("  (its producer does not trace)")


def _shown(text: str) -> str:
    """Return one line for the terminal, whatever a trace contains."""
    return escape(safe_text(text, _SHOWN))


def _place(trace: MessageTrace) -> str:
    queue = trace.queue
    if queue is None:
        return ""
    return f"in {queue.broker_group} queue {queue.queue_id} at offset {trace.queue_offset}"


def _step(step: TracedEvent) -> str:
    """Return one line of the time line."""
    event = step.event
    after = f" after {event.cost_ms:,} ms" if event.kind != "receive" else ""
    attempt = f", attempt {event.attempt}" if event.attempt else ""
    verb = {"send": "sent by", "receive": "handed to", "consume": "listener of"}[event.kind]
    if event.kind == "consume" and step.source.client == "simple":
        verb = "consumer"
    role = "producer" if event.kind == "send" else "consumer"
    group = f" ({role} group {step.source.group})" if step.source.group else ""
    text = f"{verb:<10} {step.source.client_id}{group}{attempt}: {event.result}{after}"
    return f"{text}: {event.error}" if event.error else text


def _as_dict(trace: MessageTrace) -> dict[str, Any]:
    queue = trace.queue
    return {
        "message_id": trace.message_id, "topic": trace.topic, "tag": trace.tag, "keys": list(trace.keys),
        "broker_group": queue.broker_group if queue else None, "queue_id": queue.queue_id if queue else None,
        "queue_offset": trace.queue_offset if queue else None, "stored_ms": trace.stored_ms or None,
        "body_size": trace.size if trace.size >= 0 else None,
        "steps": [
            {
                "kind": each.event.kind, "begin_ms": each.event.begin_ms, "cost_ms": each.event.cost_ms,
                "result": each.event.result, "attempt": each.event.attempt or None,
                "error": each.event.error or None,
                **{f"by_{name}": value for name, value in each.source._asdict().items()},
            }
            for each in trace.steps
        ],
    }  # fmt: skip
