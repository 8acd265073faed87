"""Options of `format("ledgermq")` when it reads, named after those of Spark's Kafka connector. Pure.

Owns: parsing, and one clear error for each wrong option. Must not: know what exists at the brokers.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final

from ..errors import SparkJobError
from .given_options import NAMESERVERS, GivenOptions, no_column
from .message_columns import COLUMNS

#: Option → what it takes, for errors.
READ_OPTIONS: Final[Mapping[str, str]] = {
    "nameservers": "host:port, several with commas",
    "cluster": "a name",
    "subscribe": "topics, several with commas",
    "subscribePattern": "a regular expression",
    "startingOffsets": 'earliest, latest, or JSON like {"orders": {"g0": {"0": 23}}}',
    "endingOffsets": 'latest, or JSON like {"orders": {"g0": {"0": 42}}}',
    "startingTimestamp": "ms since 1970, or 2026-01-31T00:00:00Z",
    "endingTimestamp": "ms since 1970, or 2026-01-31T00:00:00Z",
    "maxMessagesPerTrigger": "a whole number above 0",
    "minPartitions": "a whole number above 0",
    "failOnDataLoss": "true or false",
    "groupId": "a consumer group",
    "tags": "tags, several with ||",
    "columns": f"some of {', '.join(COLUMNS)}",
}
#: Names that Spark's Kafka connector has for the same, and likely slips.
_SAME: Final = {
    "topic": "subscribe",
    "topics": "subscribe",
    "path": "subscribe",
    "maxoffsetspertrigger": "maxMessagesPerTrigger",
    "kafka.group.id": "groupId",
    "group.id": "groupId",
}
#: Offsets in JSON that stand for the begin and the end of a queue, as in the Kafka connector.
LATEST: Final = -1
EARLIEST: Final = -2

#: topic → broker group → queue id → queue offset, LATEST or EARLIEST
GivenOffsets = Mapping[str, Mapping[str, Mapping[int, int]]]


@dataclass(frozen=True, slots=True)
class ReadBoundary:
    """Where reading begins or ends: a word, a time, or offsets; queues without an offset use the word."""

    word: str  # earliest, latest
    timestamp: int = 0  # ms since the epoch; 0: none
    offsets: GivenOffsets | None = None


@dataclass(frozen=True, slots=True)
class SourceOptions:
    """What a reader was told."""

    nameservers: str
    cluster: str
    topics: tuple[str, ...]  # subscribed by name; empty with a pattern
    pattern: str  # matches the whole name of a topic; ""
    start: ReadBoundary
    end: ReadBoundary
    max_messages: int  # per micro-batch; 0: no limit
    min_partitions: int  # 0: one task for each queue with much to read
    fail_on_data_loss: bool
    consumer_group: str  # "": commits nothing
    tags: str  # filter expression, "": all


def read_columns(options: Mapping[str, str]) -> str:
    """Return the schema (DDL) of the columns that the option `columns` asks for. Raises: SparkJobError."""
    wanted = [name.strip() for name in _Given(options).text("columns").split(",") if name.strip()]
    return ", ".join(f"`{name}` {kind}" for name, kind in _chosen(wanted or COLUMNS))


def _chosen(wanted: Iterable[str]) -> list[tuple[str, str]]:
    found = list(dict.fromkeys(wanted))
    check_columns(found)
    return [(name, COLUMNS[name]) for name in found]


def check_columns(names: Iterable[str]) -> None:
    """Refuse a column that no topic has. Raises: SparkJobError."""
    for name in names:
        if name not in COLUMNS:
            raise SparkJobError(no_column(name, COLUMNS))


def parse_source_options(options: Mapping[str, str], *, streaming: bool) -> SourceOptions:
    """Return the options of a batch or a stream. Raises: SparkJobError."""
    given = _Given(options)
    given.refuse_unknown(_SAME)
    topics = tuple(dict.fromkeys(name.strip() for name in given.text("subscribe").split(",") if name.strip()))
    pattern = given.text("subscribePattern")
    if bool(topics) == bool(pattern):
        raise SparkJobError(
            "which topics are to be read? Give either the option subscribe (one or several names) or "
            "subscribePattern (a regular expression)"
        )
    _check_pattern(pattern)
    if streaming:
        for name in ("endingOffsets", "endingTimestamp"):
            if given.text(name):
                raise SparkJobError(
                    f"option {name} is for batches: a stream has no end. Use trigger(availableNow=True) to "
                    "read what there is and stop"
                )
    elif given.text("maxMessagesPerTrigger"):
        raise SparkJobError("option maxMessagesPerTrigger is for streams: a batch reads its range at once")
    return SourceOptions(
        given.text("nameservers", NAMESERVERS),
        given.text("cluster"),
        topics,
        pattern,
        given.boundary("starting", "latest" if streaming else "earliest"),
        given.boundary("ending", "latest"),
        given.count("maxMessagesPerTrigger"),
        given.count("minPartitions"),
        given.flag("failOnDataLoss", True),
        given.text("groupId"),
        given.text("tags"),
    )


def _check_pattern(pattern: str) -> None:
    try:
        re.compile(pattern)
    except re.error as error:
        raise SparkJobError(f"option subscribePattern is no regular expression: {error}") from None


class _Given(GivenOptions):
    """The options of a read."""

    def __init__(self, options: Mapping[str, str]) -> None:
        super().__init__(options, READ_OPTIONS, "reading")

    def boundary(self, which: str, word: str) -> ReadBoundary:
        offsets, timestamp = self.text(f"{which}Offsets"), self.text(f"{which}Timestamp")
        if offsets and timestamp:
            raise SparkJobError(f"give {which}Offsets or {which}Timestamp, not both")
        if timestamp:
            return ReadBoundary("latest", timestamp=self._timestamp(f"{which}Timestamp"))
        if not offsets:
            return ReadBoundary(word)
        if offsets.lower() in ("earliest", "latest"):
            if which == "ending" and offsets.lower() == "earliest":
                raise SparkJobError('endingOffsets="earliest" would read nothing; give latest, or offsets')
            return ReadBoundary(offsets.lower())
        return ReadBoundary(word, offsets=self._given_offsets(f"{which}Offsets"))

    def _timestamp(self, name: str) -> int:
        text = self.text(name)
        if text.isascii() and text.isdecimal() and 0 < int(text) < 1 << 53:
            return int(text)
        try:
            moment = datetime.fromisoformat(text)
        except ValueError:
            raise self.wrong(name) from None
        if moment.tzinfo is None:
            moment = moment.replace(tzinfo=UTC)
        milliseconds = int(moment.timestamp() * 1000)
        if milliseconds <= 0:
            raise self.wrong(name)
        return milliseconds

    def _given_offsets(self, name: str) -> GivenOffsets:
        try:
            return {
                topic: {
                    group: {int(queue): _offset(offset) for queue, offset in queues.items()}
                    for group, queues in groups.items()
                }
                for topic, groups in json.loads(self.text(name)).items()
            }
        except (ValueError, AttributeError, TypeError, RecursionError):
            raise self.wrong(name) from None


def _offset(value: object) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not EARLIEST <= value < 1 << 63:
        raise ValueError(value)
    return value
