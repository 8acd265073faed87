"""Resume point: where a job goes on, from what the lake has and what the brokers have now. Pure.

Owns: the comparison of both, and the error for each way in which they do not belong together.
Must not: do I/O.
"""

from __future__ import annotations

import json
from collections.abc import Sequence

from ledgermq.client.errors import did_you_mean, similar_names
from ledgermq.proto.group_ids import are_related

from ..errors import SparkJobError
from ..topics.read_plan import QueueState
from ..topics.stream_offsets import PartPositions, Positions
from .lake_state import LakeGap, LakeState, lost


def check_topics(lake: LakeState, topics: Sequence[str]) -> None:
    """Raises: SparkJobError (the lake is one of other topics)."""
    if lake.topics and not set(lake.topics) & set(topics):
        raise SparkJobError(
            f"the lake holds {', '.join(lake.topics)}, not {', '.join(topics)}. Give another folder, or "
            f"archive them together: {','.join([*lake.topics, *topics])}"
        )


def check_topic(lake: LakeState, topic: str) -> None:
    """Raises: SparkJobError (the lake does not have the topic)."""
    if topic not in lake.topics:
        question = did_you_mean(similar_names(topic, lake.topics))
        known = f"It has: {', '.join(lake.topics) or 'none'}"
        raise SparkJobError(f'the lake has no topic "{topic}". {question or known}')


def check_same(lake: LakeState, states: Sequence[QueueState]) -> None:
    """Raises: SparkJobError (topic or broker group are not those that were archived)."""
    for state in states:
        known = lake.positions.get(state.part)
        if known is None:
            continue
        group = state.broker_group
        if not are_related(group.group_id, group.former_group_ids, known.group_id, ()):
            raise SparkJobError(
                f'the lake was made from another cluster: its broker group "{group.name}" is not the one '
                "that answers now, or that was made again. Give another folder, or the nameserver of that "
                "cluster"
            )
        if known.topic_id != state.topic_id:
            raise SparkJobError(
                f'topic "{state.topic}" was deleted and created again since it was archived, so its offsets '
                "mean other messages. Archive the new topic into another folder"
            )
        if known.queues.get(state.queue_id, 0) > state.end:
            raise SparkJobError(
                f'the lake has topic "{state.topic}" broker group "{group.name}" queue {state.queue_id} '
                f"up to offset {known.queues[state.queue_id]:,}, and the brokers have only {state.end:,} "
                "messages. Without a leader they may be behind: try again. If they lost some, or were "
                "restored from a dump, archive into another folder"
            )


def resume_point(lake: LakeState | None, states: Sequence[QueueState], *, fail: bool) -> Positions:
    """Return where every queue goes on: behind what the lake has, a new one at its first offset.

    Queues of the lake that the brokers do not have any more are kept. `fail`: messages between were deleted.
    Raises: SparkJobError.
    """
    found: Positions = dict(lake.positions) if lake is not None else {}
    if lake is not None:
        check_same(lake, states)
    for state in states:
        group = state.broker_group
        part = found.get(state.part) or PartPositions(group.group_id, state.topic_id, {})
        at = part.queues.get(state.queue_id, state.begin)
        if at < state.begin and fail:
            raise lost(LakeGap(state.topic, group.name, state.queue_id, at, state.begin))
        found[state.part] = PartPositions(
            group.group_id or part.group_id, state.topic_id, {**part.queues, state.queue_id: at}
        )
    return found


def joined_by(positions: Positions, states: Sequence[QueueState]) -> Positions:
    """Return the positions with topics and broker groups that came since; their queues begin at 0."""
    new = {
        state.part: PartPositions(state.broker_group.group_id, state.topic_id, {})
        for state in states
        if state.part not in positions
    }
    return {**positions, **new}


def starting_offsets(positions: Positions, states: Sequence[QueueState]) -> str:
    """Return the option `startingOffsets` of the source, about each of these queues."""
    found: dict[str, dict[str, dict[str, int]]] = {}
    for state in states:
        offset = positions[state.part].queues[state.queue_id]
        queues = found.setdefault(state.topic, {}).setdefault(state.broker_group.name, {})
        queues[str(state.queue_id)] = offset
    return json.dumps(found)
