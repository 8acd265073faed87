"""A node that follows nothing of what its replica applies."""

from __future__ import annotations

from ledgermq.broker.errors import ConsumeQueueError
from ledgermq.broker.state.effects import Effects


class NoObserver:
    """A `ReplicaObserver` of a node without further parts."""

    def on_effects(self, effects: Effects) -> None:
        pass

    def on_housekeeping(self) -> None:
        pass

    def on_queue_damage(self, error: ConsumeQueueError) -> None:
        pass

    async def queue_rebuilt(self, error: ConsumeQueueError) -> bool:
        return False
