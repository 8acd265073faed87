"""The README's code and commands are executed as printed, against a cluster from `ledgermq up`."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from ledgermq.client import Message
from ledgermq.client.local.ports import NodePorts
from ledgermq.client.sync import Producer

from .conftest import ROOT
from .processes import environment, output_of
from .test_up import up

README = (ROOT / "README.md").read_text()
BLOCK = re.compile(r"<!-- test: (\w+) -->\n```(\w+)\n(.*?)```", re.DOTALL)


def blocks() -> dict[str, str]:
    """Return the blocks that are marked for the test, by mark."""
    return {mark: code for mark, _, code in BLOCK.findall(README)}


@pytest.fixture(scope="module")
def plan(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """Run a cluster; give what the README's addresses are here (the known ports may be taken on this
    machine).
    """
    data = tmp_path_factory.mktemp("readme") / "data"
    with up(data) as (nameserver, _):
        first = json.loads((data / "cluster.json").read_text())["nodes"]["n1"]
        known = NodePorts()
        yield {
            "127.0.0.1:9876": nameserver,
            f"127.0.0.1:{known.messaging}": f"127.0.0.1:{first['messaging']}",
        }


def put_addresses(code: str, plan: dict[str, str]) -> str:
    for printed, here in plan.items():
        code = code.replace(printed, here)
    return code


def test_the_producer_and_consumer_work_as_printed(plan: dict[str, str], tmp_path: Path) -> None:
    code = put_addresses(blocks()["python"], plan)
    output = output_of([sys.executable, "-c", code], tmp_path)
    assert output.count("stored in queue") == 10
    assert sorted(re.findall(r"order \d", output)) == [f"order {number}" for number in range(10)]


def test_the_example_is_short() -> None:
    assert len(blocks()["python"].strip().splitlines()) <= 13


def test_the_push_consumer_works_as_printed(plan: dict[str, str], tmp_path: Path) -> None:
    address = plan["127.0.0.1:9876"]
    with Producer(address) as producer:
        sent = {f"push {number}" for number in range(5)}
        producer.send_batch(Message("orders", text.encode()) for text in sorted(sent))
    code = put_addresses(blocks()["push"], plan)
    with subprocess.Popen(
        [sys.executable, "-u", "-c", code],
        cwd=tmp_path,
        env=environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as running:
        assert running.stdout is not None
        printed = ""  # by several threads, so that lines may run into one another
        while not sent <= set(re.findall(r"push \d", printed)):
            line = running.stdout.readline()
            assert line, f"it ended: {printed}"
            printed += line
        assert printed.count("billed") >= len(sent)
        running.send_signal(signal.SIGINT)
        try:
            _, errors = running.communicate(timeout=60)
        finally:
            running.kill()  # one that is left would be a member of the consumer group in the next test run
    assert (running.returncode, errors) == (0, "")


def test_the_official_client_works_as_printed(plan: dict[str, str], tmp_path: Path) -> None:
    code = put_addresses(blocks()["official"], plan)
    output = output_of([sys.executable, "-c", code], tmp_path, HOME=str(tmp_path))
    assert re.search(r"\b01[0-9A-F]{32}\b", output), output


@pytest.mark.spark
def test_the_commands_work_as_printed(plan: dict[str, str], tmp_path: Path) -> None:
    shell = tmp_path / "look.sh"
    shell.write_text("set -euo pipefail\n" + blocks()["sh"])
    output = output_of(["bash", str(shell)], tmp_path, LEDGERMQ_NAMESERVER=plan["127.0.0.1:9876"])
    assert "HEALTHY" in output
    assert "hello" in output
    assert "identical" in output


def test_the_verbs_that_are_named_exist() -> None:
    verbs = set(re.findall(r"^\.PHONY: (.*)$", (ROOT / "Makefile").read_text(), re.MULTILINE)[0].split())
    pages = [ROOT / "README.md", ROOT / "deploy" / "README.md", *(ROOT / "docs").glob("*.md")]
    for page in pages:
        for verb in re.findall(r"`make (\w+)", page.read_text()):
            assert verb in verbs, f"{page.name}: make {verb}"
