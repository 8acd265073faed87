"""The command line as a process among others: pipes that nobody reads, and streams that are closed."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator

import pytest

from ..fake_messaging import MessagingCluster
from ..fakes import FakeGroup
from ..served import Served, served


@pytest.fixture
def cluster() -> Iterator[Served[MessagingCluster]]:
    with served(lambda: MessagingCluster(FakeGroup(topics={"orders": 1}))) as running:
        yield running


def start(
    cluster: Served[MessagingCluster], *arguments: str, stdout: int = subprocess.PIPE, shell: str = ""
) -> subprocess.CompletedProcess[str]:
    """Run a command line; `shell` are redirections."""
    command = [sys.executable, "-m", "ledgermq.client.cli", *arguments]
    if shell:
        command = ["sh", "-c", f'exec "$@" {shell}', "sh", *command]
    return subprocess.run(
        command, env={**os.environ, "LEDGERMQ_NAMESERVER": cluster.address}, stdout=stdout,
        stderr=subprocess.PIPE, text=True, timeout=60, check=False,
    )  # fmt: skip


def unread(cluster: Served[MessagingCluster], *arguments: str) -> tuple[int, str]:
    """Run a command line into a pipe whose reader has gone; return its exit code and stderr."""
    reader, writer = os.pipe()
    os.close(reader)
    try:
        done = start(cluster, *arguments, stdout=writer)
    finally:
        os.close(writer)
    return done.returncode, done.stderr


@pytest.mark.parametrize(
    "arguments",
    [["--help"], ["topic", "list"], ["topic", "list", "--json"], ["consume", "orders", "-g", "billing"]],
)
def test_a_reader_that_has_gone_is_no_failure(
    cluster: Served[MessagingCluster], arguments: list[str]
) -> None:
    cluster.call(cluster.cluster.messages.add, b"one")
    assert unread(cluster, *arguments) == (0, "")


def test_a_send_whose_receipts_nobody_reads_says_that_it_did_not_send_all(
    cluster: Served[MessagingCluster],
) -> None:
    code, said = unread(cluster, "send", "orders", "x", "--count", "3000", "--json")
    assert (code, "what came behind it was not sent" in said) == (1, True)


@pytest.mark.parametrize("closed", ["<&-", ">&-", "2>&-"])
def test_streams_that_the_caller_has_closed_do_no_harm(
    cluster: Served[MessagingCluster], closed: str
) -> None:
    done = start(cluster, "topic", "list", shell=closed)
    assert (done.returncode, done.stderr) == (0, "")
    assert ("orders" in done.stdout) == (closed != ">&-")


def test_a_closed_stdin_has_no_lines(cluster: Served[MessagingCluster]) -> None:
    done = start(cluster, "send", "orders", "-", shell="<&-")
    assert (done.returncode, done.stdout.startswith("stored 0 messages")) == (0, True), done.stderr
