"""The demo as a newcomer runs it, and as one stops it."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from .conftest import ROOT
from .processes import LEDGERMQ, environment, execute, left_behind, run, wait_for

STEPS = [
    "1/8 setup",
    "2/8 start",
    "3/8 topic",
    "4/8 send",
    "5/8 consume",
    "6/8 dump",
    "7/8 verify",
    "8/8 doubt",
]


def check_success(output: str) -> None:
    for step in STEPS:
        assert step in output, output
    assert re.search(
        r"RESULT  acknowledged [\d,]+   lost 0   stored twice 0   write gap \d+ ms   OK in \d+ s", output
    )
    assert re.search(
        r"5/8 consume +[\d,]+ distinct   0 missing   0 out of order   [1-9][\d,]* redelivered", output
    )
    assert re.search(r"8/8 doubt +flipped 1 byte in a copy of n1's dump -> FOUND n1 index [\d,]+", output)
    assert "\x1b[" not in output, "plain lines in a pipe"


@pytest.mark.spark
def test_the_demo_succeeds_and_leaves_a_report_and_no_process(tmp_path: Path) -> None:
    data = tmp_path / "demo"
    done = run(["demo", "--messages", "20000", "--data", str(data)])
    assert done.returncode == 0, done.stdout + done.stderr
    check_success(done.stdout)
    assert (data / "check" / "report.html").exists()
    assert (data / "cluster" / "logs" / "n1.log").exists()
    assert not left_behind(data)


@pytest.mark.spark
def test_five_nodes_survive_two_kills(tmp_path: Path) -> None:
    data = tmp_path / "demo"
    done = run(["demo", "--nodes", "5", "--kills", "2", "--messages", "20000", "--data", str(data)])
    assert done.returncode == 0, done.stdout + done.stderr
    check_success(done.stdout)
    assert done.stdout.count("kill -9 ") == 2
    assert not left_behind(data)


LOSE_ONE = """
import sys
from ledgermq.client import cli
from ledgermq.client.demo import ledger

take = ledger.ReceiveBook.on_message

def lose_number_77(book, queue_id, offset, body):
    if ledger.number_of(body) == 77:
        book.stored += 1
    else:
        take(book, queue_id, offset, body)

ledger.ReceiveBook.on_message = lose_number_77
cli.main(["demo", "--messages", "5000", "--kills", "0", "--data", sys.argv[1]])
"""


def test_a_lost_message_fails_the_demo_with_step_id_log_and_command(tmp_path: Path) -> None:
    data = tmp_path / "demo"
    done = execute([sys.executable, "-c", LOSE_ONE, str(data)], ROOT, timeout=200)
    output = done.stdout + done.stderr
    assert done.returncode == 1, output
    assert "FAILED at 5/8 consume" in output
    assert "1 messages acknowledged but missing: 77" in output
    assert re.search(r"ids: 01[0-9A-F]{32}", output)
    assert "last log lines of n1" in output
    assert "Again: make demo NODES=3 KILLS=0 MESSAGES=5000" in output
    assert "Traceback" not in output
    assert not left_behind(data)


@pytest.mark.parametrize("when", ["2/8 start", "kill -9"])
def test_ctrl_c_leaves_no_process(tmp_path: Path, when: str) -> None:
    data = tmp_path / "demo"
    output = tmp_path / "output"
    with output.open("w") as file:
        process = subprocess.Popen(
            [*LEDGERMQ, "demo", "--messages", "20000", "--data", str(data)],
            cwd=ROOT, env=environment(PYTHONUNBUFFERED="1"), stdout=file, stderr=subprocess.STDOUT,
        )  # fmt: skip
    try:
        wait_for(lambda: when in output.read_text() or process.poll() is not None, when, 90)
        process.send_signal(signal.SIGINT)
        assert process.wait(timeout=60) == 130, output.read_text()
    finally:
        process.kill()
        process.wait()
    assert "no process is left" in output.read_text()
    assert "Traceback" not in output.read_text(), output.read_text()
    assert not left_behind(data)
