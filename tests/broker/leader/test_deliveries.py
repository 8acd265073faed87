"""Deliveries that may not have arrived are released."""

from __future__ import annotations

import numpy as np

from ledgermq.broker.cluster.members import ON_THE_WAY_SECONDS
from ledgermq.broker.leader.pipeline import largest_message
from ledgermq.broker.leader.releases import ROWS_MAX, RecentDeliveries, granted_since
from ledgermq.broker.leader.selection import Delivery, ReceiveRequest
from ledgermq.broker.state.codecs import encode
from ledgermq.broker.state.consumption import LEASE_DTYPE, NEVER, Consumption
from ledgermq.raft.config import MAX_ENTRY_DIVISOR


def request(session: int = 9, attempt: str = "a") -> ReceiveRequest:
    return ReceiveRequest(1, 2, 32, 60_000, None, session, attempt)


DELIVERY = Delivery(0, 41, 0, 100, 0, 1, 77)


def test_a_repeated_attempt_releases_what_was_granted_to_the_first() -> None:
    recent = RecentDeliveries()
    recent.add(0, "", request(), [DELIVERY])
    (command,) = recent.repeated("a")
    assert command.rows.tolist() == [(0, 41, 77)]
    assert recent.repeated("a") == []
    assert recent.repeated("") == []


def test_what_was_given_to_a_node_shortly_before_it_was_lost_is_released() -> None:
    recent = RecentDeliveries()
    recent.add(0, "n2", request(), [DELIVERY])
    recent.add(10, "n2", request(attempt="b"), [DELIVERY])
    recent.add(10, "n3", request(attempt="c"), [DELIVERY])
    assert len(recent.node_lost("n2", 10 + ON_THE_WAY_SECONDS - 1)) == 1
    assert len(recent) == 2


def test_leases_by_time_are_left_alone_and_old_ones_forgotten() -> None:
    recent = RecentDeliveries()
    recent.add(0, "", request(session=0), [DELIVERY])
    assert len(recent) == 0
    recent.add(0, "", request(), [DELIVERY])
    recent.add(100, "", request(), [DELIVERY])
    assert len(recent) == 1


def test_many_young_leases_are_released_in_commands_that_fit_into_every_entry() -> None:
    leases = np.zeros(2 * ROWS_MAX + 1, LEASE_DTYPE)
    leases["offset"], leases["lease_id"] = np.arange(len(leases)), 20
    leases["deadline"], leases["session"] = NEVER, 9
    commands = granted_since({(1, 2, 3): Consumption(len(leases), leases)}, 15)
    assert [len(command.rows) for command in commands] == [ROWS_MAX, ROWS_MAX, 1]
    assert np.concatenate([command.rows["offset"] for command in commands]).tolist() == list(
        range(len(leases))
    )
    smallest = largest_message((1 << 20) // MAX_ENTRY_DIVISOR)
    assert all(len(encode(command)) < smallest for command in commands)


def test_a_new_leader_releases_young_session_leases_only() -> None:
    leases = np.array([(5, 10, NEVER, 9, 1, 0), (6, 20, NEVER, 9, 1, 0), (7, 21, 1000, 0, 1, 0)], LEASE_DTYPE)
    (command,) = granted_since({(1, 2, 3): Consumption(8, leases), (1, 2, 4): Consumption(0)}, 15)
    assert command.rows.tolist() == [(3, 6, 20)]
    (command,) = granted_since({(1, 2, 3): Consumption(8, leases)}, 20)
    assert command.rows.tolist() == [(3, 6, 20)], "the first entry that may not have arrived counts"
    assert granted_since({(1, 2, 3): Consumption(8, leases)}, 21) == []
