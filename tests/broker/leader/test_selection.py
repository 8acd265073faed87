"""What the leader reserves in turns that are not applied yet, and what of it turns out otherwise."""

from __future__ import annotations

import pytest

from ledgermq.broker.leader.selection import Delivery, GrantPlan, ReceiveRequest
from ledgermq.broker.state import consumption
from ledgermq.broker.state.commands import Ack, Command, CommitOffsets, TrimQueues, lease_rows, position_rows
from ledgermq.proto.entry import EntryHeader

from ..entry_log import Node, records, section
from ..receiving import deliveries, offsets, receive, request


class Pipelined:
    """One turn is always undecided: the next is chosen before the last one is applied, as under load."""

    def __init__(self, node: Node, asked: ReceiveRequest) -> None:
        self.node = node
        self.asked = asked
        self._open: list[tuple[tuple[EntryHeader, memoryview], GrantPlan]] = []

    def step(self, *commands: Command, messages: int = 0) -> list[tuple[int, int]]:
        """Propose a turn with a receive in it; apply the one before, and return what that delivers."""
        turn = self.node.view.open_turn()
        if messages:
            turn.add_records(section(self.asked.topic_id, 0, records(messages)))
        for command in commands:
            turn.add_command(command)
        plan = turn.grant(self.asked, self.node.log.now)
        if not turn.size:
            turn.abandon()
        else:
            self._open.append((self.node.propose(turn), plan))
        return self.apply() if len(self._open) > 1 or not turn.size else []

    def apply(self) -> list[tuple[int, int]]:
        """Apply the oldest undecided turn."""
        if not self._open:
            return []
        entry, plan = self._open.pop(0)
        return offsets(deliveries(plan, self.node.commit_proposed(entry).results))


@pytest.mark.parametrize("how", ["reset", "trim"])
def test_a_moved_position_holds_up_no_consumer_while_messages_keep_coming(how: str) -> None:
    """Turns that count on the old position get nothing; later ones must count on the new one."""
    node = Node()
    topic, group = node.topic(queues=1), node.group()
    node.fill(topic, 0, 20)
    rig = Pipelined(node, request(group, topic, 2))
    move: Command = CommitOffsets(group, position_rows([(topic, 0, 0)]), True)
    if how == "trim":
        move = TrimQueues(position_rows([(topic, 0, 15)]))
    for _ in range(3):
        rig.step(messages=2)
    rig.step(move, messages=2)
    found = [each for _ in range(40) for each in rig.step(messages=1)]
    assert len(found) >= 40, "as many as come in"
    assert found[-1][1] == len(found) + found[0][1] - 1, "none is left out"


def test_what_two_turns_choose_before_either_is_applied_is_disjoint() -> None:
    node = Node()
    topic, group = node.topic(queues=1), node.group()
    node.fill(topic, 0, 5)
    asked = request(group, topic, 2)
    turn = node.view.open_turn()
    plans = [turn.grant(asked, node.log.now), turn.grant(asked, node.log.now)]
    entry = node.propose(turn)
    later = node.view.open_turn()
    plans.append(later.grant(asked, node.log.now))
    later_entry = node.propose(later)
    results = [node.commit_proposed(entry).results, node.commit_proposed(later_entry).results]
    found = [offsets(deliveries(plan, results[i])) for plan, i in zip(plans, (0, 0, 1), strict=True)]
    assert found == [[(0, 0), (0, 1)], [(0, 2), (0, 3)], [(0, 4)]]


def test_several_receives_of_one_turn_go_on_where_the_last_of_them_ended() -> None:
    node = Node()
    topic, group = node.topic(queues=1), node.group()
    node.fill(topic, 0, 9)
    asked = request(group, topic, 2)
    first = node.view.open_turn()
    plans = [first.grant(asked, node.log.now) for _ in range(2)]
    entry = node.propose(first)
    second = node.view.open_turn()
    plans.append(second.grant(asked, node.log.now))
    later = node.propose(second)
    results = node.commit_proposed(entry).results
    third = node.view.open_turn()
    plans.append(third.grant(asked, node.log.now))
    found: list[Delivery] = deliveries(plans[0], results) + deliveries(plans[1], results)
    found += deliveries(plans[2], node.commit_proposed(later).results)
    found += deliveries(plans[3], node.commit(third).results)
    assert offsets(found) == [(0, offset) for offset in range(8)]


def test_sessions_that_hold_nothing_are_forgotten_on_nodes_that_never_lead(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Only a leader looks which sessions hold leases; a follower sees each client that ever was."""
    monkeypatch.setattr(consumption, "SESSIONS_LOOK", 10)
    node = Node()
    topic, group = node.topic(queues=1), node.group()
    held = deliveries_of_session(node, group, topic, 1000)
    for session in range(1, 200):
        found = deliveries_of_session(node, group, topic, session)
        rows = lease_rows([(0, each.queue_offset, each.lease_id) for each in found])
        node.command(Ack(group, topic, rows))
    assert len(held) == 1
    assert len(node.state.consumption._sessions) <= 10
    assert node.state.consumption.drop_idle_sessions() == [1000]


def deliveries_of_session(node: Node, group: int, topic: int, session: int) -> list[Delivery]:
    node.fill(topic, 0, 1)
    return receive(node, request(group, topic, 1, session=session))
