"""Holds in real processes: retention waits, through failovers and up to its limits; a gap is told."""

from __future__ import annotations

import contextlib
import io
from pathlib import Path

import pytest

from ledgermq.client import MessageQueue
from ledgermq.client.admin.held_queues import Hold
from ledgermq.client.cli import run_cli
from ledgermq.client.errors import OffsetOutOfRangeError
from ledgermq.client.sync import Admin

from .cluster import Cluster, wait_until
from .test_retention import LARGER, SECONDS, SMALL, Group, at, gone, has_room, is_settled

QUEUE = MessageQueue("t", "g0", 0)
FIRST_SEGMENT = f"{0:020d}"


def is_held(group: Group) -> bool:
    """Tell whether expired segments stay because of the hold."""
    return "are kept for hold lake of topic t" in group.clean(dry_run=True).note


def held(admin: Admin, name: str = "lake") -> Hold:
    (found,) = [each for each in admin.holds("t") if each.name == name]
    return found


def ledgermq(*arguments: str) -> tuple[int, str]:
    """Run a command; return its exit code, and all that it printed."""
    out = io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(out):
        return run_cli(list(arguments)), out.getvalue()


def test_retention_waits_for_a_hold_through_failovers_and_goes_on_when_it_advances(tmp_path: Path) -> None:
    with Cluster(tmp_path, nodes=3, settings=SMALL | SECONDS) as cluster, Admin(cluster.nameserver) as admin:
        with at(cluster) as group:
            topic = group.topic()
            group.produce_all(topic.topic_id, 60)  # four segments
            (told,) = admin.hold("t", "lake", {QUEUE: 5})
            assert (told.offset, told.overridden) == (5, False)
            with pytest.raises(OffsetOutOfRangeError, match="offsets up to 60"):
                admin.hold("t", "lake", {QUEUE: 61})
            wait_until(lambda: is_held(group), "it expires, and stays")
        for leader in (cluster.wait_leader(), ""):
            if leader:
                cluster.kill(leader)
            with at(cluster, cluster.wait_leader(other_than=leader)) as group:
                wait_until(lambda: is_held(group), "each leader knows the hold")
                assert not group.clean().segments
                assert group.offsets().begin_offset == 0
            if leader:
                cluster.restart(leader)
                cluster.wait_ready(leader)
        cluster.kill_all()
        for name in cluster.nodes:
            cluster.start(name)
        with at(cluster) as group:
            wait_until(lambda: is_held(group), "it is in the checkpoints and in the log")
            assert held(admin).offset == 5
            (told,) = admin.hold("t", "lake", {QUEUE: 40})
            assert not told.overridden, "nothing was missed"
            assert group.clean().segments, "what its holder has may go"
            begin = group.offsets().begin_offset
            assert 0 < begin <= 40
            wait_until(lambda: gone(cluster, FIRST_SEGMENT), "segments deleted on all nodes")
            assert is_held(group) and not held(admin).overridden
            assert admin.release_hold("t", "lake")
            assert group.clean().segments
            assert group.offsets().begin_offset > 40


def test_a_full_disk_overrides_a_hold_and_its_holder_is_told_how_many_messages_it_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Above 85 %: a dead job costs no more than the room that the disk has."""
    with Cluster(tmp_path, nodes=3, settings=LARGER) as cluster, Admin(cluster.nameserver) as admin:
        monkeypatch.setenv("LEDGERMQ_NAMESERVER", cluster.nameserver)
        with at(cluster) as group:
            topic = group.topic()
            group.produce_all(topic.topic_id, 5)
            assert ledgermq("topic", "hold", "t", "--name", "lake", "--offset", "3") == (
                0,
                'hold "lake" of topic "t": retention waits for its holder\n'
                "hold lake: waits at offset 3 of queue 0 in g0\n",
            )
            group.produce_all(topic.topic_id, 400)  # 25 MiB into a store of 12
            wait_until(lambda: gone(cluster, FIRST_SEGMENT), "the first segment is gone everywhere")
            wait_until(lambda: has_room(group) and is_settled(group), "enough is gone")
            begin = group.offsets().begin_offset
            assert begin > 3
        lost = begin - 3
        text = (
            f"hold lake: waits at offset 3 of queue 0 in g0, overridden: {lost:,} messages that it waited for"
        )
        code, out = ledgermq("topic", "describe", "t")
        assert code == 0 and text in out
        for name in cluster.nodes:
            log = (tmp_path / f"{name}.log").read_text()
            assert log.count("messages deleted although a hold waited for them hold=lake topic=t") == 1, (
                "once"
            )
            _, text = cluster.http(name, "/metrics")
            assert f"ledgermq_retention_held_messages_total {float(lost)}" in text.splitlines()
        killed = cluster.kill_leader()
        with at(cluster, cluster.wait_leader(other_than=killed)) as group:
            wait_until(lambda: has_room(group) and is_settled(group), "the new leader has room, too")
            begin = group.offsets().begin_offset
        for _ in range(2):
            (told,) = admin.hold("t", "lake", {QUEUE: begin})
            assert (told.overridden, told.lost, told.offset) == (True, begin - 3, begin), "a repeat, too"
        (told,) = admin.hold("t", "lake", {QUEUE: begin + 1})
        assert not told.overridden


def test_holds_keep_no_more_than_they_may_and_a_silent_holder_keeps_nothing(tmp_path: Path) -> None:
    limits = {"hold-max-bytes": "1MiB", "hold-expires-hours": "0.003"}  # a segment; some ten seconds
    settings = SMALL | SECONDS | limits
    with (
        Cluster(tmp_path, nodes=1, settings=settings) as cluster,
        Admin(cluster.nameserver) as admin,
        at(cluster) as group,
    ):
        topic = group.topic()
        admin.hold("t", "lake", {QUEUE: 0})
        group.produce_all(topic.topic_id, 60)

        def reached() -> bool:
            admin.hold("t", "lake", {QUEUE: 0})  # its holder lives
            return bool(group.clean().segments) and is_held(group)

        wait_until(reached, "what is above the limit goes, the rest stays")
        begin = group.offsets().begin_offset
        assert 0 < begin < 60
        assert held(admin).lost == begin and not held(admin).expired
        wait_until(lambda: held(admin).expired, "its holder is silent")
        assert group.clean().segments
        assert held(admin).lost == group.offsets().begin_offset > begin
