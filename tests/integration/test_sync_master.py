"""sync_master in real processes: an answer waits for slaves, and reports in-band that they lack a message."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from ledgermq.client import Producer
from ledgermq.client.errors import SendTimeoutError
from ledgermq.proto import rocketmq_v2_pb2 as v2

from .cluster import Cluster, wait_until
from .history import Load, read_topic, run_client
from .masters import cluster_of, new_id, promote, send_officially, wait_level

TOPIC = "payments"


def stored(cluster: Cluster, name: str) -> list[bytes]:
    return sorted(read_topic(cluster.address(name), TOPIC).values())


def test_a_slave_that_stops_answering_is_told_in_band_and_the_repeat_is_stored_once(tmp_path: Path) -> None:
    with cluster_of(tmp_path, "sync_master", 2, **{"slave-timeout-ms": "500"}) as cluster:
        address = cluster.address("n1", "messaging")
        assert send_officially(address, TOPIC, b"both").code == v2.OK
        assert stored(cluster, "n2") == [b"both"], "it is there when the answer is"
        cluster.pause("n2")
        once = new_id()
        status = send_officially(address, TOPIC, b"kept", once)
        assert status.code == v2.SLAVE_PERSISTENCE_TIMEOUT
        assert "It is kept" in status.message
        assert stored(cluster, "n1") == [b"both", b"kept"]
        repeat = send_officially(address, TOPIC, b"kept", once)
        assert repeat.code in (v2.SLAVE_PERSISTENCE_TIMEOUT, v2.HA_NOT_AVAILABLE), (
            "not before the slave has it"
        )
        cluster.resume("n2")
        wait_level(cluster, "n1")
        assert send_officially(address, TOPIC, b"kept", once).code == v2.OK
        assert stored(cluster, "n1") == stored(cluster, "n2") == [b"both", b"kept"]


def test_an_answer_leaves_before_the_callers_deadline(tmp_path: Path) -> None:
    """slave_timeout is 3 s by default, which is also how long official clients wait."""
    with cluster_of(tmp_path, "sync_master", 2) as cluster:
        address = cluster.address("n1", "messaging")
        assert send_officially(address, TOPIC, b"both").code == v2.OK
        cluster.pause("n2")
        assert send_officially(address, TOPIC, b"late", timeout=2).code == v2.SLAVE_PERSISTENCE_TIMEOUT


def test_a_slave_passes_the_masters_answer_on(tmp_path: Path) -> None:
    """Two of two slaves must have it, and the client calls the one that is well."""
    settings = {"slave-timeout-ms": "800", "min-insync-slaves": "2"}
    with cluster_of(tmp_path, "sync_master", 3, **settings) as cluster:
        address = cluster.address("n2", "messaging")
        assert send_officially(address, TOPIC, b"all").code == v2.OK
        cluster.pause("n3")
        once = new_id()
        status = send_officially(address, TOPIC, b"kept", once)
        assert status.code == v2.SLAVE_PERSISTENCE_TIMEOUT
        assert "only 1 of 2 slaves" in status.message
        cluster.resume("n3")
        wait_level(cluster, "n1")
        assert send_officially(address, TOPIC, b"kept", once).code == v2.OK
        assert stored(cluster, "n3") == [b"all", b"kept"]


def test_without_slaves_in_contact_the_answer_does_not_wait(tmp_path: Path) -> None:
    with cluster_of(tmp_path, "sync_master", 3, **{"slave-timeout-ms": "60000"}) as cluster:
        address = cluster.address("n1", "messaging")
        cluster.kill("n2")
        assert send_officially(address, TOPIC, b"one is enough").code == v2.OK
        cluster.kill("n3")
        once = new_id()

        def away() -> bool:
            return send_officially(address, TOPIC, b"kept", once, timeout=2).code == v2.HA_NOT_AVAILABLE

        wait_until(away, "the master finds its slaves gone")
        assert stored(cluster, "n1") == [b"kept", b"one is enough"]
        cluster.restart("n3")
        wait_level_of(cluster, "n3")
        assert send_officially(address, TOPIC, b"kept", once).code == v2.OK
        assert stored(cluster, "n3") == [b"kept", b"one is enough"]


def wait_level_of(cluster: Cluster, name: str) -> None:
    def level() -> bool:
        status = cluster.status("n1")
        return status is not None and any(
            node.node_id == name and node.role == "follower" and not node.behind_bytes
            for node in status.nodes
        )

    wait_until(level, f"{name} has everything")


def test_our_producer_repeats_until_a_slave_has_it(tmp_path: Path) -> None:
    async def scenario(cluster: Cluster) -> None:
        nameserver = cluster.nameserver
        async with Producer(nameserver, timeout_ms=60_000) as producer:
            await producer.send(TOPIC, b"both")
            await asyncio.to_thread(cluster.pause, "n2")
            async with Producer(nameserver, timeout_ms=1500) as hasty:
                with pytest.raises(SendTimeoutError, match="stored by the master"):
                    await hasty.send(TOPIC, b"kept")
            waiting = asyncio.create_task(producer.send(TOPIC, b"patient"))

            def kept() -> bool:
                return b"patient" in stored(cluster, "n1")

            await asyncio.to_thread(wait_until, kept, "the master has it")
            assert not waiting.done(), "no answer before a slave has it"
            await asyncio.to_thread(cluster.resume, "n2")
            await waiting
        assert stored(cluster, "n2") == [b"both", b"kept", b"patient"], "each once"

    with cluster_of(tmp_path, "sync_master", 2, **{"slave-timeout-ms": "300"}) as cluster:
        run_client(scenario(cluster))


def test_what_was_confirmed_survives_the_master_when_a_slave_is_promoted(tmp_path: Path) -> None:
    with cluster_of(tmp_path, "sync_master", 2, **{"slave-timeout-ms": "2000"}) as cluster:
        with Load(cluster.nameserver, TOPIC, in_flight=32, timeout_ms=60_000).running() as load:
            wait_until(lambda: load.count > 1000, "messages")
            wait_until(
                lambda: "broker group id known" in cluster.nodes["n2"].log(1000), "n2 belongs to the group"
            )
            cluster.kill("n1")
            done = promote(cluster, "n2")
            assert done.returncode == 0, done.stdout + done.stderr
            cluster.start("n1")  # a master needs its slave to confirm anything
            seen = load.count
            wait_until(lambda: load.count > seen + 200, "sends go on", 60)
        wait_level(cluster, "n2")
        for name in ("n1", "n2"):
            load.history.check(read_topic(cluster.address(name), TOPIC), name)
