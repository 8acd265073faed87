"""What the leader of a queue-exclusive group decides: hand-overs, deadlines, silence, other leaders."""

from __future__ import annotations

import random
from collections import Counter
from typing import Any

import pytest

from ledgermq.broker.leader.coordinator import ROWS_MAX, Coordinator, StartsByTime
from ledgermq.broker.state.commands import (
    AssignQueues,
    CommitOffsets,
    CreateTopic,
    DeleteTopic,
    LeaveConsumerGroup,
    SetPositions,
    position_rows,
)

from ..entry_log import Node
from ..group_play import GroupPlay


def play(queues: int = 4, **options: Any) -> GroupPlay:
    found = GroupPlay(**options)
    found.node.topic(queues=queues)
    return found


@pytest.fixture
def group() -> GroupPlay:
    return play()


def test_the_first_member_owns_everything_at_its_start_position(group: GroupPlay) -> None:
    group.join("a")
    assert group.owned("a") == [0, 1, 2, 3]
    assert group.revoked("a") == []
    assert [group.node.state.committed_offset(group.group, 1, queue) for queue in range(4)] == [0] * 4
    assert group.view("a").members == 1


def test_a_newcomer_gets_queues_when_they_are_handed_over_and_not_before(group: GroupPlay) -> None:
    group.join("a", "b")
    assert (group.owned("a"), group.revoked("a"), group.owned("b")) == ([0, 1, 2, 3], [2, 3], [])
    group.coordinator.released("a", group.view("a").revoked[:1])
    group.run()
    assert (group.owned("a"), group.revoked("a"), group.owned("b")) == ([0, 1, 3], [3], [2])
    group.release("a")
    assert (group.owned("a"), group.revoked("a"), group.owned("b")) == ([0, 1], [], [2, 3])


def test_queues_that_stay_keep_their_epoch(group: GroupPlay) -> None:
    group.join("a")
    before = dict(group.view("a").owned)
    group.join("b", "c")
    group.release("a")
    group.leave("b")
    kept = dict(group.view("a").owned)
    assert {key: epoch for key, epoch in kept.items() if before[key] == epoch}.keys() >= {(1, 0), (1, 1)}


def test_what_is_not_handed_over_in_time_is_taken(group: GroupPlay) -> None:
    group.join("a", release_ms=700)
    group.join("b")
    (key, epoch), _ = group.view("a").revoked
    assert group.commit(key, 0, epoch), "until then it is the owner's"
    group.pass_time(600, "a", "b")
    assert group.owned("b") == []
    group.pass_time(100, "a", "b")
    assert group.owned("b") == [2, 3]
    assert not group.commit(key, 0, epoch)


def test_a_release_of_another_epoch_or_by_another_member_counts_nothing(group: GroupPlay) -> None:
    group.join("a", "b")
    key, epoch = group.view("a").revoked[0]
    group.coordinator.released("b", [(key, epoch)])
    group.coordinator.released("a", [(key, epoch - 1)])
    group.run()
    assert group.owned("b") == []


def test_a_revocation_is_taken_back_when_the_newcomer_goes_again(group: GroupPlay) -> None:
    group.join("a", "b")
    owned = group.view("a").owned
    group.leave("b")
    assert group.view("a").owned == owned
    assert group.revoked("a") == []


def test_who_released_what_it_is_to_keep_gets_it_again_under_a_new_epoch(group: GroupPlay) -> None:
    group.join("a", "b")
    old = dict(group.view("a").owned)
    group.coordinator.released("a", group.view("a").revoked)
    group.leave("b")  # before the leader decided about the release
    new = dict(group.view("a").owned)
    assert new.keys() == old.keys()
    assert [key[1] for key in new if new[key] != old[key]] == [2, 3]
    assert group.revoked("a") == []


def test_the_queues_of_who_leaves_go_on_at_once(group: GroupPlay) -> None:
    group.join("a", "b")
    group.release("a")
    epoch = dict(group.view("b").owned)[1, 2]
    group.leave("b")
    assert group.owned("a") == [0, 1, 2, 3]
    assert group.coordinator.view("b") is None
    assert not group.commit((1, 2), 0, epoch)


def test_who_is_silent_is_taken_out_after_its_own_timeout(group: GroupPlay) -> None:
    group.join("a", session_timeout_ms=1000)
    group.join("b", session_timeout_ms=2000)
    group.release("a")
    group.pass_time(900, "b")
    assert group.owned("a") == [0, 1]
    group.pass_time(100, "b")
    assert group.coordinator.view("a") is None
    assert group.owned("b") == [0, 1, 2, 3]
    group.pass_time(2000)
    assert group.node.state.memberships.get(group.group) is None


def test_who_comes_back_in_time_has_lost_nothing(group: GroupPlay) -> None:
    group.join("a", "b")
    group.release("a")
    owned = group.view("a").owned
    group.pass_time(2900, "b")
    group.join("a")
    group.pass_time(2900, "b")
    assert group.view("a").owned == owned


def test_who_takes_back_its_leave_stays(group: GroupPlay) -> None:
    group.join("a")
    owned = group.view("a").owned
    group.coordinator.leave("a")
    group.coordinator.came("a", group.now)
    group.run()
    assert group.view("a").owned == owned


def test_another_leader_goes_on_where_the_last_one_was_and_gives_everybody_time(group: GroupPlay) -> None:
    group.join("a", "b")
    group.pass_time(900, "a", "b")
    group.crash_of_leader()
    assert (group.owned("a"), group.revoked("a")) == ([0, 1, 2, 3], [2, 3])
    group.pass_time(900)
    assert group.owned("b") == [], "the deadline begins anew"
    group.pass_time(100)
    assert group.owned("b") == [2, 3]
    group.pass_time(1900, "a")
    assert group.owned("b") == [2, 3]
    group.pass_time(100, "a")
    assert group.coordinator.view("b") is None
    assert group.owned("a") == [0, 1, 2, 3]


def test_a_topic_that_appears_is_given_out_and_one_that_goes_is_forgotten() -> None:
    group = play(2)
    group.join("a", "b", topics=("orders", "later"))
    group.release("a")
    assert 'topic "later" does not exist' in group.view("a").warnings[0]
    created = group.node.command(CreateTopic("later", 3))
    assert created.topics_changed
    group.run()
    assert sorted(len(group.view(name).owned) for name in "ab") == [2, 3]
    assert group.view("a").warnings == ()
    group.node.command(DeleteTopic(1))
    group.run()
    assert {key[0] for name in "ab" for key, _ in group.view(name).owned} == {2}
    group.node.command(CreateTopic("orders", 2))
    group.run()
    assert sum(len(group.view(name).owned) for name in "ab") == 5


def test_who_subscribes_to_less_hands_over_the_rest() -> None:
    group = play(2)
    group.node.topic("paid", 2)
    group.join("a", topics=("orders", "paid"))
    group.join("a", topics=("paid",))
    assert [key[0] for key, _ in group.view("a").revoked] == [1, 1]
    group.release("a")
    assert [key[0] for key, _ in group.view("a").owned] == [2, 2]
    assert group.membership.of((1, 0)).member == ""


def test_a_new_group_begins_at_the_end_where_it_wants_the_latest() -> None:
    group = play(1, start="latest")
    group.node.fill(1, 0, 7)
    group.join("a", topics=("orders", "later"))
    assert group.node.state.committed_offset(group.group, 1, 0) == 7
    group.node.log.now += 10
    group.node.topic("later", 1)
    group.node.fill(2, 0, 3)
    group.run()
    assert group.node.state.committed_offset(group.group, 2, 0) == 0, (
        "it waited for this topic from the first message on"
    )


def test_a_start_by_time_is_asked_for_before_queues_are_given_out() -> None:
    group = play(2, start="1234")
    group.join("a")
    (wish,) = group.wished
    assert wish == StartsByTime(group.group, ((1, 0), (1, 1)), 1234)
    assert group.coordinator.decide(group.now) == [], "it is under way"
    group.node.command(SetPositions(group.group, position_rows([(1, 0, 0), (1, 1, 0)])))
    group.coordinator.settled(wish)
    (wish,) = group.coordinator.decide(group.now)
    assert isinstance(wish, AssignQueues)


def test_starts_by_time_are_asked_for_in_parts_that_fit_into_an_entry() -> None:
    group = play(1024, start="1234")
    group.node.topic("wide", 1024)
    group.join("a", topics=("orders", "wide"))
    assert [len(wish.keys) for wish in group.wished if isinstance(wish, StartsByTime)] == [ROWS_MAX] * 2


def test_only_one_proposal_for_a_queue_is_under_way(group: GroupPlay) -> None:
    group.join("a")
    group.leave("a")
    group.wished.clear()
    group.join("b")
    (assign,) = [wish for wish in group.wished if isinstance(wish, AssignQueues)]
    group.coordinator.leave("b")
    (leave,) = group.coordinator.decide(group.now)
    assert leave == LeaveConsumerGroup(group.group, ("b",))
    assert group.coordinator.decide(group.now) == []
    group.coordinator.settled(leave)  # it was refused
    assert group.coordinator.decide(group.now) == [leave]
    assert len(assign.rows) == 4


def test_the_oldest_member_decides_how_queues_are_given_out() -> None:
    group = play(4)
    group.join("b", allocation="circle")
    group.join("a", allocation="average")
    group.release("b")
    assert group.owned("a") == [0, 2]
    assert "decides: circle" in " ".join(group.view("b").warnings)


def test_queues_stay_in_the_leaders_zone() -> None:
    group = play(2, zone="z1")
    group.join("far", allocation="same-zone", zone="z2")
    assert group.owned("far") == [0, 1]
    group.join("near", allocation="same-zone", zone="z1")
    group.release("far")
    assert group.owned("near") == [0, 1]


def test_members_are_told_who_subscribes_otherwise(group: GroupPlay) -> None:
    group.join("a", tags="orders: x")
    group.join("b", topics=("orders", "paid"), tags="orders: y || z; paid: *")
    for name in "ab":
        different, filtered = group.view(name).warnings[:2]
        assert different.startswith(
            'members of consumer group "billing" subscribe to different topics: "b" to orders, paid, "a" to '
            "orders."
        )
        assert filtered.startswith(
            'members of consumer group "billing" filter differently: "b" by "orders: y || z", "a" by '
            '"orders: x".'
        )
    group.join(*(f"c{number}" for number in range(20)), topics=("other",))
    assert len(group.view("a").warnings) == 8
    assert "more warnings" in group.view("a").warnings[-1]


def test_members_of_different_topics_do_not_filter_differently_by_that(group: GroupPlay) -> None:
    group.node.topic("paid")
    group.join("a", tags="orders: *")
    group.join("b", topics=("paid",), tags="paid: *")
    group.join("c", topics=("orders", "paid"), tags="orders: *; paid: x")
    assert not [text for text in group.view("a").warnings if "filter" in text]


def test_filters_of_another_form_are_compared_as_they_are(group: GroupPlay) -> None:
    group.join("a", tags="x; y")
    group.join("b", tags="x; z")
    (text,) = group.view("a").warnings
    assert '"b" by "orders: x; z", "a" by "orders: x; y"' in text


def test_members_are_told_who_keeps_the_order_of_a_queue_and_who_does_not(group: GroupPlay) -> None:
    group.join("a", "b", "c")
    group.coordinator.keeps_order("a", False)
    group.coordinator.keeps_order("b", True)  # c does not say
    group.run()
    (text,) = group.view("a").warnings
    assert text.startswith(
        'members of consumer group "billing" differ in orderly: "b" keeps the order of a queue, "a" does not.'
    )
    group.leave("b")
    assert group.view("a").warnings == ()
    group.crash_of_leader()
    group.coordinator.keeps_order("c", True)
    group.run()
    assert group.view("a").warnings == (), "a has not said it to this leader yet"


def test_a_reset_by_an_outsider_shows_as_a_new_epoch(group: GroupPlay) -> None:
    group.join("a")
    group.node.fill(1, 0, 5)
    before = dict(group.view("a").owned)
    group.node.command(CommitOffsets(group.group, position_rows([(1, 0, 3)]), True))
    group.run()
    after = dict(group.view("a").owned)
    assert [key for key in after if after[key] != before[key]] == [(1, 0)]


# --- random histories ---------------------------------------------------------------------------------------
class Members:
    """The members of one group: they come, go, crash, dawdle and commit late."""

    def __init__(self, choose: random.Random, number: int, topics: dict[str, int], node: Node) -> None:
        self.choose = choose
        self.topics = topics
        self.group = GroupPlay(start=choose.choice(("earliest", "latest")), name=f"g{number}", node=node)
        self.names = [f"m{name}" for name in range(choose.randint(1, 20))]
        self.alive: set[str] = set()  # what they are to themselves: they show signs of life
        self.slow: set[str] = set()  # never hand over in time

    def step(self, roll: float) -> None:
        choose, group = self.choose, self.group
        name = choose.choice(self.names)
        if roll < 0.3:
            wanted = list(self.topics) if choose.random() < 0.8 else choose.sample(list(self.topics), 1)
            self.alive.add(name)
            (self.slow.add if choose.random() < 0.2 else self.slow.discard)(name)
            group.join(
                name, topics=wanted, session_timeout_ms=choose.choice((500, 3000)),
                release_ms=choose.choice((0, 1000)),
            )  # fmt: skip
        elif roll < 0.38 and name in self.alive:
            self.alive.discard(name)
            group.coordinator.leave(name)
        elif roll < 0.46:
            self.alive.discard(name)  # a crash
        elif group.owners:
            (key, epoch) = choose.choice(list(group.owners))
            group.commit(key, choose.randrange(20), epoch)

    def tick(self) -> None:
        """100 ms pass."""
        self.group.now += 100
        for name in sorted(self.alive):
            self.group.coordinator.heard(name, self.group.now)
            view = self.group.coordinator.view(name)
            if view is not None and name not in self.slow:
                self.group.coordinator.released(name, view.revoked)
        self.group.run(self.choose)


class History:
    """One to three groups on the same queues; leaders change, topics are made again, proposals are lost."""

    def __init__(self, seed: int) -> None:
        self.choose = choose = random.Random(seed)
        self.node = Node()
        self.topics = {f"t{number}": 0 for number in range(choose.randint(1, 3))}
        left = choose.randint(1, 64)
        for name in self.topics:
            queues = choose.randint(1, max(left // len(self.topics), 1))
            self.topics[name] = self.node.topic(name, queues)
        for queue in self.node.state.queues:
            self.node.fill(*queue.key, 20)
        self.groups = [
            Members(choose, number, self.topics, self.node) for number in range(choose.choice((1, 1, 2, 3)))
        ]

    def step(self) -> None:
        choose, roll = self.choose, self.choose.random()
        members = choose.choice(self.groups)
        if roll < 0.03:
            for each in self.groups:
                each.group.crash_of_leader()
        elif roll < 0.06:
            topic = choose.choice(list(self.topics))
            self.node.command(DeleteTopic(self.topics[topic]))
            self.topics[topic] = self.node.topic(topic, choose.randint(1, 20))
        elif roll < 0.6:
            members.step(choose.random())
        else:
            self._pass_time(choose.choice((100, 300, 1100)))
        for each in self.groups:
            each.group.run(choose)

    def _pass_time(self, ms: int) -> None:
        for _ in range(ms // 100):
            for each in self.groups:
                each.tick()

    def settle(self) -> None:
        """Nothing more happens."""
        for _ in range(80):
            self._pass_time(100)
        for each in self.groups:
            each.group.run()


@pytest.mark.parametrize("seed", range(60))
def test_whatever_happens_each_queue_has_one_owner_and_at_last_everybody_its_share(seed: int) -> None:
    history = History(seed)
    for _ in range(150):
        history.step()
    history.settle()
    for members in history.groups:
        check_settled(members)


def check_settled(members: Members) -> None:
    group, membership = members.group, members.group.membership
    assert membership.members.keys() <= members.alive, "who is gone is out"
    subscribed = {name for member in membership.members.values() for name in member.topics}
    for topic in group.node.state.topics:
        names = [name for name, member in membership.members.items() if topic.name in member.topics]
        counts = Counter(membership.of((topic.topic_id, queue)).member for queue in range(topic.queue_count))
        if topic.name in subscribed:
            assert counts.keys() <= set(names), "no queue without an owner while a member can own it"
            assert max(counts[name] for name in names) - min(counts[name] for name in names) <= 1
        else:
            assert counts.keys() == {""}
    for name in membership.members:
        assert group.view(name).revoked == ()
    again = Coordinator(group.group, group.node.state, "", group.now)
    assert again.decide(group.now) == [], "another leader has nothing to change"
