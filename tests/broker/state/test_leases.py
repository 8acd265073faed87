"""Leases of one consumer group in one queue: what each transition takes, and what it refuses."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ledgermq.broker.state.commands import GrantLeases, QueueGrant, SessionLost, SetPositions, position_rows
from ledgermq.broker.state.consumption import ACKED, NEVER, Consumption, ConsumptionTable
from ledgermq.broker.state.effects import Effects

from ..entry_log import filled


def offsets(*values: int) -> np.ndarray:
    return np.array(values, np.int64)


def handles(*values: int) -> np.ndarray:
    return np.array(values, np.uint64)


def leased(count: int = 3, *, lease_id: int = 7, deadline: int = 100, session: int = 0) -> Consumption:
    """Offsets 0 .. count-1 are out until `deadline` under one lease."""
    found, granted, attempts = Consumption(0).grant(
        0, count, np.arange(count, dtype=np.int64), lease_id, deadline, session, 50
    )
    assert granted.tolist() == list(range(count))
    assert attempts.tolist() == [1] * count
    return found


def acknowledged(
    found: Consumption,
    which: Sequence[int],
    lease_id: int = 7,
    now: int = 60,
    *,
    force: bool = False,
    fifo: bool = False,
) -> tuple[Consumption, list[bool]]:
    after, accepted = found.acknowledge(
        offsets(*which), handles(*[lease_id] * len(which)), now, force=force, fifo=fifo
    )
    return after, accepted.tolist()


def test_a_lease_that_has_not_ended_is_not_granted_again() -> None:
    found = leased()
    after, granted, _ = found.grant(3, 3, offsets(0, 1), 8, 300, 0, now=99)
    assert granted.tolist() == []
    assert after.leases["lease_id"].tolist() == [7, 7, 7]


def test_a_lease_ends_at_its_deadline_and_comes_again_with_the_next_attempt() -> None:
    found = leased()
    assert found.expired(99)["offset"].tolist() == []
    assert found.expired(100)["offset"].tolist() == [0, 1, 2]
    after, granted, attempts = found.grant(3, 3, offsets(1), 8, 300, 0, now=100)
    assert (granted.tolist(), attempts.tolist()) == ([1], [2])
    assert after.leases["lease_id"].tolist() == [7, 8, 7]


def test_the_handle_of_an_earlier_delivery_finishes_nothing() -> None:
    again, _, _ = leased().grant(3, 3, offsets(0), 8, 300, 0, now=100)
    after, accepted = acknowledged(again, [0], lease_id=7, now=110, force=True)
    assert accepted == [False]
    assert after.committed == 0
    assert acknowledged(again, [0], lease_id=8, now=110)[0].committed == 1


def test_an_acknowledgement_after_the_end_is_refused_unless_it_is_forced() -> None:
    found = leased()
    assert acknowledged(found, [0], now=99)[1] == [True]
    assert acknowledged(found, [0], now=100)[1] == [False]
    assert acknowledged(found, [0], now=100, force=True)[1] == [True]


def test_an_acknowledgement_of_what_was_never_given_out_is_refused() -> None:
    found = leased()
    assert acknowledged(found, [3, -1])[1] == [False, False]
    done, _ = acknowledged(found, [0])
    assert acknowledged(done, [0])[1] == [True], "it is done already: twice is fine"


def test_a_released_lease_is_there_at_once_uncounted_and_no_handle_fits_it() -> None:
    found, accepted = leased(session=5, deadline=NEVER).release(offsets(1), handles(7), now=60)
    assert accepted.tolist() == [True]
    row = found.leases[1]
    assert (int(row["attempt"]), int(row["session"]), int(row["deadline"])) == (0, 0, 60)
    assert not found.holds(offsets(1), 7).any()
    assert acknowledged(found, [1], force=True)[1] == [False], "its message was never sent"
    assert found.release(offsets(1), handles(7), now=61)[1].tolist() == [False]


def test_a_release_does_not_make_a_lease_longer() -> None:
    found, _ = leased(deadline=100).release(offsets(0), handles(7), now=500)
    assert int(found.leases["deadline"][0]) == 100


def test_the_end_of_a_lease_that_has_ended_is_not_moved() -> None:
    found = leased()
    assert found.change(offsets(0), handles(7), offsets(900), 9, now=100)[1].tolist() == [False]
    after, accepted = found.change(offsets(0), handles(7), offsets(900), 9, now=99)
    assert accepted.tolist() == [True]
    assert (int(after.leases["deadline"][0]), int(after.leases["lease_id"][0])) == (900, 9)
    assert int(found.leases["deadline"][0]) == 100, "a state never changes: a snapshot keeps it"


def test_in_order_what_is_acknowledged_behind_an_open_message_comes_again_with_its_batch() -> None:
    found, accepted = acknowledged(leased(), [1], fifo=True)
    assert accepted == [True]
    assert found.leases["offset"].tolist() == [0, 1, 2]
    assert (found.leases["flags"] & ACKED).tolist() == [0, ACKED, 0]
    assert acknowledged(leased(), [1])[0].leases["offset"].tolist() == [0, 2], "done, without order"
    assert acknowledged(found, [0], fifo=True)[0].committed == 2


def test_a_commit_never_goes_back() -> None:
    found = Consumption(10)
    assert found.advance(4) is found
    assert found.advance(12).committed == 12
    assert leased().advance(1).leases["offset"].tolist() == [1, 2]


def test_retention_takes_what_was_not_done_and_only_that_is_lost() -> None:
    done, _ = acknowledged(leased(5), [1, 2], fifo=True)
    after, lost = done.lose(4)
    assert lost == 2, "offsets 0 and 3; 1 and 2 were acknowledged"
    assert (after.committed, after.position, after.lost) == (4, 5, 2)
    assert Consumption(2).lose(6)[1] == 4, "nothing was given out yet: all four are lost"


def test_the_leases_of_a_session_end_when_it_is_told_and_those_of_others_do_not() -> None:
    mine = leased(2, session=5, deadline=NEVER)
    both, _, _ = mine.grant(2, 4, offsets(2, 3), 8, NEVER, 6, now=60)
    after = both.end_session(5, deadline=75)
    assert after.leases["deadline"].tolist() == [75, 75, NEVER, NEVER]
    assert after.leases["session"].tolist() == [0, 0, 6, 6]
    assert after.expired(75)["offset"].tolist() == [0, 1]
    assert after.end_session(4, deadline=80) is after


def test_a_restored_state_still_knows_whose_leases_are_whose() -> None:
    """The table of sessions is not in a checkpoint: it follows from the leases."""
    node, topic, group = filled(3)
    node.command(SetPositions(group, position_rows([(topic, 0, 0)])))
    node.command(GrantLeases(group, topic, 60_000, (QueueGrant(0, 0, 3, np.arange(3, dtype=np.int64)),), 5))
    table = ConsumptionTable(node.state.queues, node.state.groups)
    table.restore(node.state.consumption.copy())
    assert table.drop_idle_sessions() == [5]
    effects = Effects(9, 1, 700)
    table.session_lost(SessionLost(5, 200), effects)
    found = table.get((group, topic, 0))
    assert found is not None and found.leases["deadline"].tolist() == [900, 900, 900]
    assert effects.released == {(group, topic)}
