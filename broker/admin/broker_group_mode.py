"""Modes of this broker group (drain, take back, remove) at the leader, and the progress of its consumers.

Raises (all): RefusedError, and what the pipeline raises.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from ledgermq.proto import admin_pb2, route_pb2

from ..config import BrokerConfig
from ..leader.pipeline import AppendPipeline
from ..refusals import RefusedError
from ..replica import Replica
from ..service.broker_group_identity import BrokerGroupIdentity
from ..service.features import BROKER_GROUP_MODES, Features
from ..state.backlog import missed, progress
from ..state.commands import BrokerGroupMode, SetBrokerGroupMode
from ..state.effects import ModeResult, TopicProgress
from ..state.machine import BrokerState
from ..wire.validation import group_problem

_NAMED_MAX: Final = 5  # rows of unconsumed messages that a refusal names; the rest is counted


@dataclass(eq=False, repr=False)
class BrokerGroupModes:
    """Drains this broker group, takes it back, and removes it."""

    _config: BrokerConfig
    _replica: Replica
    _pipeline: AppendPipeline
    _identity: BrokerGroupIdentity
    _features: Features

    async def set(self, request: admin_pb2.SetBrokerGroupModeRequest) -> admin_pb2.SetBrokerGroupModeResponse:
        """Change the broker group's mode; the mode that it already has is a success.

        A removal checks for unconsumed messages first, and again when it is applied: messages that arrived in
        between count, too.
        """
        own, state = self._config.group, self._replica.state
        if request.group != own:
            raise RefusedError(
                route_pb2.INVALID_ARGUMENT,
                f'this node belongs to broker group "{own}", not to "{request.group}". Nothing was changed',
            )
        self._identity.check_names(request.cluster, request.group)
        self._identity.check_id(request.broker_group_id)
        try:
            mode = BrokerGroupMode(int(request.mode))
        except ValueError:
            raise RefusedError(
                route_pb2.NOT_SUPPORTED,
                f"there is no mode {request.mode} in this version. Nothing was changed",
            ) from None
        await self._features.require(BROKER_GROUP_MODES, "drain or remove a broker group")
        command = SetBrokerGroupMode(mode)
        if mode is BrokerGroupMode.REMOVED and not request.force:
            command = SetBrokerGroupMode(mode, True, _strangers(state, request.consumers))
            if state.mode is not BrokerGroupMode.REMOVED:
                _check_removal(own, state.mode, missed(state, command.consumers))
        elif mode is BrokerGroupMode.DRAINING and state.mode is BrokerGroupMode.REMOVED:
            raise RefusedError(
                route_pb2.INVALID_ARGUMENT,
                f'broker group "{own}" was removed, and takes no messages. Nothing was changed. Take it back '
                f"first: ledgermq cluster undrain {own} --node HOST:8082",
            )
        applied = await self._pipeline.run(command)
        result: ModeResult = applied.result
        if result.mode is not mode:
            _check_removal(own, result.mode, result.left)
        return admin_pb2.SetBrokerGroupModeResponse(
            mode=route_pb2.BrokerGroupMode.Name(int(result.mode)),
            since_ms=result.since,
            changed=result.changed,
        )

    def progress(self, request: admin_pb2.GetProgressRequest) -> admin_pb2.GetProgressResponse:
        """Return the progress of consumer groups here. The caller has ensured that the state is fresh."""
        self._identity.check_names(request.cluster, request.broker_group)
        self._identity.check_id(request.broker_group_id)
        state = self._replica.state
        rows = []
        consumers = [(each.group, each.topic) for each in request.consumers]
        for row in progress(state, request.group, request.topic, consumers=consumers):
            consumer_group = state.groups.find(row.group)
            membership = (
                state.memberships.get(consumer_group.group_id) if consumer_group is not None else None
            )
            rows.append(
                admin_pb2.TopicProgress(
                    group=row.group,
                    topic=row.topic,
                    queues=row.queues,
                    behind=row.behind,
                    leased=row.leased,
                    lost=row.lost,
                    parked=row.parked,
                    members=len(membership.members) if membership is not None else 0,
                )
            )
        return admin_pb2.GetProgressResponse(
            topics=rows, mode=route_pb2.BrokerGroupMode.Name(int(state.mode)), mode_since_ms=state.mode_since
        )


def _strangers(
    state: BrokerState, consumers: Iterable[admin_pb2.TopicConsumer]
) -> tuple[tuple[str, str], ...]:
    """Return (consumer group, topic) of other broker groups, for the topics that exist here."""
    found = {(each.group, each.topic) for each in consumers if state.topics.find(each.topic) is not None}
    for name, _ in found:
        if problem := group_problem(name):
            raise RefusedError(route_pb2.INVALID_ARGUMENT, f"{problem}. Nothing was changed")
    return tuple(sorted(found))


def _check_removal(own: str, mode: BrokerGroupMode, left: Sequence[TopicProgress]) -> None:
    """Refuse to remove a broker group that takes messages, or that holds unconsumed ones."""
    if mode is BrokerGroupMode.ACTIVE:
        raise RefusedError(
            route_pb2.INVALID_ARGUMENT,
            f'broker group "{own}" takes messages. Nothing was changed. '
            f"Drain it first: ledgermq cluster drain {own} --wait",
        )
    if left:
        raise RefusedError(
            route_pb2.INVALID_ARGUMENT,
            f'broker group "{own}" still holds messages that were not consumed: {_named(left)}. '
            f"Nothing was changed. Wait for the consumers (ledgermq cluster drain {own} --wait), release "
            "what is parked (ledgermq group release), delete what is not needed, or lose it: --force",
        )


def _named(rows: Sequence[TopicProgress]) -> str:
    texts = [
        (f'{row.behind:,} of topic "{row.topic}" by ' if row.behind else f'of topic "{row.topic}" by ')
        + (f'consumer group "{row.group}"' if row.group else "any consumer group")
        + (f" ({row.parked:,} parked)" if row.parked else "")
        for row in rows[:_NAMED_MAX]
    ]
    more = len(rows) - _NAMED_MAX
    return ", ".join(texts) + (f", and {more} more" if more > 0 else "")
