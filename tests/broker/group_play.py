"""A queue-exclusive consumer group in memory: a state, its coordinator, and its members."""

from __future__ import annotations

import random
from collections.abc import Iterable

import numpy as np

from ledgermq.broker.leader.coordinator import Coordinator, MemberView, StartsByTime, Wish
from ledgermq.broker.state.commands import CommitOffsets, JoinConsumerGroup, StartPosition, position_rows
from ledgermq.broker.state.consume_queue import QueueKey
from ledgermq.broker.state.effects import CommitResult
from ledgermq.broker.state.memberships import ConsumerGroupMembership

from .entry_log import Node


class GroupPlay:
    """Time is `now` (ms). `run` lets the leader decide until it wishes nothing; a wish is applied or lost."""

    def __init__(
        self, *, start: str = "earliest", zone: str = "", name: str = "billing", node: Node | None = None
    ) -> None:
        """`node`: that of another group, which shares topics and log with this one."""
        self.node = node or Node()
        self.group = self.node.group(name, start=StartPosition.parse(start))
        self.zone = zone
        self.now = 1_000
        self.coordinator = Coordinator(self.group, self.node.state, zone, self.now)
        self.wished: list[Wish] = []
        self.owners: dict[tuple[QueueKey, int], str] = {}  # all owners so far, by queue and epoch
        self.committed: dict[QueueKey, int] = {}

    @property
    def membership(self) -> ConsumerGroupMembership:
        return self.node.state.memberships.get(self.group) or ConsumerGroupMembership()

    def join(
        self, *names: str, topics: Iterable[str] = ("orders",), session_timeout_ms: int = 3000,
        release_ms: int = 1000, allocation: str = "", zone: str = "", tags: str = "",
    ) -> None:  # fmt: skip
        """Members come, one entry each, and the leader decides."""
        for name in names:
            command = JoinConsumerGroup(
                self.group, name, tuple(topics), allocation, zone, tags, session_timeout_ms, release_ms
            )
            self.coordinator.came(name, self.now)
            self.node.command(command)
            self.coordinator.heard(name, self.now)
            self.run()

    def leave(self, name: str) -> None:
        self.coordinator.leave(name)
        self.run()

    def crash_of_leader(self) -> None:
        """Another node leads: it knows the state, and nothing else."""
        self.coordinator = Coordinator(self.group, self.node.state, self.zone, self.now)
        self.run()

    def run(self, lose: random.Random | None = None) -> None:
        """Carry out what the leader wishes; with `lose`, some proposals are refused."""
        for _ in range(100):
            wishes = self.coordinator.decide(self.now)
            if not wishes:
                break
            for wish in wishes:
                self.wished.append(wish)
                if isinstance(wish, StartsByTime):
                    continue  # the test does that
                if lose is None or lose.random() < 0.8:
                    self.node.command(wish)
                    self._check()
                self.coordinator.settled(wish)
        else:
            raise AssertionError("the leader never has enough")

    def pass_time(self, ms: int, *alive: str) -> None:
        """Time passes in steps of 100 ms; these members live and hand over nothing."""
        for _ in range(ms // 100):
            self.now += 100
            for name in alive:
                self.coordinator.heard(name, self.now)
            if self.coordinator.is_due(self.now):
                self.run()

    def release(self, name: str) -> None:
        """A member hands over all that is revoked."""
        self.coordinator.released(name, self.view(name).revoked)
        self.run()

    def view(self, name: str) -> MemberView:
        found = self.coordinator.view(name)
        assert found is not None, f"{name} is no member"
        return found

    def owned(self, name: str) -> list[int]:
        """Queue ids that a member owns, of one topic."""
        return [key[1] for key, _ in self.view(name).owned]

    def revoked(self, name: str) -> list[int]:
        return [key[1] for key, _ in self.view(name).revoked]

    def commit(self, key: QueueKey, offset: int, epoch: int) -> bool:
        """Commit under an epoch; return whether it was taken. It must be, when it is the owner's."""
        owner = self.membership.of(key)
        rows, epochs = position_rows([(*key, offset)]), np.array([epoch], np.uint64)
        (result,) = self.node.command(CommitOffsets(self.group, rows, epochs=epochs)).results
        assert isinstance(result, CommitResult)
        taken = bool(result.accepted[0])
        assert taken == (owner.epoch == epoch and bool(owner.member)), (key, epoch, owner)
        self._check()
        return taken

    def _check(self) -> None:
        """One owner per epoch, epochs only grow, owners are members, offsets never go back."""
        state, newest = self.node.state, dict[QueueKey, int]()
        for key, epoch in self.owners:
            newest[key] = max(newest.get(key, 0), epoch)
        for key, owner in self.membership.owners.items():
            if owner.member:
                assert owner.member in self.membership.members
                assert self.owners.setdefault((key, owner.epoch), owner.member) == owner.member
                assert owner.epoch >= newest.get(key, 0), f"{key} went back to epoch {owner.epoch}"
        for queue in state.queues:
            offset = state.committed_offset(self.group, *queue.key) or 0
            assert offset >= self.committed.get(queue.key, 0), f"{queue.key} went back to {offset}"
            self.committed[queue.key] = offset
