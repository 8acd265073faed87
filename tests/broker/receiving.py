"""Receives as a test says them: select, propose, apply; acknowledge, change."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ledgermq.broker.leader.selection import Delivery, GrantPlan, ReceiveRequest
from ledgermq.broker.state.commands import Ack, ChangeInvisible, Command, change_rows, lease_rows
from ledgermq.broker.state.effects import GrantResult, RowsResult

from .entry_log import Node, result_of


def request(
    group: int, topic: int, count: int = 10, invisible_ms: int = 1_000, **options: Any
) -> ReceiveRequest:
    return ReceiveRequest(group, topic, count, invisible_ms, **options)


def receive(node: Node, asked: ReceiveRequest) -> list[Delivery]:
    """Select, propose, apply, and return what would be sent."""
    turn = node.view.open_turn()
    plan = turn.grant(asked, node.log.now)
    if not turn.size:
        return plan.repeats
    effects = node.commit(turn)
    return deliveries(plan, effects.results)


def deliveries(plan: GrantPlan, results: Sequence[object]) -> list[Delivery]:
    if plan.slot is None:
        return plan.repeats
    result = results[plan.slot]
    assert isinstance(result, GrantResult)
    return plan.deliveries(result)


def offsets(found: list[Delivery]) -> list[tuple[int, int]]:
    return [(item.queue_id, item.queue_offset) for item in found]


def ack(node: Node, asked: ReceiveRequest, found: list[Delivery], *, force: bool = False) -> list[bool]:
    rows = lease_rows([(item.queue_id, item.queue_offset, item.lease_id) for item in found])
    return accepted(node, Ack(asked.group_id, asked.topic_id, rows, force))


def accepted(node: Node, command: Command) -> list[bool]:
    result = result_of(node.command(command), RowsResult)
    rows: list[bool] = result.accepted.tolist()
    return rows


def change(node: Node, asked: ReceiveRequest, item: Delivery, ms: int) -> list[bool]:
    rows = change_rows([(item.queue_id, item.queue_offset, item.lease_id, ms)])
    return accepted(node, ChangeInvisible(asked.group_id, asked.topic_id, rows))
