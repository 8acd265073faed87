"""Changes that meet another change on their way: the answer tells what was applied."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from ledgermq.broker.admin_changes import reset_offsets
from ledgermq.broker.commands import Command, DeleteGroup, DeleteTopic
from ledgermq.broker.produce import Applied
from ledgermq.broker.refusals import RefusedError
from ledgermq.proto import admin_pb2, route_pb2

from .entry_log import Node


@pytest.mark.parametrize("first", [DeleteTopic(1), DeleteGroup(1)])
def test_a_reset_that_comes_behind_a_deletion_is_not_called_done(first: Command) -> None:
    node = Node()
    node.topic("orders")
    node.group("billing")

    async def apply(command: Command) -> Applied:
        node.command(first)
        effects = node.command(command)
        return Applied(effects.results[0], effects.index)

    context: Any = SimpleNamespace(
        replica=SimpleNamespace(state=node.state), pipeline=SimpleNamespace(run=apply)
    )
    request = admin_pb2.ResetOffsetsRequest(group="billing", topic="orders", earliest=True)
    with pytest.raises(RefusedError, match="deleted meanwhile") as refused:
        asyncio.run(reset_offsets(context, request))
    assert refused.value.refusal.code == route_pb2.STALE_ROUTE
