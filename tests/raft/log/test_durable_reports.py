"""Delivery of the flusher's reports: at once, or with the next look of a loop that asked for patience."""

from __future__ import annotations

from collections.abc import Callable

from ledgermq.raft.log.flusher import DurableReports


class Loop:
    """Calls posted to the loop, and reports delivered there."""

    def __init__(self) -> None:
        self.posted: list[Callable[[], None]] = []
        self.heard: list[int] = []
        self.reports = DurableReports(self.posted.append, self.heard.append)

    def run(self) -> None:
        """Run the posted calls."""
        posted, self.posted[:] = list(self.posted), []
        for call in posted:
            call()


def test_a_report_wakes_the_loop() -> None:
    loop = Loop()
    loop.reports.report(3)
    assert not loop.heard
    loop.run()
    assert loop.heard == [3]


def test_several_reports_are_heard_as_one_and_none_twice() -> None:
    loop = Loop()
    for seq in (1, 2, 5):
        loop.reports.report(seq)
    loop.run()
    loop.reports.look()
    assert loop.heard == [5]


def test_a_patient_loop_is_not_woken_and_hears_with_its_next_look() -> None:
    loop = Loop()
    loop.reports.be_patient()
    loop.reports.report(1)
    assert not loop.posted
    loop.reports.look()
    assert loop.heard == [1]


def test_patience_ends_with_a_look() -> None:
    loop = Loop()
    loop.reports.be_patient()
    loop.reports.look()
    loop.reports.report(1)
    loop.run()
    assert loop.heard == [1]


def test_a_loop_in_a_hurry_is_woken_for_what_was_reported_before() -> None:
    loop = Loop()
    loop.reports.be_patient()
    loop.reports.report(1)
    loop.reports.hurry()
    assert not loop.heard, "not inside the turn that hurries"
    loop.run()
    loop.reports.report(2)
    loop.run()
    assert loop.heard == [1, 2]
