"""The verdict of `ledgermq cluster status` and its exit codes."""

from __future__ import annotations

import json

from ledgermq.client.admin import status_report
from ledgermq.client.admin.status_report import BrokerGroupAnswers, BrokerGroupVerdict
from ledgermq.client.durations import duration
from ledgermq.proto import admin_pb2 as pb
from ledgermq.proto import route_pb2

NODES = ("n1", "n2", "n3")


def answer(
    name: str, role: str, *, contact: int = 3, term: int = 7, down: tuple[str, ...] = (), state: str = ""
) -> pb.GetStatusResponse:
    """Return one node's view; `down` are nodes that it cannot reach, `state` is that of n3."""
    # Only a leader knows that others do not reach it
    out_of_reach = "unreachable" if role == "leader" else "unknown"
    nodes = [
        pb.NodeStatus(
            node_id=each,
            role=out_of_reach if each in down else role if each == name else "follower",
            addresses=route_pb2.ListenerAddresses(messaging_address=f"127.0.0.1:{8071 + 10 * int(each[1])}"),
            durable_index=1_048_576,
            commit_index=1_048_576,
            behind_bytes=18 << 20 if each == "n3" and state else 0,
            fsync_p99_ms=1.9,
            disk_used_ratio=0.31,
            state=state if each == "n3" else "",
        )
        for each in NODES
    ]
    return pb.GetStatusResponse(
        cluster="local", group="g0", node_id=name, role=role, term=term, term_age_ms=192_000, voters=3,
        voters_in_contact=contact if role == "leader" else 0, flush="sync", nodes=nodes,
    )  # fmt: skip


def asked(*answers: pb.GetStatusResponse) -> BrokerGroupAnswers:
    return BrokerGroupAnswers("g0", dict.fromkeys(NODES, ""), {each.node_id: each for each in answers})


def test_three_nodes_in_contact_are_healthy() -> None:
    report = status_report.report(
        asked(answer("n1", "follower"), answer("n2", "leader"), answer("n3", "follower"))
    )
    assert report.verdict is BrokerGroupVerdict.HEALTHY
    assert status_report.exit_code([report]) == 0
    assert (
        report.headline()
        == "BROKER GROUP g0   HEALTHY   leader n2   term 7 (3 m 12 s)   quorum 3/3   flush sync"
    )


def test_nodes_of_another_group_of_the_name_make_the_group_degraded_and_are_named() -> None:
    answers = asked(answer("n1", "follower"), answer("n2", "leader"), answer("n3", "follower"))
    answers.strangers = ("n2 at 10.0.0.9:8082",)
    report = status_report.report(answers)
    assert report.verdict is BrokerGroupVerdict.DEGRADED
    assert any("n2 at 10.0.0.9:8082. No client is sent to them" in note for note in report.notes)


def test_a_node_that_catches_up_makes_the_group_degraded() -> None:
    report = status_report.report(
        asked(answer("n2", "leader", state="catching up"), answer("n3", "follower"))
    )
    assert report.verdict is BrokerGroupVerdict.DEGRADED
    row = next(row for row in report.rows if row.node_id == "n3")
    assert status_report.cells(row)[3:] == (
        "1,048,576", "1,048,576", "18 MiB", "1.9 ms", "31 %", "catching up",
    )  # fmt: skip


def test_a_node_that_does_not_answer_makes_the_group_degraded_and_is_named() -> None:
    report = status_report.report(
        asked(answer("n2", "leader", contact=2, down=("n1",)), answer("n3", "follower"))
    )
    assert status_report.exit_code([report]) == 1
    assert "n1" in report.notes[0]


def test_without_a_leader_there_is_no_quorum_even_when_a_node_answers() -> None:
    report = status_report.report(asked(answer("n1", "candidate", down=("n2", "n3"))))
    assert report.verdict is BrokerGroupVerdict.NO_QUORUM
    assert status_report.exit_code([report]) == 2
    assert "2 of 3" in report.notes[0]
    assert "Start n2, n3." in report.notes[0]


def test_a_leader_without_contact_to_a_majority_is_no_quorum() -> None:
    report = status_report.report(asked(answer("n1", "leader", contact=1, down=("n2", "n3"))))
    assert report.verdict is BrokerGroupVerdict.NO_QUORUM


def test_the_leader_of_the_higher_term_is_believed() -> None:
    report = status_report.report(asked(answer("n1", "leader", term=6), answer("n2", "leader", term=7)))
    assert (report.leader_id, report.term) == ("n2", 7)


def test_nothing_answers_is_exit_code_3() -> None:
    report = status_report.report(BrokerGroupAnswers("g0", {"n1": "127.0.0.1:8081"}))
    assert report.verdict is BrokerGroupVerdict.NO_ANSWER
    assert status_report.exit_code([report]) == 3
    assert status_report.exit_code([]) == 3
    assert "127.0.0.1:8081" in report.notes[0]


def test_the_worst_group_decides_the_exit_code() -> None:
    healthy = status_report.report(asked(answer("n2", "leader")))
    silent = status_report.report(BrokerGroupAnswers("g1", {"n4": "127.0.0.1:8111"}))
    assert status_report.exit_code([healthy, silent]) == 2


def test_refused_produce_is_degraded_and_says_why() -> None:
    view = answer("n2", "leader")
    view.produce_refused, view.produce_refused_reason = True, "disk 91 % full"
    report = status_report.report(asked(view))
    assert report.verdict is BrokerGroupVerdict.DEGRADED
    assert "disk 91 % full" in report.notes[0]


def test_durations_and_sizes_are_for_people() -> None:
    assert [duration(ms) for ms in (412, 59_000, 192_000, 7_500_000, 180_000_000)] == [
        "412 ms", "59 s", "3 m 12 s", "2 h 5 m", "2 d 2 h",
    ]  # fmt: skip
    assert [status_report.size(n) for n in (0, 1536, 18 << 20, 3 << 30)] == [
        "0 B",
        "2 KiB",
        "18 MiB",
        "3 GiB",
    ]


def test_json_has_plain_values() -> None:
    values = status_report.report(asked(answer("n2", "leader"))).as_json()
    assert values["verdict"] == "healthy"
    assert isinstance(values["nodes"], list) and len(values["nodes"]) == 3


def test_json_tells_the_version_of_each_node_that_answers() -> None:
    answers = [answer("n1", "follower"), answer("n2", "leader")]
    for each, version in zip(answers, ("0.2.0", "0.1.0"), strict=True):
        each.version = version
    rows = status_report.report(asked(*answers)).as_json()["nodes"]
    assert isinstance(rows, list)
    assert [row["version"] for row in rows] == ["0.2.0", "0.1.0", ""]


def test_it_says_where_the_log_begins_and_when_that_was_stored() -> None:
    leader = answer("n2", "leader")
    leader.first_index, leader.log_start_offset, leader.log_bytes = 1_234, 1 << 30, 3 << 30
    leader.log_start_ms = 1_700_000_000_000
    report = status_report.report(asked(answer("n1", "follower"), leader, answer("n3", "follower")))
    assert report.log_begin == "log from entry 1,234 (offset 00000000001073741824), 3 GiB"
    assert report.as_json()["log_start_ms"] == 1_700_000_000_000
    assert report.verdict is BrokerGroupVerdict.HEALTHY and not report.notes


def test_disk_steps_are_told_of_every_node_and_deleting_unexpired_messages_is_no_good_health() -> None:
    leader, follower = answer("n2", "leader"), answer("n3", "follower")
    follower.disk_step, follower.disk_step_text = 1, "expired messages are deleted at once"
    follower.disk_used_bytes, follower.disk_limit_bytes = 76 << 20, 100 << 20
    report = status_report.report(asked(answer("n1", "follower"), leader, follower))
    assert report.verdict is BrokerGroupVerdict.HEALTHY, "this is what retention is for"
    assert report.notes[0].startswith("n3: 76% of 100 MiB used: expired messages are deleted at once.")
    follower.disk_step = 2
    assert (
        status_report.report(asked(leader, follower, answer("n1", "follower"))).verdict
        is BrokerGroupVerdict.DEGRADED
    )


def test_what_is_protected_is_told() -> None:
    leader = answer("n2", "leader")
    leader.protection = "2 expired segments (2,048 bytes) are kept for consumer group billing in topic orders"
    report = status_report.report(asked(answer("n1", "follower"), leader, answer("n3", "follower")))
    assert report.notes == (f"n2: {leader.protection}",)


def test_a_node_that_repairs_its_log_is_not_called_down_and_what_was_found_is_told() -> None:
    leader = answer("n2", "leader", contact=2, down=("n3",), state="repairing 4,096-8,192, 0 bytes done")
    own = next(node for node in leader.nodes if node.node_id == "n2")
    own.log_check.MergeFrom(
        pb.LogCheck(
            read_bytes=1 << 30, passes=2, found=3, repaired=3, last="0000 at byte 7: bad; 64 bytes repaired"
        )
    )
    report = status_report.report(asked(leader))
    assert report.verdict is BrokerGroupVerdict.DEGRADED
    text = " ".join(report.notes)
    assert "n3 is repairing 4,096-8,192, 0 bytes done" in text and "Start what is down" not in text
    assert "n2: damage found in its log at 3 places since its start, 3 repaired" in text
    shown = {row["node_id"]: row for row in json.loads(json.dumps(report.as_json()))["nodes"]}
    assert (shown["n2"]["checked_bytes"], shown["n2"]["damage_repaired"]) == (1 << 30, 3)
    assert shown["n3"]["checked_bytes"] is None


def test_a_scrubbed_log_without_damage_is_not_mentioned() -> None:
    leader = answer("n2", "leader")
    for node in leader.nodes:
        node.log_check.MergeFrom(pb.LogCheck(read_bytes=5, passes=1))
    assert not status_report.report(asked(leader)).notes


def test_a_new_group_names_the_node_that_was_never_reached() -> None:
    waits = "new broker group: waits for n3, which has never been reached"
    one, two = answer("n1", "learner", term=0), answer("n2", "learner", term=0)
    one.held_back = two.held_back = waits
    report = status_report.report(asked(one, two))
    assert report.verdict is BrokerGroupVerdict.NO_QUORUM
    assert report.notes == (f"n1, n2: {waits}. See: docs/runbook.md",)


def test_a_refused_node_is_shown_as_refused_and_not_as_down() -> None:
    why = "broker group g0 was recovered without the data folder of n3: ledgermq broker --rejoin"
    leader = answer("n2", "leader", contact=2, down=("n3",), state="refused")
    next(node for node in leader.nodes if node.node_id == "n3").refused = why
    lost = answer("n3", "candidate", term=9)
    lost.held_back = f"refused by n1, n2: {why}"
    for answers in ((leader, lost), (leader,)):
        report = status_report.report(asked(*answers))
        assert report.verdict is BrokerGroupVerdict.DEGRADED
        assert report.notes == (f"n3 is refused by the leader: {why}",)
        row = next(row for row in report.rows if row.node_id == "n3")
        assert row.state == "refused" and row.behind_bytes is None
    assert status_report.report(asked(lost)).notes == (f"n3: {lost.held_back}. See: docs/runbook.md",)


def test_a_refused_node_that_went_down_is_shown_as_down_and_why_it_was_refused() -> None:
    leader = answer("n2", "leader", contact=2, down=("n3",))
    next(node for node in leader.nodes if node.node_id == "n3").refused = "come back with --rejoin"
    report = status_report.report(asked(leader))
    assert report.verdict is BrokerGroupVerdict.DEGRADED
    assert report.notes == (
        "n3 was refused by the leader when it was last there: come back with --rejoin",
        "n3 not reached. Start what is down. See: docs/runbook.md",
    )


def test_only_a_leader_tells_how_far_a_node_is_behind() -> None:
    report = status_report.report(asked(answer("n1", "candidate"), answer("n3", "follower")))
    assert {row.behind_bytes for row in report.rows} == {None}


def test_a_follower_with_a_full_disk_is_not_said_to_refuse_what_the_leader_takes() -> None:
    leader, follower = answer("n2", "leader"), answer("n3", "follower")
    follower.disk_step, follower.disk_step_text = 4, "all writes are refused"
    follower.disk_used_bytes = follower.disk_limit_bytes = 100 << 20
    report = status_report.report(asked(answer("n1", "follower"), leader, follower))
    assert report.verdict is BrokerGroupVerdict.DEGRADED
    assert report.notes == (
        "n3: 100% of 100 MiB used: as leader it would refuse messages. n2 leads and takes them, "
        "until too few "
        "nodes have room to store them. See: docs/runbook.md, Disk",
    )
    leader.disk_step, leader.disk_step_text = 4, "all writes are refused"
    assert "n2: 0% of 0 B used: all writes are refused. See" in status_report.report(asked(leader)).notes[0]


def of_masters(*answers: pb.GetStatusResponse) -> BrokerGroupAnswers:
    """n1 is the master."""
    for each in answers:
        each.replication, each.master_id, each.generation, each.voters = "async_master", "n1", 1, 1
    return asked(*answers)


def test_a_group_with_a_master_shows_master_and_slaves() -> None:
    group = status_report.report(of_masters(answer("n1", "leader", contact=1)))
    assert group.verdict is BrokerGroupVerdict.HEALTHY
    assert [row.role for row in group.rows] == ["master", "slave", "slave"]
    assert "master n1" in group.headline() and "replication async_master" in group.headline()
    assert (group.as_json()["master_id"], group.as_json()["generation"]) == ("n1", 1)


def test_a_master_that_is_away_is_called_so_with_what_to_do() -> None:
    slaves = [answer(name, "follower", down=("n1",)) for name in ("n2", "n3")]
    group = status_report.report(of_masters(*slaves))
    assert group.verdict is BrokerGroupVerdict.NO_QUORUM
    assert group.headline().startswith("BROKER GROUP g0   NO MASTER   master n1 (away)")
    assert [row.role for row in group.rows] == ["unknown", "slave", "slave"]
    note, meanwhile, most = group.notes
    assert meanwhile.startswith("meanwhile pull and push consumers of ledgermq.client read")
    assert "Start n1" in note and "ledgermq cluster promote NODE" in note
    assert "Which node has the most is not known: one of them is of an older version" in most


def test_the_slave_with_the_newest_last_entry_has_the_most_not_the_longest_log() -> None:
    n2, n3 = (answer(name, "follower", down=("n1",)) for name in ("n2", "n3"))
    n2.last_term, n2.last_index, n3.last_term, n3.last_index = 4, 900, 5, 800
    notes = status_report.report(of_masters(n2, n3)).notes
    assert any(
        "Of the nodes that answer n3 has the most: up to entry 800 of term 5." in note for note in notes
    )
    n2.last_term, n2.last_index = 5, 800
    notes = status_report.report(of_masters(n2, n3)).notes
    assert any("n2, n3 have the most" in note for note in notes)
    n1 = answer("n1", "learner")  # the master came back without the end of its log, or perhaps with all of it
    n1.last_term, n1.last_index = 5, 810
    assert any("n1 has the most" in note for note in status_report.report(of_masters(n1, n2, n3)).notes)
    notes = status_report.report(of_masters(n2)).notes
    assert any("n3 may have more: start what can be started first" in note for note in notes)


def test_it_shows_who_is_being_promoted() -> None:
    n2 = answer("n2", "follower", down=("n1",))
    n2.promoting = "reads and verifies its log (34%)"
    notes = status_report.report(of_masters(n2)).notes
    assert "n2 is being promoted to the master: it reads and verifies its log (34%)" in notes


def test_sync_master_with_an_asynchronous_flush_is_not_called_durable() -> None:
    leader = answer("n1", "leader", contact=1)
    asked_ = of_masters(leader)
    leader.replication, leader.flush = "sync_master", "async_timed"
    assert any(
        "confirms what is in its memory, not yet on its disk" in n for n in status_report.report(asked_).notes
    )
    leader.flush = "sync"
    assert status_report.report(asked_).notes == ()


def test_a_slave_that_is_away_is_no_loss_of_the_quorum() -> None:
    group = status_report.report(of_masters(answer("n1", "leader", contact=1, down=("n2",))))
    assert group.verdict is BrokerGroupVerdict.DEGRADED
    assert any("n2 not reached" in note for note in group.notes)


def silent_slaves(replication: str, *, silent_ms: int = 8000) -> BrokerGroupAnswers:
    """Only the master n1 answers; it takes n2 and n3 for connected and has heard nothing of them."""
    leader = answer("n1", "leader", contact=1)
    for node in leader.nodes[1:]:
        node.last_contact_ms = silent_ms
    group = of_masters(leader)
    leader.replication = replication
    return group


def test_a_master_without_the_slaves_that_must_confirm_is_not_healthy() -> None:
    asked_ = silent_slaves("sync_master")
    asked_.answers["n1"].slaves_needed = 1
    group = status_report.report(asked_)
    assert (group.verdict, status_report.exit_code([group])) == (BrokerGroupVerdict.NO_QUORUM, 2)
    assert group.headline().startswith("BROKER GROUP g0   TOO FEW SLAVES   master n1 ")
    assert "1 slaves must have it, and 0 are in contact. Start n2, n3" in group.notes[0]
    assert [row.state for row in group.rows] == ["", "no answer", "no answer"]
    asked_.answers["n1"].slaves_in_contact = 1
    assert status_report.report(asked_).verdict is BrokerGroupVerdict.DEGRADED


def test_a_master_that_waits_for_no_silent_slaves_is_degraded_and_names_them() -> None:
    group = status_report.report(silent_slaves("async_master"))
    assert group.verdict is BrokerGroupVerdict.DEGRADED
    assert "n2, n3 did not answer, and the leader has not heard them" in group.notes[0]


def test_nodes_that_the_leader_hears_but_we_do_not_are_shown_and_cost_no_health() -> None:
    group = status_report.report(silent_slaves("async_master", silent_ms=30))
    assert group.verdict is BrokerGroupVerdict.HEALTHY
    assert [row.state for row in group.rows] == ["", "no answer", "no answer"]
    assert group.notes == ()


def test_without_a_leader_frozen_followers_are_named_and_have_no_numbers() -> None:
    group = status_report.report(asked(answer("n1", "candidate")))
    assert group.verdict is BrokerGroupVerdict.NO_QUORUM
    assert [row.state for row in group.rows] == ["", "no answer", "no answer"]
    assert [row.durable_index for row in group.rows] == [1_048_576, None, None]
    assert "Start n2, n3 (n2, n3 did not answer" in group.notes[0]


def test_the_column_of_the_disk_and_the_text_below_do_not_contradict_each_other() -> None:
    leader, follower = answer("n2", "leader"), answer("n3", "follower")
    follower.disk_step, follower.disk_step_text = 4, "messages are refused"
    follower.disk_used_bytes = 94 << 20
    follower.disk_limit_bytes = follower.max_store_bytes = 100 << 20
    report = status_report.report(asked(answer("n1", "follower"), leader, follower))
    shown = [status_report.cells(row)[-2] for row in report.rows]
    assert shown == ["31 %", "31 %", "94 % of 100 MiB, disk 31 %"]
    assert "n3: 94% of 100 MiB (max_store_bytes) used" in report.notes[0]


def test_a_disk_that_something_else_fills_is_told_although_the_log_has_room() -> None:
    leader = answer("n2", "leader")
    leader.disk_used_bytes, leader.disk_limit_bytes, leader.max_store_bytes = 10 << 20, 100 << 20, 100 << 20
    leader.nodes[1].disk_used_ratio = 0.93
    report = status_report.report(asked(answer("n1", "follower"), leader, answer("n3", "follower")))
    assert status_report.cells(report.rows[1])[-2] == "disk 93 %, 10 % of 100 MiB"
    assert report.notes[0].startswith(
        "n2: its disk is 93% full, although its log has only 10% of max_store_bytes"
    )


def test_a_clock_that_leans_is_told_with_what_it_means_and_how_long_it_lasts() -> None:
    leader, follower = answer("n2", "leader"), answer("n3", "follower")
    leader.clock_offset_ms = -42_000
    (note,) = status_report.report(asked(answer("n1", "follower"), leader, follower)).notes
    assert note.startswith(
        "clocks: n2 is 42 s behind log time, which goes slower by 1 % until they agree (about 1 h 10 m"
    )
    assert "Ages, delays and --from TIME count by log time" in note and "timedatectl" in note
    leader.clock_offset_ms, follower.clock_offset_ms = 900, 5_000
    (note,) = status_report.report(asked(answer("n1", "follower"), leader, follower)).notes
    assert note.startswith("clocks: n3 is 5 s ahead of log time. Compare them")


def test_a_group_of_which_no_node_answers_is_not_started_as_another_cluster() -> None:
    down = BrokerGroupAnswers("g1", {"n4": "127.0.0.1:8111"})
    assert status_report.report(down).notes == (
        "no node answers: n4 (127.0.0.1:8111). Start them: ledgermq up",
    )
    down.others_answer = True
    (note,) = status_report.report(down).notes
    assert "ledgermq up --data FOLDER" in note and "not a second cluster" in note
    assert note.endswith("ledgermq cluster forget-group g1")


def test_a_group_without_a_leader_says_who_is_served_meanwhile() -> None:
    report = status_report.report(asked(answer("n1", "follower", down=("n2", "n3"))))
    assert report.verdict is BrokerGroupVerdict.NO_QUORUM
    assert "official clients wait, and get NO_QUORUM or HA_NOT_AVAILABLE" in report.notes[-1]


def late(node: pb.GetStatusResponse, *, timers: int = 0, heartbeats: int = 0) -> pb.GetStatusResponse:
    """Let a node have measured that; it waits three times as long in addition to 400 ms."""
    node.timer_lateness_ms, node.heartbeat_lateness_ms = timers, heartbeats
    node.election_timeout_added_ms = 3 * max(timers, heartbeats)
    node.election_timeout_ms = 400 + node.election_timeout_added_ms
    return node


def test_a_node_that_is_short_of_cpu_is_named_with_what_it_does_about_it_and_so_is_who_hears_it_late() -> (
    None
):
    leader = late(answer("n2", "leader"), timers=340, heartbeats=330)
    follower = late(answer("n3", "follower"), heartbeats=310)
    report = status_report.report(asked(answer("n1", "follower"), leader, follower))
    assert report.verdict is BrokerGroupVerdict.HEALTHY, "it is slower to fail over, and works"
    cause, effect = report.notes
    assert cause.startswith(
        "n2 is short of CPU: its timers came 340 ms late, more than once in the last half minute, "
        "so it waits 1,420 ms for a silent leader instead of 400. Give it CPU"
    )
    assert cause.endswith("See: docs/runbook.md, Elections again and again")
    assert effect.startswith("n3 heard heartbeats 310 ms late")
    assert "That comes most likely from n2, short of CPU." in effect
    row = report.as_json()["nodes"][1]  # type: ignore[index]
    assert (row["timer_lateness_ms"], row["heartbeat_lateness_ms"]) == (340, 330)
    assert (row["election_timeout_ms"], row["election_timeout_added_ms"]) == (1420, 1020)


def test_lateness_that_no_timers_explain_is_looked_for_on_the_other_machine_and_in_the_network() -> None:
    leader, follower = (
        late(answer("n2", "leader"), timers=20, heartbeats=200),
        late(answer("n3", "follower"), heartbeats=90),
    )
    of_leader, of_follower = status_report.report(asked(answer("n1", "follower"), leader, follower)).notes
    assert of_leader.startswith("n2 got answers to its heartbeats 200 ms late")
    assert (
        "Its own timers are on time: look at its followers (vmstat 1 there), and at the network" in of_leader
    )
    assert "look at n2 (vmstat 1 there)" in of_follower
    late(follower, timers=250)
    of_leader, of_follower = status_report.report(asked(answer("n1", "follower"), leader, follower)).notes
    assert "most likely from n3, short of CPU" in of_leader
    assert of_follower.startswith("n3 is short of CPU")


def test_a_late_node_without_elections_is_not_said_to_wait_for_a_leader() -> None:
    alone = late(answer("n1", "leader", contact=1), timers=300)
    alone.voters = 1
    del alone.nodes[1:]
    (note,) = status_report.report(BrokerGroupAnswers("g0", {"n1": ""}, {"n1": alone})).notes
    assert note.startswith(
        "n1 is short of CPU: its timers came 300 ms late, more than once in the last half minute. Give"
    )


def test_what_was_late_and_stretches_nothing_is_no_note() -> None:
    leader = answer("n2", "leader")
    leader.timer_lateness_ms, leader.election_timeout_ms = 30, 400
    assert status_report.report(asked(answer("n1", "follower"), leader, answer("n3", "follower"))).notes == ()
