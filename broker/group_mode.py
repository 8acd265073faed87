"""Draining this broker group, taking it back, removing it from the cluster: the leader's part, and how far consumers are.

Raises (all): RefusedError, and what the pipeline raises.
"""

from __future__ import annotations

from typing import Final

from ledgermq.proto import admin_pb2, route_pb2

from .commands import BrokerGroupMode, SetBrokerGroupMode
from .context import NodeContext
from .effects import ModeResult
from .progress_report import TopicProgress, progress, unfinished
from .refusals import RefusedError
from .trace_topic import TRACE_TOPIC

_NAMED_MAX: Final = 5  # of what is not consumed; the rest is counted


async def set_mode(
    context: NodeContext, request: admin_pb2.SetBrokerGroupModeRequest
) -> admin_pb2.SetBrokerGroupModeResponse:
    """Change what the group does; to what it does already is a success. Removing asks first whether something is left."""
    own = context.config.group
    if request.group != own:
        raise RefusedError(
            route_pb2.INVALID_ARGUMENT,
            f'this node belongs to broker group "{own}", not to "{request.group}". Nothing was changed',
        )
    try:
        mode = BrokerGroupMode(int(request.mode))
    except ValueError:
        raise RefusedError(
            route_pb2.NOT_SUPPORTED, f"there is no mode {request.mode} in this version. Nothing was changed"
        ) from None
    if mode is BrokerGroupMode.REMOVED and not request.force:
        _check_drained(context)
    applied = await context.pipeline.run(SetBrokerGroupMode(mode))
    result: ModeResult = applied.result
    return admin_pb2.SetBrokerGroupModeResponse(
        mode=route_pb2.BrokerGroupMode.Name(int(result.mode)), since_ms=result.since, changed=result.changed
    )


def _check_drained(context: NodeContext) -> None:
    """Refuse to remove a group that others would miss something of. What drains takes no messages: nothing comes behind this."""
    state, own = context.replica.state, context.config.group
    if state.mode is BrokerGroupMode.ACTIVE:
        raise RefusedError(
            route_pb2.INVALID_ARGUMENT,
            f'broker group "{own}" takes messages. Nothing was changed. Drain it first: ledgermq cluster drain {own} --wait',
        )
    if state.mode is BrokerGroupMode.REMOVED:
        return
    left = [row for row in unfinished(progress(state)) if row.group or row.topic != TRACE_TOPIC]
    if left:
        raise RefusedError(
            route_pb2.INVALID_ARGUMENT,
            f'broker group "{own}" still holds messages that were not consumed: {_named(left)}. Nothing was changed. '
            f"Wait for the consumers (ledgermq cluster drain {own} --wait), delete what nobody needs, or lose it: --force",
        )


def _named(rows: list[TopicProgress]) -> str:
    texts = [
        f'{row.behind:,} of topic "{row.topic}" by ' + (f'group "{row.group}"' if row.group else "anybody")
        for row in rows[:_NAMED_MAX]
    ]
    more = len(rows) - _NAMED_MAX
    return ", ".join(texts) + (f", and {more} more" if more > 0 else "")


def get_progress(
    context: NodeContext, request: admin_pb2.GetProgressRequest
) -> admin_pb2.GetProgressResponse:
    """Return how far consumer groups are here; the caller has made sure that this node is up to date."""
    state = context.replica.state
    rows = []
    for row in progress(state, request.group, request.topic):
        group = state.groups.find(row.group)
        membership = state.memberships.get(group.group_id) if group is not None else None
        rows.append(
            admin_pb2.TopicProgress(
                group=row.group,
                topic=row.topic,
                queues=row.queues,
                behind=row.behind,
                leased=row.leased,
                lost=row.lost,
                members=len(membership.members) if membership is not None else 0,
            )
        )
    return admin_pb2.GetProgressResponse(
        topics=rows, mode=route_pb2.BrokerGroupMode.Name(int(state.mode)), mode_since_ms=state.mode_since
    )
