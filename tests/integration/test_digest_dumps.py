"""Digests of nodes that write meanwhile, in real processes: no false alarm, little moved, damage named."""

from __future__ import annotations

import asyncio
import json
import random
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from ledgermq.client import Message, Producer
from ledgermq.client.errors import LedgerMQError
from ledgermq.proto.block_digest import BLOCK_SIZE
from ledgermq.proto.digest_file import decode_digests, encode_digests

from .cluster import Cluster
from .replica_checks import check

pytestmark = [pytest.mark.long, pytest.mark.spark]
SETTINGS = {
    "segment-size": "6MiB", "max-message-bytes": "128KiB", "max-store-bytes": "80MiB",
    "delete-unexpired": "true", "scrub-bytes-per-second": "64MiB", "scrub-interval-hours": "0.001",
}  # fmt: skip
#: In the suite. Hundreds were run when this was written.
ROUNDS = 4


async def _send(nameserver: str, stopping: threading.Event) -> None:
    rng = random.Random(7)
    async with Producer(nameserver) as producer:
        while not stopping.is_set():
            try:
                await producer.send_batch(
                    Message("load", rng.randbytes(rng.randrange(1, 6000))) for _ in range(100)
                )
            except LedgerMQError:
                await asyncio.sleep(0)  # retention makes room again


@contextmanager
def load(cluster: Cluster) -> Iterator[None]:
    """Messages all the time."""
    stopping = threading.Event()
    thread = threading.Thread(target=lambda: asyncio.run(_send(cluster.nameserver, stopping)))
    thread.start()
    try:
        yield
    finally:
        stopping.set()
        thread.join()


def command(cluster: Cluster, *words: str) -> subprocess.CompletedProcess[str]:
    program = str(Path(sys.executable).with_name("ledgermq"))
    return subprocess.run([program, *words], capture_output=True, text=True, check=False)


def dump(cluster: Cluster, folder: Path, *flags: str) -> bool:
    """Take the digests of all nodes. False: retention deleted segments meanwhile, five times."""
    done = command(cluster, "dump", str(folder), "--digests", *flags, "--nameserver", cluster.nameserver)
    if done.returncode and "(5 of 5)" in done.stderr:
        return False
    assert done.returncode == 0, done.stdout + done.stderr
    return True


def fill(cluster: Cluster, size: int) -> None:
    async def send() -> None:
        async with Producer(cluster.nameserver) as producer:
            rng = random.Random(1)
            for _ in range(size // (100 * 10_000) + 1):
                await producer.send_batch(Message("load", rng.randbytes(10_000)) for _ in range(100))

    asyncio.run(send())


def test_digests_of_nodes_under_load_agree_every_time(tmp_path: Path) -> None:
    with Cluster(tmp_path / "cluster", nodes=3, settings=SETTINGS) as cluster:
        fill(cluster, 20 << 20)
        with load(cluster):
            for number in range(ROUNDS):
                folder = tmp_path / f"digests-{number}"
                if dump(cluster, folder):
                    checked = check(folder, "--json", "--nameserver", cluster.nameserver)
                    verdict = json.loads(checked.stdout)
                    assert (checked.returncode, verdict["findings"]) == (0, []), checked.stdout
                    assert set(verdict["digests_read_ms"]) == set(cluster.nodes)
                    assert all(node["size"] > 10 << 20 for node in verdict["nodes"])


def test_little_is_moved_and_what_differs_is_fetched_and_named(tmp_path: Path) -> None:
    with Cluster(tmp_path / "cluster", nodes=3, settings=SETTINGS) as cluster:
        fill(cluster, 40 << 20)
        folder = tmp_path / "digests"
        assert dump(cluster, folder)
        moved = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
        assert moved < 3 * 3 * BLOCK_SIZE
        report = tmp_path / "live"
        live = command(cluster, "check", str(report), "--live", cluster.nameserver, "--json")
        verdict = json.loads(live.stdout)
        assert live.returncode == 0, live.stdout + live.stderr
        assert verdict["verdict"].startswith("3 replicas identical to index")
        # A digest that is wrong: the block is fetched from the nodes, and its bytes tell whose fault it is.
        _falsify(folder / "n2")
        checked = check(folder, "--json", "--nameserver", cluster.nameserver)
        found = json.loads(checked.stdout)["findings"]
        assert checked.returncode == 1
        assert [(each["node"], each["kind"]) for each in found] == [("n2", "digest")]
    _falsify(folder / "n1", row=2)
    checked = check(folder, "--json", "--nameserver", cluster.nameserver)  # nobody is there any more
    kinds = {each["kind"] for each in json.loads(checked.stdout)["findings"]}
    assert (checked.returncode, kinds) == (1, {"digest", "not-compared"})


def test_damage_of_a_running_node_is_found_through_digests_and_so_are_other_states(tmp_path: Path) -> None:
    """The disks change while the nodes run. Nobody scrubs, so only the check reads what they hold."""
    settings = SETTINGS | {"scrub-bytes-per-second": "0"}
    with Cluster(tmp_path / "cluster", nodes=3, settings=settings) as cluster:
        fill(cluster, 20 << 20)

        def live(name: str, *flags: str) -> list[tuple[str, str]]:
            assert dump(cluster, tmp_path / name, *flags)
            done = check(tmp_path / name, "--json", "--nameserver", cluster.nameserver)
            found = json.loads(done.stdout)["findings"]
            assert done.returncode == bool(found), done.stdout
            return sorted((each["node"], each["kind"]) for each in found)

        def flip(name: str, segment: int, position: int) -> None:
            path = sorted((cluster.folder / name / "commitlog").iterdir())[segment]
            with path.open("r+b") as file:
                file.seek(position)
                old = file.read(1)[0]
                file.seek(position)
                file.write(bytes([old ^ 1]))

        restarted = cluster.others(cluster.wait_leader())[0]
        assert cluster.terminate(restarted) == 0
        cluster.restart(restarted)  # its state comes from a checkpoint and some of the log
        flip("n2", 0, 1_000_000)
        assert live("first") == [("n2", "crc")], "what is damaged is not digested"
        flip("n3", 1, 2_000_000)
        assert live("second") == [("n2", "crc")], "n3's digests are from before"
        assert live("reread", "--reread") == [("n2", "crc"), ("n3", "crc")]
        states = {
            name: json.loads((tmp_path / "first" / name / "manifest.json").read_text())["state_digest"]
            for name in cluster.nodes
        }
        assert states["n1"]["index"] > 0 and len({json.dumps(each) for each in states.values()}) == 1
        path = tmp_path / "first" / "n1" / "manifest.json"
        path.write_text(path.read_text().replace(states["n1"]["digest"], "00" * 16))
        done = check(tmp_path / "first", "--json", "--nameserver", cluster.nameserver)
        kinds = sorted((each["node"], each["kind"]) for each in json.loads(done.stdout)["findings"])
        assert kinds == [("n1", "state"), ("n2", "crc"), ("n3", "state")], "two do not outvote each other"


def _falsify(node: Path, row: int = 0) -> None:
    """Change one digest in a dump, with checksums that fit."""
    path = sorted((node / "blockdigest").iterdir())[row]
    digests = decode_digests(path.read_bytes())
    rows = digests.rows.copy()
    rows["lane_b"][0] ^= 4
    path.write_bytes(encode_digests(replace(digests, rows=rows)))
