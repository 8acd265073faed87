"""Stream offsets: the position in every queue, as Spark keeps it in the checkpoint. Pure.

    {"v": 1, "topics": {"orders": {"g0": {"group": "0f3c…", "topic": 7, "queues": {"0": 22500}}}}}

Owns: that JSON (Spark compares it as text, so its order is fixed). `group` is the id of the broker group and
`topic` that of the topic in it: a topic or broker group that was made again has others, and its offsets mean
something else.
Must not: know what the brokers have now.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from ..errors import SparkJobError

VERSION: Final = 1


@dataclass(frozen=True, slots=True)
class PartPositions:
    """Next offset of each queue of one topic in one broker group."""

    group_id: int  # 0: unknown
    topic_id: int
    queues: Mapping[int, int] = field(default_factory=dict)  # queue id → queue offset


#: (topic, broker group) → positions
Positions = dict[tuple[str, str], PartPositions]


def encode_positions(positions: Mapping[tuple[str, str], PartPositions]) -> dict[str, Any]:
    """Return the JSON object of a checkpoint."""
    topics: dict[str, dict[str, Any]] = {}
    for (topic, group), part in sorted(positions.items()):
        topics.setdefault(topic, {})[group] = {
            "group": f"{part.group_id:016x}",
            "topic": part.topic_id,
            "queues": {str(queue): offset for queue, offset in sorted(part.queues.items())},
        }
    return {"v": VERSION, "topics": topics}


def decode_positions(found: Any) -> Positions:
    """Decode what a checkpoint holds. Raises: SparkJobError (newer, or of another source)."""
    version = found.get("v") if isinstance(found, dict) else None
    if isinstance(version, int) and version > VERSION:
        raise SparkJobError(
            f"the checkpoint was written by a newer version of LedgerMQ (format {version}; this one knows "
            f"{VERSION}). Continue it with that version, or begin a new checkpoint folder"
        )
    try:
        if version != VERSION:
            raise ValueError(version)
        return {
            (topic, group): PartPositions(
                int(part["group"], 16),
                int(part["topic"]),
                {int(queue): int(offset) for queue, offset in part["queues"].items()},
            )
            for topic, groups in found["topics"].items()
            for group, part in groups.items()
        }
    except (KeyError, TypeError, ValueError, AttributeError):
        raise SparkJobError(
            "the checkpoint holds no offsets of ledgermq: it belongs to another source. Begin a new "
            "checkpoint folder"
        ) from None
