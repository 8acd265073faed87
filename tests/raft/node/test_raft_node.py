"""RaftNodes over real streams and files: elect, commit, lose the leader, catch up, restart."""

from __future__ import annotations

import asyncio
import shutil
import threading
import time
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from ledgermq.proto.entry import entry_size
from ledgermq.raft.core.messages import Heartbeat
from ledgermq.raft.errors import DamagedFolderError, EntryTooLargeError, NotLeaderError
from ledgermq.raft.folder.opening import check_state_fits
from ledgermq.raft.log.segment import place_entry
from ledgermq.raft.node.raft_node import RaftNode
from ledgermq.raft.transport.hello import RefusalKind
from ledgermq.raft.transport.stream_kind import StreamKind
from ledgermq.raft.transport.wire import encode_control
from ledgermq.raft.types import LogIndex, NodeId, Term

from ..node_cluster import SEGMENT, Cluster, RecordingStateMachine


@pytest.mark.cluster("n1")
async def test_a_single_node_leads_and_commits_alone(cluster: Cluster) -> None:
    await cluster.begin(b"one", b"two")
    assert cluster.applied("n1") == [b"one", b"two"]


async def test_three_new_nodes_elect_a_leader_and_hold_identical_logs(cluster: Cluster) -> None:
    await cluster.start()
    sent = [b"message %d" % n * (1 + n * 40) for n in range(50)]
    await cluster.send(*sent)
    await cluster.settle()
    for name in cluster.nodes:
        assert cluster.applied(name) == sent
    logs = {cluster.log_bytes(name) for name in cluster.nodes}
    assert len(logs) == 1


async def test_entries_that_fill_several_segments_are_identical_everywhere(cluster: Cluster) -> None:
    await cluster.begin(*(bytes([n]) * (SEGMENT // 5) for n in range(12)))
    logs = {cluster.log_bytes(name) for name in cluster.nodes}
    assert len(logs) == 1
    assert len(logs.pop()) > 2 * SEGMENT


async def test_proposals_of_one_turn_commit_together_in_order(cluster: Cluster) -> None:
    await cluster.start()
    node = cluster.nodes[await cluster.leader()]
    proposals = [node.propose([b"%d" % n], 1) for n in range(200)]
    await asyncio.gather(*(proposal.committed for proposal in proposals))
    indexes = [proposal.index for proposal in proposals]
    assert indexes == list(range(indexes[0], indexes[0] + 200))
    await node.wait_applied(indexes[-1])
    assert node.applied_index >= indexes[-1]


@pytest.mark.cluster("n1")
async def test_the_announced_place_and_time_are_those_of_the_next_proposal(cluster: Cluster) -> None:
    await cluster.start()
    node = cluster.nodes[await cluster.leader()]
    for size in (10, SEGMENT // 5, SEGMENT // 5, SEGMENT // 5, SEGMENT // 5, SEGMENT // 5):
        place, now = place_entry(node.log.end_offset, entry_size(size), SEGMENT), node.next_timestamp()
        proposal = node.propose([bytes(size)], 1)
        assert (proposal.header.physical_offset, proposal.timestamp) == (place, now)
        await proposal.committed


async def test_a_follower_refuses_proposals_and_names_the_leader(cluster: Cluster) -> None:
    await cluster.start()
    leader = await cluster.leader()
    follower = next(name for name in cluster.nodes if name != leader)
    with pytest.raises(NotLeaderError) as refusal:
        cluster.nodes[follower].propose([b"x"], 1)
    assert refusal.value.leader == leader


@pytest.mark.cluster("n1")
async def test_an_entry_above_the_limit_is_refused_and_nothing_is_appended(cluster: Cluster) -> None:
    await cluster.start()
    node = cluster.nodes[await cluster.leader()]
    last = node.last_index
    with pytest.raises(EntryTooLargeError):
        node.propose([bytes(SEGMENT)], 1)
    with pytest.raises(EntryTooLargeError, match="70000 sections"):
        node.propose([bytes(64)], 70_000)
    assert node.last_index == last
    await node.propose([bytes(64)], 1).committed  # the refusal left nothing behind


async def test_a_killed_leader_is_replaced_and_catches_up_when_it_returns(cluster: Cluster) -> None:
    await cluster.begin(b"before")
    first = await cluster.leader()
    await cluster.kill(first)
    await cluster.send(*(b"without %d" % n for n in range(30)))
    second = await cluster.leader()
    assert second != first
    await cluster.start(first)
    await cluster.send(b"after")
    await cluster.settle()
    expected = [b"before", *(b"without %d" % n for n in range(30)), b"after"]
    assert all(cluster.applied(name) == expected for name in cluster.nodes)
    assert len({cluster.log_bytes(name) for name in cluster.nodes}) == 1


async def test_what_was_committed_survives_the_death_of_all_nodes(cluster: Cluster) -> None:
    await cluster.begin(b"one", b"two")
    await cluster.kill("n1", "n2", "n3")
    await cluster.begin(b"three")
    for name in cluster.nodes:
        assert cluster.applied(name) == [b"one", b"two", b"three"]


async def test_without_a_majority_nothing_is_committed_and_with_one_it_goes_on(cluster: Cluster) -> None:
    await cluster.begin(b"one")
    leader = await cluster.leader()
    others = [name for name in cluster.nodes if name != leader]
    await cluster.kill(*others)
    node = cluster.nodes[leader]
    proposal = node.propose([b"alone"], 1)
    await cluster.until(lambda: not node.is_leader, "a leader without a majority steps down")
    assert not proposal.committed.done() or proposal.committed.exception() is not None
    assert b"alone" not in cluster.applied(leader)
    await cluster.start(others[0])
    await cluster.send(b"two")


async def test_a_planned_stop_hands_the_lead_over(cluster: Cluster) -> None:
    await cluster.begin(b"one")
    first = await cluster.leader()
    term = cluster.nodes[first].term
    await cluster.stop(first)
    assert any(node.is_leader for node in cluster.nodes.values())
    assert all(node.term == term + 1 for node in cluster.nodes.values())
    await cluster.send(b"two")


async def test_the_lead_can_be_given_to_a_named_node(cluster: Cluster) -> None:
    await cluster.begin(b"one")
    first = await cluster.leader()
    target = next(name for name in sorted(cluster.nodes) if name != first)
    assert await cluster.nodes[first].transfer_leadership(cluster.nodes[target].config.node_id) == target
    assert await cluster.leader() == target


async def test_a_read_index_on_any_node_covers_what_was_committed_before(cluster: Cluster) -> None:
    await cluster.start()
    proposal = (await cluster.send(b"one"))[0]
    for node in cluster.nodes.values():
        index = await node.read_index()
        assert index >= proposal.index
        await node.wait_applied(index)
        assert node.applied_index >= proposal.index


async def test_a_state_machine_that_fails_faults_its_node_only(cluster: Cluster) -> None:
    await cluster.start()
    leader = await cluster.leader()
    victim = next(name for name in cluster.nodes if name != leader)
    cluster.machines[victim].fail_at = cluster.nodes[leader].last_index + 1
    await cluster.send(b"one")
    reason = await cluster.nodes[victim].wait_fatal()
    assert "a bug in apply" in reason
    assert cluster.nodes[victim].role == "faulted"
    await cluster.kill(victim)
    await cluster.send(b"two")


async def test_the_status_shows_every_member_its_progress_and_its_disk(cluster: Cluster) -> None:
    await cluster.begin(b"one")
    node = cluster.nodes[await cluster.leader()]
    await cluster.until(
        lambda: all(
            peer.durable_index == node.last_index and peer.role != "learner" for peer in node.status().peers
        ),
        "reported",
    )
    status = node.status()
    assert status.role == "leader"
    assert status.voters_reachable == 3
    assert [peer.node_id for peer in status.peers] == ["n1", "n2", "n3"]
    assert sorted(peer.role for peer in status.peers) == ["follower", "follower", "leader"]
    assert all(peer.connected and not peer.catching_up for peer in status.peers)
    assert all(0 < (peer.disk_used_ratio or 0) < 1 for peer in status.peers)


async def test_a_member_that_is_not_reached_is_not_said_to_catch_up(cluster: Cluster) -> None:
    await cluster.begin(b"one")
    node = cluster.nodes[await cluster.leader()]
    gone = next(name for name in cluster.nodes if name != node.config.node_id)
    await cluster.kill(gone)
    await cluster.send(b"two")
    await cluster.until(
        lambda: any(peer.node_id == gone and not peer.connected for peer in node.status().peers), "gone"
    )
    assert not any(peer.catching_up for peer in node.status().peers)


async def test_the_status_tells_how_far_the_builds_of_the_others_go_also_of_one_that_is_away(
    cluster: Cluster,
) -> None:
    def levels() -> list[int | None]:
        return [peer.feature_level for peer in cluster.nodes["n1"].status().peers]

    await cluster.start("n1", feature_level=2)
    assert levels() == [2, None, None]
    await cluster.start("n2", feature_level=1)
    await cluster.start("n3", feature_level=2)
    await cluster.until(lambda: levels() == [2, 1, 2])
    await cluster.leader()
    await cluster.kill("n2")
    assert levels() == [2, 1, 2]
    await cluster.start("n2", feature_level=2)
    await cluster.until(lambda: levels() == [2, 2, 2])


async def test_a_node_without_the_folder_of_its_indexes_makes_them_again(
    cluster: Cluster, tmp_path: Path
) -> None:
    await cluster.begin(*(bytes([n]) * (SEGMENT // 5) for n in range(12)))
    await cluster.stop("n3")
    shutil.rmtree(tmp_path / "n3" / "entryindex")
    await cluster.start("n3")
    await cluster.send(*(bytes([n]) * (SEGMENT // 5) for n in range(12)))
    await cluster.settle()
    assert not cluster.fatal
    assert len({cluster.log_bytes(name) for name in cluster.nodes}) == 1


async def test_a_node_whose_term_and_vote_are_older_than_its_log_does_not_start(
    cluster: Cluster, tmp_path: Path
) -> None:
    await cluster.begin(b"one")
    await cluster.stop("n1")
    hard_state = tmp_path / "n1" / "hardstate"
    old = hard_state.read_bytes()
    await cluster.start("n1")
    await cluster.nodes[await cluster.leader()].transfer_leadership()
    await cluster.leader()
    await cluster.send(b"two")
    await cluster.settle()
    await cluster.stop("n1")
    hard_state.write_bytes(old)
    with pytest.raises(
        DamagedFolderError, match=r"hardstate knows term \d+ and the log ends in term.*--rejoin"
    ):
        await cluster.start("n1")
    await cluster.start("n1", rejoin=True)
    await cluster.settle()


@pytest.mark.cluster("n1")
async def test_a_node_whose_state_is_ahead_of_its_log_or_behind_its_beginning_does_not_start(
    cluster: Cluster,
) -> None:
    await cluster.begin(b"one")
    node = cluster.nodes["n1"]
    last = node.log.last_index
    check_state_fits(node.config, last, node.log)
    with pytest.raises(DamagedFolderError, match=r"its log ends at entry .*--rejoin; nothing was changed"):
        check_state_fits(node.config, LogIndex(last + 1), node.log)
    with pytest.raises(DamagedFolderError, match=r"its log begins at entry 1,"):
        check_state_fits(node.config, LogIndex(-1), node.log)


class SlowStateMachine(RecordingStateMachine):
    """It says who loads its state, and what the node says meanwhile."""

    def __init__(self) -> None:
        super().__init__()
        self.loaded_by: list[int] = []
        self.node: RaftNode
        self.said = ""

    def load(self) -> LogIndex:
        self.loaded_by.append(threading.get_ident())
        self.said = self.said or self.node.starting
        return super().load()


@pytest.mark.cluster("n1")
async def test_the_state_is_loaded_in_a_thread_and_what_the_node_does_is_told(cluster: Cluster) -> None:
    """Probes use the same event loop meanwhile."""
    machine = SlowStateMachine()
    machine.node = node = RaftNode(cluster.config("n1"), machine)
    assert node.starting == "opens its data folder"
    await node.start()
    assert threading.get_ident() not in machine.loaded_by
    assert machine.said == "loads its state" and not node.starting
    await node.stop()


class Ahead(NamedTuple):
    """Effects of a peer's forged message on a follower."""

    node: RaftNode
    leader: str


async def _forge(cluster: Cluster, **changes: Any) -> Ahead:
    """Let a follower receive a frame with a heartbeat of its leader and changed fields."""
    await cluster.begin(b"one")
    leader = await cluster.leader()
    node = cluster.nodes[next(name for name in cluster.nodes if name != leader)]
    heartbeat = Heartbeat(node.term, NodeId(leader), node.config.node_id, LogIndex(0), 0, 0)
    node._gate.on_frame(NodeId(leader), StreamKind.CONTROL, encode_control([replace(heartbeat, **changes)]))
    return Ahead(node, leader)


async def test_a_term_that_no_elections_lead_to_ends_the_connection_and_not_the_group(
    cluster: Cluster, caplog: pytest.LogCaptureFixture
) -> None:
    forged = await _forge(cluster, term=(1 << 64) - 1)
    assert forged.node.term < 1000
    assert not forged.node._transport.is_heard(NodeId(forged.leader)), "that connection ended"
    await cluster.send(b"two")
    await cluster.settle()
    assert cluster.applied(forged.node.config.node_id) == [b"one", b"two"]

    assert [record.message for record in caplog.records if "term refused" in record.message]


async def test_a_peer_in_a_term_that_no_elections_lead_to_is_refused_with_the_way_back(
    cluster: Cluster,
) -> None:
    await cluster.start()
    await cluster.leader()
    one, two = cluster.nodes["n1"], cluster.nodes["n2"]
    hello = replace(two._rights.hello(NodeId("n1"), 0.0, 0.0), term=Term(1 << 62))
    refusal = await one._rights.admit(hello)
    assert refusal is not None
    assert refusal.kind is RefusalKind.TERM
    assert "--rejoin" in refusal.text
    assert "cluster recover" in refusal.text


async def test_a_heartbeat_with_a_log_time_years_ahead_moves_nothing(cluster: Cluster) -> None:
    years_ahead = int(time.time() * 1000) + 10 * 365 * 24 * 3_600_000
    forged = await _forge(cluster, log_time_ms=years_ahead)
    assert forged.node.next_timestamp() < years_ahead - 24 * 3_600_000


async def test_log_time_is_taken_from_the_leader_and_from_nobody_else(cluster: Cluster) -> None:
    await cluster.start()
    leader = await cluster.leader()
    node, other = (each for name, each in cluster.nodes.items() if name != leader)
    log_time = node._driver.log_time.floor + 5_000
    forged = Heartbeat(
        node.term, other.config.node_id, node.config.node_id, LogIndex(0), log_time_ms=log_time
    )
    node._driver.step(forged, memoryview(b""))
    assert node._driver.log_time.floor < log_time
