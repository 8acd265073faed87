"""Members, owners and epochs in the replicated state; commits that are fenced."""

from __future__ import annotations

import random
from collections.abc import Sequence

import numpy as np
import pytest

from ledgermq.broker.checkpoint.layout import encode_snapshot, take_snapshot
from ledgermq.broker.state import commands as c
from ledgermq.broker.state.effects import CommitResult, ConsumerGroupResult, RowsResult
from ledgermq.broker.state.memberships import ConsumerGroupMember, ConsumerGroupMembership, Ownership

from ..entry_log import START_MS, Node, checkpoint, filled, restored, result_of


def join(node: Node, group: int, *names: str, topics: tuple[str, ...] = ("orders",)) -> None:
    for name in names:
        node.command(c.JoinConsumerGroup(group, name, topics))


def assign(node: Node, group: int, name: str, *rows: tuple[int, int, int]) -> list[bool]:
    """Rows: topic id, queue id, epoch so far."""
    command = c.AssignQueues(
        group, (name,) if name else (), c.assignment_rows([(*row, 0 if name else c.NO_OWNER) for row in rows])
    )
    result = result_of(node.command(command), RowsResult)
    return [bool(each) for each in result.accepted]


def commit(
    node: Node, group: int, rows: Sequence[tuple[int, int, int]], *epochs: int, reset: bool = False
) -> tuple[list[bool], list[bool]]:
    """Return which rows were taken, and which fenced."""
    named = np.array(epochs, np.uint64) if epochs else None
    result = result_of(
        node.command(c.CommitOffsets(group, c.position_rows(rows), reset, named)), CommitResult
    )
    return result.accepted.tolist(), result.fenced.tolist()


def membership(node: Node, group: int) -> ConsumerGroupMembership:
    found = node.state.memberships.get(group)
    assert found is not None
    return found


def ready() -> tuple[Node, int, int]:
    """A topic of two queues with ten messages each, a group with members a and b; a owns both queues."""
    node, topic, group = filled(queues=2)
    for queue in range(2):
        node.fill(topic, queue, 10)
    join(node, group, "a", "b")
    assert assign(node, group, "a", (topic, 0, 0), (topic, 1, 0)) == [True, True]
    return node, topic, group


def test_the_epoch_of_an_owner_is_the_index_of_its_entry() -> None:
    node, topic, group = ready()
    assert membership(node, group).of((topic, 0)) == Ownership("a", node.state.applied_index)
    assert membership(node, group).queues_of("a") == [(topic, 0), (topic, 1)]
    assert membership(node, group).of((topic, 7)).epoch == 0


def test_a_commit_of_the_owner_is_taken_and_one_of_an_older_owner_refused() -> None:
    node, topic, group = ready()
    old = node.state.applied_index
    assert commit(node, group, [(topic, 0, 4)], old) == ([True], [False])
    assert assign(node, group, "b", (topic, 0, old)) == [True]
    new = node.state.applied_index
    assert commit(node, group, [(topic, 0, 6), (topic, 1, 5)], old, old) == ([False, True], [True, False])
    assert commit(node, group, [(topic, 0, 5)], new) == ([True], [False])
    assert node.state.committed_offset(group, topic, 0) == 5


def test_the_owner_cannot_commit_backwards() -> None:
    node, topic, group = ready()
    epoch = node.state.applied_index
    commit(node, group, [(topic, 0, 7)], epoch)
    assert commit(node, group, [(topic, 0, 3)], epoch) == ([True], [False])
    assert node.state.committed_offset(group, topic, 0) == 7


def test_a_commit_without_an_epoch_is_refused_while_a_consumer_group_has_members() -> None:
    node, topic, group = ready()
    other = node.topic("other")
    node.fill(other, 0, 5)
    assert commit(node, group, [(topic, 0, 4), (other, 0, 2)]) == ([False, True], [True, False])
    assign(node, group, "", (topic, 0, membership(node, group).of((topic, 0)).epoch))
    assert commit(node, group, [(topic, 0, 4)]) == ([False], [True]), "they subscribe to it all the same"


def test_without_members_commits_need_no_epoch_and_old_epochs_are_refused() -> None:
    node, topic, group = ready()
    epoch = node.state.applied_index
    result = result_of(node.command(c.LeaveConsumerGroup(group, ("a", "b", "c"))), RowsResult)
    assert result.accepted.tolist() == [True, True, False]
    assert node.state.memberships.get(group) is None
    assert commit(node, group, [(topic, 0, 4)], epoch) == ([False], [True])
    assert commit(node, group, [(topic, 0, 4)]) == ([True], [False])


def test_a_member_that_leaves_owns_nothing_any_more() -> None:
    node, topic, group = ready()
    epoch = node.state.applied_index
    node.command(c.LeaveConsumerGroup(group, ("a",)))
    assert membership(node, group).of((topic, 0)) == Ownership("", node.state.applied_index)
    assert commit(node, group, [(topic, 0, 4)], epoch) == ([False], [True])
    assert commit(node, group, [(topic, 0, 4)], node.state.applied_index) == ([False], [True]), "no owner"


def test_a_reset_by_an_outsider_gives_the_owner_a_new_epoch() -> None:
    """Else the next commit of the owner, who goes on where it was, would undo the reset."""
    node, topic, group = ready()
    epoch = node.state.applied_index
    commit(node, group, [(topic, 0, 8)], epoch)
    assert commit(node, group, [(topic, 0, 2)], reset=True) == ([True], [False])
    assert membership(node, group).of((topic, 0)) == Ownership("a", node.state.applied_index)
    assert membership(node, group).of((topic, 1)) == Ownership("a", epoch)
    assert commit(node, group, [(topic, 0, 9)], epoch) == ([False], [True])
    assert node.state.committed_offset(group, topic, 0) == 2


def test_the_owner_itself_may_go_back_under_its_epoch() -> None:
    node, topic, group = ready()
    epoch = node.state.applied_index
    commit(node, group, [(topic, 0, 8)], epoch)
    assert commit(node, group, [(topic, 0, 2)], epoch, reset=True) == ([True], [False])
    assert membership(node, group).of((topic, 0)).epoch == epoch
    assert commit(node, group, [(topic, 0, 1)], epoch - 1, reset=True) == ([False], [True])


def test_an_assignment_of_a_leader_that_knew_another_epoch_is_refused() -> None:
    node, topic, group = ready()
    epoch = node.state.applied_index
    assert assign(node, group, "b", (topic, 0, 0), (topic, 1, epoch)) == [False, True]
    assert membership(node, group).of((topic, 0)).member == "a"


def test_a_queue_is_assigned_to_members_only_and_only_if_it_exists() -> None:
    node, topic, group = ready()
    epoch = node.state.applied_index
    assert assign(node, group, "c", (topic, 0, epoch)) == [False]
    assert assign(node, group, "b", (topic, 9, 0), (99, 0, 0)) == [False, False]
    assert assign(node, 77, "b", (topic, 0, 0)) == [False]


def test_a_member_that_joins_in_an_entry_owns_nothing_in_that_entry() -> None:
    """All members leave, one returns and gets a queue: within one entry its epoch might not be unique."""
    node, topic, group = ready()
    rows = c.assignment_rows([(topic, 0, 0, 0)])
    results = node.command(
        c.LeaveConsumerGroup(group, ("a", "b")),
        c.JoinConsumerGroup(group, "a", ("orders",)),
        c.AssignQueues(group, ("a",), rows),
    ).results
    assert isinstance(results[2], RowsResult) and results[2].accepted.tolist() == [False]
    assert assign(node, group, "a", (topic, 0, 0)) == [True]


def test_coming_again_keeps_age_and_queues_and_changes_the_subscription() -> None:
    node, topic, group = ready()
    before = membership(node, group).members["a"]
    node.log.now += 500
    assert node.command(c.JoinConsumerGroup(group, "a", ("orders",))).results == [
        ConsumerGroupResult(node.state.groups.get(group), False)
    ]
    effects = node.command(
        c.JoinConsumerGroup(group, "a", ("orders", "paid"), "circle", "z1", "x", 4000, 500)
    )
    assert effects.members_changed == {group}
    assert membership(node, group).members["a"] == ConsumerGroupMember(
        "a", before.joined, START_MS, ("orders", "paid"), "circle", "z1", "x", 4000, 500
    )
    assert membership(node, group).of((topic, 0)).member == "a"
    assert [member.name for member in membership(node, group).by_age()] == ["a", "b"]


def test_a_deleted_consumer_group_takes_no_member() -> None:
    node = Node()
    assert node.command(c.JoinConsumerGroup(9, "a", ())).results == [ConsumerGroupResult(None, False)]
    assert node.state.memberships.group_ids() == []


def test_deleting_a_group_or_a_topic_ends_what_was_owned() -> None:
    node, topic, group = ready()
    other = node.topic("other")
    assign(node, group, "b", (other, 0, 0))
    assert node.command(c.DeleteTopic(topic)).members_changed == {group}
    assert list(membership(node, group).owners) == [(other, 0)]
    assert node.command(c.SetTopicRetention(other, 5)).members_changed == set()
    assert node.command(c.DeleteConsumerGroup(group)).members_changed == {group}
    assert node.state.memberships.get(group) is None
    assert node.command(c.DeleteTopic(other)).members_changed == set()


# --- checkpoints ----------------------------------------------------------------------------------------
def test_memberships_survive_a_checkpoint() -> None:
    node, topic, group = ready()
    node.command(c.JoinConsumerGroup(group, "c", (), "average", "zone-ä", "a||b", 60_000, 30_000))
    node.command(c.LeaveConsumerGroup(group, ("b",)))
    assign(node, group, "", (topic, 1, membership(node, group).of((topic, 1)).epoch))
    raw = checkpoint(node.state)
    loaded = restored(raw)
    assert loaded.memberships.copy() == node.state.memberships.copy()
    assert checkpoint(loaded) == raw


def test_a_checkpoint_without_members_is_one_that_older_nodes_read() -> None:
    node, topic, group = ready()
    assert checkpoint(node.state)[4] == 3
    node.command(c.LeaveConsumerGroup(group, ("a", "b")))
    assert checkpoint(node.state)[4] == 1
    node.command(c.SetTopicRetention(topic, 5))
    assert checkpoint(node.state)[4] == 2


def test_a_snapshot_keeps_the_members_it_saw() -> None:
    node, topic, group = ready()
    snapshot = take_snapshot(node.state)
    before = b"".join(encode_snapshot(snapshot))
    join(node, group, "c")
    commit(node, group, [(topic, 0, 2)], reset=True)
    node.command(c.LeaveConsumerGroup(group, ("a",)))
    assert b"".join(encode_snapshot(snapshot)) == before


@pytest.mark.parametrize("seed", range(20))
def test_random_histories_keep_one_owner_per_epoch_and_offsets_that_never_go_back(seed: int) -> None:
    """Against a dumb model: every ownership ever seen, by queue; wrong names, epochs and orders included."""
    choose, node = random.Random(seed), Node()
    topic, group = node.topic(queues=4), node.group()
    for queue in range(4):
        node.fill(topic, queue, 50)
    names = ["a", "b", "c"]
    owners: dict[tuple[int, int], str] = {}  # (queue, epoch) → who had it
    epochs = dict.fromkeys(range(4), 0)
    offsets = dict.fromkeys(range(4), 0)
    for _ in range(300):
        roll, name, queue = choose.random(), choose.choice(names), choose.randrange(4)
        found = node.state.memberships.get(group)
        known = found.of((topic, queue)) if found is not None else Ownership("", 0)
        if roll < 0.15:
            join(node, group, name)
        elif roll < 0.25:
            node.command(c.LeaveConsumerGroup(group, (name,)))
        elif roll < 0.55:
            epoch = known.epoch if choose.random() < 0.8 else choose.randrange(node.state.applied_index)
            taken = assign(node, group, name, (topic, queue, epoch))
            assert taken == [epoch == known.epoch and found is not None and name in found.members]
        else:
            epoch, offset = known.epoch, choose.randrange(50)
            if choose.random() < 0.4:
                epoch = choose.choice([each for at, each in owners if at == queue] or [1])
            current = found is not None and bool(known.member) and epoch == known.epoch
            assert commit(node, group, [(topic, queue, offset)], epoch or 1) == ([current], [not current])
            if current:
                offsets[queue] = max(offsets[queue], offset)
        found = node.state.memberships.get(group)
        for each in range(4):
            now = found.of((topic, each)) if found is not None else Ownership("", 0)
            if now.member and found is not None:
                assert now.epoch >= epochs[each] and now.member in found.members
                epochs[each] = now.epoch
                assert owners.setdefault((each, now.epoch), now.member) == now.member
            assert (node.state.committed_offset(group, topic, each) or 0) == offsets[each]
    raw = checkpoint(node.state)
    assert checkpoint(restored(raw)) == raw
