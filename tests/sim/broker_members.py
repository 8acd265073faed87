"""Members of the simulated queue-exclusive group: they join, commit what they own, release, leave, or vanish.

They poll instead of receiving changes on a stream. A broken stream corresponds to leaving a node.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from ledgermq.broker.state.commands import (
    CommitOffsets,
    DeleteConsumerGroup,
    JoinConsumerGroup,
    position_rows,
)

from .broker_client import MS, Client
from .broker_life import Answer

if TYPE_CHECKING:
    from .broker_world import BrokerWorld

EXCLUSIVE = "exclusive"
Key = tuple[int, int]


class ConsumerGroupMember(Client):
    """One consumer. Its name is never reused."""

    think_ms = (10, 200)

    def __init__(self, world: BrokerWorld, number: int) -> None:
        super().__init__(world)
        self.name = f"m{number}"
        self._timeout_ms = self.rng.choice((500, 2000))
        self._release_ms = self.rng.choice((0, 300))
        self._lazy = self.rng.random() < 0.2  # releases nothing
        self._owned: dict[Key, int] = {}
        self._revoked: tuple[tuple[Key, int], ...] = ()
        self._old: list[tuple[Key, int]] = []  # queues that it owned earlier

    @property
    def may_go_on(self) -> bool:
        return not self.world.is_quiet

    def step(self) -> None:
        consumer_group, rng = self.a_consumer_group(EXCLUSIVE), self.rng
        if consumer_group is None:
            self.soon()
            return
        calm, topics = self.world.is_draining, ["t0", "t1", "t2", "t3"]
        if not calm and rng.random() < 0.02:
            self.world.after(rng.choice((300, 3000)) * MS, self._go_on)  # silent for a while
            return
        if not calm and rng.random() < 0.003:
            self.ask(
                "command", DeleteConsumerGroup(consumer_group.group_id), lambda answer, newest: self.soon()
            )
            return
        wanted = tuple(topics if calm or rng.random() < 0.95 else topics[:2])
        join = JoinConsumerGroup(
            consumer_group.group_id, self.name, wanted, "", "", "", self._timeout_ms, self._release_ms
        )
        leave = not calm and rng.random() < 0.02
        released, self._revoked = (() if self._lazy and not calm else self._revoked), ()
        self.ask("member", (join, released, leave), partial(self._on_told, consumer_group.group_id))

    def _on_told(self, group_id: int, answer: Answer, _newest: bool) -> None:
        view = answer.value if answer.status == "ok" else None
        if view is not None:
            self._old = [*self._old[-20:], *self._owned.items()]
            self._owned, self._revoked = dict(view.owned), view.revoked
        choices = list(self._owned.items())
        if self._old and self.rng.random() < 0.2:
            choices = self._old  # a late commit: it must not count
        if not choices or self.world.is_draining or self.rng.random() < 0.3:
            self.soon()
            return
        key, epoch = self.rng.choice(choices)
        queue = self.world.model.queues.get(key)
        offset = self.rng.randint(0, queue.end) if queue is not None else 0
        reset, outsider = self.rng.random() < 0.05, self.rng.random() < 0.05
        epochs = None if outsider else np.array([epoch], np.uint64)
        command = CommitOffsets(group_id, position_rows([(*key, offset)]), reset, epochs)
        self.ask("command", command, lambda answer, newest: self.soon())


def unshared(world: BrokerWorld, members: list[ConsumerGroupMember]) -> str:
    """Return what a consumer group of live members lacks: an owner of a queue, a fair share; or ""."""
    model = world.model
    group_id = next(
        (
            consumer_group.group_id
            for consumer_group in model.groups.values()
            if consumer_group.name == EXCLUSIVE
        ),
        0,
    )
    if not members or not group_id:
        return ""
    consumer_group = model.members.groups.get(group_id)
    names = {member.name for member in members}
    if consumer_group is None or set(consumer_group.members) != names:
        return f"the members {sorted(names)} of group {group_id}: {consumer_group}"
    for topic in model.topics.values():
        owners = [
            consumer_group.owners.get((topic.topic_id, queue), ("", 0))[0] for queue in range(topic.queues)
        ]
        counts = [owners.count(name) for name in names]
        if "" in owners or max(counts) - min(counts) > 1:
            return f"the owners of topic {topic.topic_id}: {owners}"
    return ""
