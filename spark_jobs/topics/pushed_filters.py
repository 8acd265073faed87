"""Pushed filters: which part of a batch the WHERE of a query needs. Pure.

Owns: the translation of Spark's filters on topic, queue_group, queue, offset and store_time into bounds.
Spark applies every filter again, so bounds may be wider than the filter, and never narrower.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from pyspark.sql.datasource import (
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    LessThan,
    LessThanOrEqual,
)

from .read_plan import QueueState


@dataclass(slots=True)
class PushedBounds:
    """What messages must satisfy. Offsets and times are half-open: [low, high)."""

    among: dict[str, set[Any]] = field(default_factory=dict)  # topic, queue_group, queue → allowed values
    first_offset: int | None = None
    end_offset: int | None = None
    first_time: int | None = None  # ms since the epoch, rounded down
    end_time: int | None = None  # ms, rounded up

    def take(self, filters: Iterable[Filter]) -> None:
        """Narrow the bounds by filters that all hold."""
        for each in filters:
            path: tuple[str, ...] = getattr(each, "attribute", ())
            column = path[0] if len(path) == 1 else ""
            if column in ("topic", "queue_group", "queue"):
                self._take_choice(column, each)
            elif column == "offset":
                self._take_offset(each)
            elif column == "store_time":
                self._take_time(each)

    def wants(self, state: QueueState) -> bool:
        """Tell whether a queue may hold wanted messages."""
        of_state = {
            "topic": state.topic,
            "queue_group": state.broker_group.name,
            "queue": state.queue_id,
        }
        return all(of_state[column] in allowed for column, allowed in self.among.items())

    def _take_choice(self, column: str, each: Filter) -> None:
        if isinstance(each, EqualTo):
            allowed = {each.value}
        elif isinstance(each, In):
            allowed = set(each.value)
        else:
            return
        self.among[column] = self.among.get(column, allowed) & allowed

    def _take_offset(self, each: Filter) -> None:
        value = getattr(each, "value", None)
        if not isinstance(value, int):
            return
        if isinstance(each, EqualTo):
            self._offsets(value, value + 1)
        elif isinstance(each, GreaterThan):
            self._offsets(value + 1, None)
        elif isinstance(each, GreaterThanOrEqual):
            self._offsets(value, None)
        elif isinstance(each, LessThan):
            self._offsets(None, value)
        elif isinstance(each, LessThanOrEqual):
            self._offsets(None, value + 1)

    def _offsets(self, first: int | None, end: int | None) -> None:
        self.first_offset, self.end_offset = _highest(self.first_offset, first), _lowest(self.end_offset, end)

    def _take_time(self, each: Filter) -> None:
        value = getattr(each, "value", None)
        if not isinstance(value, datetime) or value.tzinfo is None:
            return  # without a zone it is not known which moment is meant
        down = int(value.timestamp() * 1000 // 1)
        up = down + 1  # never too narrow, whatever is below a millisecond
        if isinstance(each, EqualTo | GreaterThan | GreaterThanOrEqual):
            self.first_time = _highest(self.first_time, down)
        if isinstance(each, EqualTo | LessThan | LessThanOrEqual):
            self.end_time = _lowest(self.end_time, up)


def _highest(one: int | None, other: int | None) -> int | None:
    return other if one is None else one if other is None else max(one, other)


def _lowest(one: int | None, other: int | None) -> int | None:
    return other if one is None else one if other is None else min(one, other)
