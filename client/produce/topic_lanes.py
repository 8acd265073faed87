"""Topic lanes: the queues of one topic as a producer sees them, and which of them to prefer.

Owns: the order of preference between broker groups (near ones first, avoided ones last).
Must not: choose among equal queues (`queue_selection` does), read clocks.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

from ..cluster.topic_route import TopicInBrokerGroup
from ..message import MessageQueue
from .encoding import RecordEncoder
from .latency_fault import quickest
from .produce_stream import BrokerGroupConnection
from .send_window import Lane

_MAX_CHOICES: Final = 64  # sets of broker groups that are cached
_LAST: Final = 8  # above every rank


class Choice(NamedTuple):
    """Some queues of a topic, with their indexes among all of them. Never empty."""

    numbers: tuple[int, ...]
    queues: tuple[MessageQueue, ...]


class TopicLanes:
    """State per topic: the encoder, and the writable queues with their lanes and connections.

    The first `near_parts` parts are preferred. Selectors are offered the queues of these parts only: `queues`
    is a prefix of `lanes`, so that the index of a queue is the index of its lane.

    `ordered` has the lanes over which message groups are spread. It includes lanes of broker groups that are
    full, draining or gone: with another number of lanes a message group would change its queue, and overtake
    its own earlier messages.
    """

    __slots__ = (
        "_choices",
        "_near",
        "broker_groups",
        "connections",
        "encoder",
        "lanes",
        "largest",
        "ordered",
        "parts",
        "queues",
    )

    def __init__(
        self, encoder: RecordEncoder, parts: Sequence[TopicInBrokerGroup] = (), near_parts: int | None = None
    ) -> None:
        self.encoder = encoder
        self.parts = parts
        self.ordered = self
        self.queues: tuple[MessageQueue, ...] = ()
        self.lanes: list[Lane] = []
        self.connections: list[BrokerGroupConnection] = []  # one per lane
        self.broker_groups: list[
            BrokerGroupConnection
        ] = []  # one per broker group, in the order of the parts
        self.largest = 0  # largest body that all broker groups accept, bytes
        self._near = len(parts) if near_parts is None else near_parts
        self._choices: dict[tuple[int, ...], Choice] = {}

    def add(self, connection: BrokerGroupConnection, lanes: Sequence[Lane]) -> None:
        """Add the lanes of the next part."""
        if len(self.broker_groups) < self._near:
            self.queues += tuple(lane.queue for lane in lanes)
        self.broker_groups.append(connection)
        self.lanes += lanes
        self.connections += [connection] * len(lanes)

    def best_broker_groups(self, now: int, candidates: Sequence[int] | None = None) -> tuple[int, ...]:
        """Return the indexes of the broker groups to prefer, of `candidates` or of all; never empty.

        Those that take messages and are not avoided come first, then slow ones, then those whose calls
        failed, then those that take nothing. Among equals the near ones come first, then the fastest.
        """
        lowest, best = _LAST, list[int]()
        for number in range(len(self.broker_groups)) if candidates is None else candidates:
            rank = 2 * _rank(self.broker_groups[number], now) + (number >= self._near)
            if rank < lowest:
                lowest, best = rank, [number]
            elif rank == lowest:
                best.append(number)
        if len(best) == 1:
            return (best[0],)
        latencies = [
            calls.latency(now) if (calls := self.broker_groups[number].calls) else 0.0 for number in best
        ]
        return tuple([best[number] for number in quickest(latencies)])

    def instead_of(self, source: BrokerGroupConnection, now: int) -> list[tuple[Lane, BrokerGroupConnection]]:
        """Return where refused messages of `source` may go. Empty when no other broker group takes any."""
        candidates = [
            number
            for number, connection in enumerate(self.broker_groups)
            if connection is not source
            and connection.group.writable
            and connection.group.leader_id
            and connection.window.avoid_until <= now
        ]
        if not candidates:
            return []
        numbers = self.choice(self.best_broker_groups(now, candidates)).numbers
        return [(self.lanes[number], self.connections[number]) for number in numbers]

    def choice(self, broker_groups: tuple[int, ...]) -> Choice:
        """Return the queues of these broker groups."""
        found = self._choices.get(broker_groups)
        if found is None:
            if len(self._choices) >= _MAX_CHOICES:
                self._choices.clear()
            wanted = [self.broker_groups[number] for number in broker_groups]
            numbers = tuple(
                number
                for number, connection in enumerate(self.connections)
                if any(connection is each for each in wanted)
            )
            found = Choice(numbers, tuple(self.lanes[number].queue for number in numbers))
            self._choices[broker_groups] = found
        return found


def _rank(broker_group: BrokerGroupConnection, now: int) -> int:
    """Return the rank of a broker group: 0 healthy, 1 slow, 2 its calls failed, 3 takes nothing."""
    if broker_group.window.avoid_until > now:
        return 3
    return broker_group.calls.rank(now) if broker_group.calls is not None else 0
