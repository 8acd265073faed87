"""`ledgermq up`: start, kill a node, stop, start again; the messages are still there and nothing else is."""

from __future__ import annotations

import asyncio
import json
import os
import re
import shutil
import signal
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest

from ledgermq.client import Message, Producer
from ledgermq.client.message import SendReceipt
from ledgermq.client.produce.queue_selection import StrictRoundRobin

from .conftest import ROOT
from .processes import LEDGERMQ, environment, left_behind, run, wait_for


@contextmanager
def up(
    data: Path, *arguments: str, command: Sequence[str] = LEDGERMQ, folder: Path = ROOT
) -> Iterator[tuple[str, Path]]:
    """Run `ledgermq up`; give the nameserver's address and the file with its output. Ends it by Ctrl-C.

    `command`: the `ledgermq` of another environment; `folder`: where it runs.
    """
    output = data.parent / f"{data.name}.out"
    with output.open("a") as file:
        process = subprocess.Popen(
            [*command, "up", "--data", str(data), *arguments],
            cwd=folder, env=environment(PYTHONUNBUFFERED="1"), stdout=file, stderr=subprocess.STDOUT,
        )  # fmt: skip
    try:
        begun = output.stat().st_size
        wait_for(
            lambda: "Ctrl-C stops everything" in output.read_text()[begun:] or process.poll() is not None,
            "the cluster is up",
            90,
        )
        assert process.poll() is None, output.read_text()
        port = json.loads((data / "cluster.json").read_text())["nameserver_port"]
        yield f"127.0.0.1:{port}", output
        process.send_signal(signal.SIGINT)
        assert process.wait(timeout=60) == 130, output.read_text()
    finally:
        process.kill()
        process.wait()
    assert "Traceback" not in output.read_text()
    assert not left_behind(data)


def test_messages_survive_a_killed_node_and_a_restart(tmp_path: Path) -> None:
    data = tmp_path / "data"
    with up(data) as (nameserver, output):
        assert "NODE" in output.read_text() and "n3" in output.read_text()
        sent = run(["send", "orders", "one", "-n", nameserver])
        assert sent.returncode == 0, sent.stderr
        status = run(["cluster", "status", "--wait", "30s", "-n", nameserver])
        assert status.returncode == 0, status.stdout + status.stderr
        assert "BROKER GROUP g0   HEALTHY" in status.stdout
        pids = dict(re.findall(r"^(n\d) +(\d+) ", output.read_text(), re.MULTILINE))
        leader = run(["cluster", "leader", "-q", "-n", nameserver]).stdout.strip()
        os.kill(int(pids[leader]), signal.SIGKILL)
        sent = run(["send", "orders", "two", "-n", nameserver])
        assert sent.returncode == 0, sent.stderr
        wait_for(lambda: f"{leader} is started again" in output.read_text(), f"{leader} is started again")
        assert run(["cluster", "status", "--wait", "60s", "-n", nameserver]).returncode == 0
    with up(data) as (nameserver, _):
        got = run(["consume", "orders", "--group", "g", "--count", "2", "--timeout", "30", "-n", nameserver])
        assert got.returncode == 0, got.stderr
        assert "one" in got.stdout and "two" in got.stdout


def test_a_second_folder_joins_a_cluster_that_runs_and_leaves_it(tmp_path: Path) -> None:
    def ledgermq(*arguments: str) -> str:
        done = run([*arguments, "-n", nameserver])
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    with up(tmp_path / "data", "--nodes", "1") as (nameserver, _):
        ledgermq("send", "orders", "one")
        with up(tmp_path / "more", "--nodes", "1", "--join", nameserver) as (_, output):
            assert "ledgermq cluster add-group g1" in output.read_text()
            assert "created 1 topics: orders" in ledgermq("cluster", "add-group", "g1")
            described = json.loads(ledgermq("topic", "describe", "orders", "--json"))
            assert {each["broker_group"] for each in described["offsets"]} == {"g0", "g1"}
            ledgermq("cluster", "drain", "g1", "--wait")
            ledgermq("cluster", "remove-group", "g1")
            ledgermq("cluster", "status", "--wait", "30s")
        assert "GROUP g1" not in ledgermq("cluster", "status")


def test_leadership_is_handed_over_on_request(tmp_path: Path) -> None:
    with up(tmp_path / "data") as (nameserver, _):
        leader = run(["cluster", "leader", "-q", "-n", nameserver]).stdout.strip()
        other = next(name for name in ("n1", "n2", "n3") if name != leader)
        done = run(["cluster", "transfer", other, "-n", nameserver])
        assert done.returncode == 0, done.stderr
        assert run(["cluster", "leader", "-q", "-n", nameserver]).stdout.strip() == other


async def send_in_turn(nameserver: str, count: int) -> list[SendReceipt]:
    async with Producer(nameserver, selector=StrictRoundRobin()) as producer:
        return list(await producer.send_batch(Message("orders", b"after") for _ in range(count)))


def test_a_group_is_added_to_a_folder_and_not_left_out_again(tmp_path: Path) -> None:
    data = tmp_path / "data"
    with up(data, "--nodes", "1") as (nameserver, _):
        assert run(["send", "orders", "before", "-n", nameserver]).returncode == 0
    with up(data, "--groups", "2") as (nameserver, output):
        assert "2 brokers in 2 broker groups" in output.read_text()
        assert re.search(r"^g1 +n2 +\d+ ", output.read_text(), re.MULTILINE)
        assert "New: g1." in output.read_text()
        made = run(["topic", "create", "orders", "--if-not-exists", "-n", nameserver])
        assert "with 8 queues" in made.stdout, made.stderr
        receipts = asyncio.run(send_in_turn(nameserver, 8))
        assert {(each.broker_group, each.queue_id) for each in receipts} == {
            (group, queue) for group in ("g0", "g1") for queue in range(4)
        }
    refused = run(["up", "--data", str(data), "--groups", "1"])
    assert refused.returncode == 1
    assert "holds 2 broker groups (g0, g1), not 1" in refused.stderr
    with up(data) as (nameserver, output):
        got = run(["consume", "orders", "--group", "g", "--count", "9", "--timeout", "30", "-n", nameserver])
        assert sorted(got.stdout.split()) == ["after"] * 8 + ["before"], got.stderr
        assert output.read_text().count("New: g1.") == 1


def test_one_node_is_a_cluster_too(tmp_path: Path) -> None:
    with up(tmp_path / "data", "--nodes", "1") as (nameserver, _):
        assert run(["send", "orders", "hi", "-n", nameserver]).returncode == 0
        assert run(["cluster", "status", "--json", "-n", nameserver]).returncode == 0


@pytest.mark.skipif(
    shutil.which("setpriv") is None, reason="needs setpriv of util-linux: the runbook says so"
)
def test_killing_up_itself_leaves_no_process_behind(tmp_path: Path) -> None:
    data = tmp_path / "data"
    with (tmp_path / "out").open("w") as output:
        process = subprocess.Popen(
            [*LEDGERMQ, "up", "--nodes", "1", "--data", str(data)],
            cwd=ROOT, env=environment(), stdout=output, stderr=subprocess.STDOUT,
        )  # fmt: skip
    try:
        wait_for(lambda: (data / "n1" / "identity").exists(), "n1 runs", 90)
    finally:
        process.kill()
        process.wait()
    wait_for(lambda: not left_behind(data), "the children have ended")


def test_an_empty_disk_is_replaced_by_the_command_that_the_refusal_names(tmp_path: Path) -> None:
    data = tmp_path / "data"
    with up(data) as (nameserver, _):
        assert run(["send", "orders", "one", "-n", nameserver]).returncode == 0
    shutil.rmtree(data / "n2")
    refused = run(["up", "--data", str(data)])
    assert refused.returncode == 1
    assert (
        "n2 is a known voter of broker group g0 and its data folder is empty"
        in refused.stdout + refused.stderr
    )
    assert not left_behind(data)
    command = f"up --data {data} --rejoin n2"
    assert f"ledgermq {command}" in refused.stdout
    with up(data, *command.split()[3:]) as (nameserver, _):
        assert run(["cluster", "status", "--wait", "60s", "-n", nameserver]).returncode == 0
    with up(data) as (nameserver, _):
        assert run(["cluster", "status", "--wait", "60s", "-n", nameserver]).returncode == 0
        got = run(["consume", "orders", "--group", "g", "--count", "1", "--timeout", "30", "-n", nameserver])
        assert "one" in got.stdout, got.stderr
