"""TLS between the nodes of a broker group, on real processes: elections, catch-up, a change under load."""

from __future__ import annotations

import asyncio
from pathlib import Path

from ledgermq.client import Producer
from tests.tls import FOREIGN_AUTHORITY, peer_tls_settings

from .checks import check_every_node, wait_for_more
from .cluster import Cluster, wait_until
from .history import Load, run_client


def set_flags(cluster: Cluster, name: str, flags: dict[str, str]) -> None:
    """Change flags of a node for its next start."""
    arguments = cluster.nodes[name].arguments
    for key, value in flags.items():
        arguments[arguments.index(f"--{key}") + 1] = value


def test_nodes_with_tls_elect_catch_up_and_serve_the_same(tmp_path: Path) -> None:
    with Cluster(tmp_path, nodes=3, settings=peer_tls_settings("tls")) as cluster:
        with Load(cluster.nameserver, "secured").running() as load:
            wait_for_more(load)
            killed = cluster.kill_leader()
            wait_for_more(load)
            cluster.restart(killed)
            wait_for_more(load)
        check_every_node(cluster, "secured", load.history)
        assert not any("no TLS" in process.log(1000) for process in cluster.nodes.values())


def test_a_change_to_tls_and_back_under_load_loses_nothing(tmp_path: Path) -> None:
    with Cluster(tmp_path, nodes=3, settings=peer_tls_settings("plaintext")) as cluster:
        with Load(cluster.nameserver, "change").running() as load:
            for value in ("both", "tls", "both", "plaintext"):
                for name, process in cluster.nodes.items():
                    set_flags(cluster, name, {"peer-tls": value})
                    assert cluster.terminate(name) == 0, process.log()
                    cluster.restart(name)
                    wait_for_more(load, 50)
                print(f"\npeer_tls = {value}, terms {cluster.terms()}")
        check_every_node(cluster, "change", load.history)
        assert not load.history.unknown
        logs = [process.log(1000) for process in cluster.nodes.values()]
        assert all("TLS on a Raft port without TLS" in log for log in logs), "it was offered on the way"
        assert not any("plaintext on a Raft port" in log or "refuses this" in log for log in logs)


def test_nodes_that_do_not_fit_are_refused_with_what_to_change(tmp_path: Path) -> None:
    with Cluster(tmp_path, nodes=3, settings=peer_tls_settings("tls")) as cluster:
        leader = cluster.wait_leader()
        changed = cluster.others(leader)[0]
        assert cluster.terminate(changed) == 0
        set_flags(cluster, changed, {"peer-tls": "plaintext"})
        cluster.start(changed)
        wait_until(lambda: "it takes TLS only" in cluster.nodes[changed].log(), "the reason at the caller")
        wait_until(lambda: "plaintext on a Raft port" in cluster.nodes[leader].log(), "the refusal")
        assert cluster.terminate(changed) == 0
        set_flags(cluster, changed, peer_tls_settings("tls", "stranger"))
        cluster.start(changed)
        assert cluster.wait_ended(changed) == 3
        assert "(peer_tls_certificate) cannot be used" in cluster.nodes[changed].log()
        set_flags(cluster, changed, {"peer-tls-ca": str(FOREIGN_AUTHORITY)})
        cluster.start(changed)
        wait_until(
            lambda: "its certificate is not of an authority in peer_tls_ca" in cluster.nodes[leader].log(),
            "the refusal of the certificate",
        )
        assert cluster.nodes[changed].running

        async def send() -> None:
            async with Producer(cluster.nameserver) as producer:
                await asyncio.wait_for(producer.send("refused", b"the others go on"), 60)

        run_client(send())
