"""Three real processes lose their leader in every way one machine allows; no acknowledged message is lost."""

from __future__ import annotations

import time
from pathlib import Path

from .checks import check_every_node, leads, wait_for_more
from .cluster import Cluster, wait_until
from .history import Load

TOPIC = "failover"


def test_ten_kills_of_the_leader_under_load_lose_no_acknowledged_message(cluster: Cluster) -> None:
    with Load(cluster.nameserver, TOPIC).running() as load:
        for _ in range(10):
            wait_for_more(load)
            leader = cluster.kill_leader()
            cluster.wait_leader(other_than=leader)
            wait_for_more(load)
            cluster.restart(leader)
    check_every_node(cluster, TOPIC, load.history)


def test_a_stopped_leader_is_replaced_and_acknowledges_nothing_when_it_wakes(cluster: Cluster) -> None:
    with Load(cluster.nameserver, TOPIC).running() as load:
        wait_for_more(load)
        leader = cluster.wait_leader()
        cluster.pause(leader)
        others = cluster.others(leader)
        wait_until(lambda: any(leads(cluster, name) for name in others), "another leader")
        wait_for_more(load)
        cluster.resume(leader)
        wait_until(lambda: not leads(cluster, leader), "the old leader steps down")
        wait_for_more(load)
    check_every_node(cluster, TOPIC, load.history)


def test_all_nodes_killed_at_once_and_started_again_have_everything(cluster: Cluster) -> None:
    with Load(cluster.nameserver, TOPIC).running() as load:
        for _ in range(3):
            wait_for_more(load)
            cluster.kill_all()
            cluster.start_all()
    check_every_node(cluster, TOPIC, load.history)


def test_a_planned_stop_hands_the_lead_over_and_loses_nothing(cluster: Cluster) -> None:
    with Load(cluster.nameserver, TOPIC).running() as load:
        for _ in range(3):
            wait_for_more(load)
            leader = cluster.wait_leader()
            assert cluster.terminate(leader) == 0, cluster.nodes[leader].log()
            assert cluster.wait_leader(other_than=leader) != leader
            wait_for_more(load)
            cluster.restart(leader)
    check_every_node(cluster, TOPIC, load.history)


def test_a_node_that_stands_still_again_and_again_tells_how_late_its_timers_come(tmp_path: Path) -> None:
    with Cluster(tmp_path, nodes=1) as running:
        (name,) = running.nodes

        def stands_still() -> bool:
            running.pause(name)
            time.sleep(0.3)
            running.resume(name)
            status = running.status(name)
            return status is not None and status.timer_lateness_ms >= 200

        wait_until(stands_still, "its own lateness")
        status = running.status(name)
        assert status is not None
        assert status.election_timeout_added_ms >= 3 * 200
        assert status.election_timeout_ms == 400 + status.election_timeout_added_ms
