"""Bad input, provoked in real processes: every error says what happened, why, and the next command.

Each row names the exit code and the words that the message must contain (the file, the address, the name that
was meant, what to do). The message is one short text without a traceback. What an error must not change is
checked as well. Here no cluster runs; test_bad_input_of_a_cluster.py has the rows that need one.
"""

from __future__ import annotations

import os
import shlex
import socket
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from ledgermq.raft.disk.files import RealFileSystem
from ledgermq.raft.log.identity import Identity, write_identity
from ledgermq.raft.types import NodeId
from tests.ports import free_ports
from tests.tls import AUTHORITY, files_of

_LINES_MAX = 12


@dataclass(frozen=True)
class Row:
    """One provoked error. `{data}`, `{ns}`, `{busy}` and so on in the arguments are filled in by the test."""

    name: str
    arguments: str
    code: int
    words: tuple[str, ...]
    files: dict[str, str] = field(default_factory=dict)  # name → content, made in {data} first
    environment: dict[str, str] = field(default_factory=dict)


def run(arguments: list[str], environment: dict[str, str] | None = None) -> tuple[int, str]:
    """Run `ledgermq ARGUMENTS` as a process; return exit code and everything it said."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("LEDGERMQ_")}
    done = subprocess.run(
        [sys.executable, "-m", "ledgermq.client.cli", *arguments],
        env={**kept, "COLUMNS": "200", **(environment or {})},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    return done.returncode, done.stdout + done.stderr


def check(row: Row, code: int, text: str, names: dict[str, str]) -> None:
    assert code == row.code, f"{row.name}: exit code {code}\n{text}"
    assert "Traceback" not in text, text
    assert "internal error" not in text, text
    assert 0 < len(text.strip().splitlines()) <= _LINES_MAX, text
    for word in row.words:
        assert word.format(**names) in text, f"{row.name}: {word.format(**names)!r} is not in:\n{text}"


BROKER = "broker --node n1 --data {data}/n1 --raft-bind 127.0.0.1:{p1} --http-bind 127.0.0.1:{p2} "
BROKER += (
    "--listener name=default,messaging_bind=127.0.0.1:{p3},log_bind=127.0.0.1:{p4} "
    "--nameservers 127.0.0.1:{p5}"
)
PEER_TLS = f" --peer-tls tls --peer-tls-ca {AUTHORITY} --peer-tls-certificate {files_of('node')[0]}"

ALONE = [
    # --- the command line itself
    Row("unknown command", "sent orders", 2, ("sent", "Did you mean", "--help")),
    Row("unknown flag", "cluster status --nod x", 2, ("--nod", "--node", "--help")),
    Row("missing argument", "send", 2, ("TOPIC", "ledgermq send --help")),
    Row("missing option", "consume orders", 2, ("--group", "ledgermq consume --help")),
    Row("not a number", "send orders hi --count many", 2, ("--count", "whole number", "--help")),
    Row("not a length of time", "cluster status --wait soon", 1, ("soon", "30s")),
    Row("the version", "--version", 0, ("ledgermq 0.",)),
    Row("empty tag", "send orders hi --tag ''", 1, ("invalid tag", "empty", "Nothing was sent")),
    Row("empty tag filter", "consume orders --group g --tag ''", 2, ("tag filter is empty", "--help")),
    Row("stdin more than once", "send orders - --count 2", 2, ("--count", "stdin", "--help")),
    # No confirmation is asked for what may not exist: a command that cannot reach the cluster says so.
    Row("delete without a cluster", "topic delete orders -n 127.0.0.1:{p1}", 1,
        ("127.0.0.1:{p1}", "ledgermq up")),
    Row("delete a group without a cluster", "group delete g -n 127.0.0.1:{p1}", 1,
        ("127.0.0.1:{p1}", "ledgermq up")),
    # --- no node there
    Row("no nameserver", "topic list -n 127.0.0.1:{p1}", 1, ("127.0.0.1:{p1}", "ledgermq up")),
    Row("three nameservers down", "send orders hi -n 127.0.0.1:{p1},127.0.0.1:{p2},127.0.0.1:{p3}", 1,
        ("3 of 3 nameservers do not answer", "127.0.0.1:{p3}", "ledgermq up")),
    Row("status of nothing", "cluster status -n 127.0.0.1:{p1}", 3, ("127.0.0.1:{p1}", "ledgermq up")),
    Row("status of a dead node", "cluster status --node 127.0.0.1:{p1}", 3, ("127.0.0.1:{p1}",)),
    Row("a watch for programs", "cluster status --watch --json", 2, ("--watch", "--json", "--help")),
    Row("a watch with an end", "cluster status --watch --wait 5s", 2, ("--watch", "--wait", "--help")),
    Row("leader of nothing", "cluster leader -q -n 127.0.0.1:{p1}", 3, ("127.0.0.1:{p1}",)),
    Row("nameserver without port", "topic list -n localhost", 2, ("localhost", "host:port")),
    # --- up
    Row("even number of nodes", "up --nodes 4", 1, ("1, 3 or 5", "ledgermq up")),
    Row("data folder is a file", "up --data {data}/file", 1, ("{data}/file", "--data"), {"file": "x"}),
    Row("damaged plan", "up --data {data}", 1, ("{data}/cluster.json", "Nothing was changed"),
        {"cluster.json": "{{"}),
    Row("plan of a newer version", "up --data {data}", 1,
        ("cluster.json has format 9", "knows 1", "Nothing was changed"),
        {"cluster.json": '{{"format": 9, "nameserver_port": 1, "segment_size": "1MiB", "nodes": {{}}}}'}),
    Row("unknown node to rejoin", "up --data {data} --rejoin n9", 1, ("n9", "n1, n2, n3")),
    # --- broker
    Row("unknown broker flag", "broker --segmentsize 64MiB", 2, ("--segmentsize", "--help")),
    Row("size that is none", BROKER + " --segment-size 64parsecs", 2, ("--segment-size", "64parsecs", "MiB")),
    Row("segment too small", BROKER + " --segment-size 4KiB", 2, ("segment-size", "1MiB")),
    Row("segments too small for the largest message", BROKER + " --segment-size 4MiB", 2,
        ("--segment-size", "at least 17MiB", "max_message_bytes to at most 978816")),
    Row("messages of no size", BROKER + " --max-message-bytes 5MiB", 2, ("--max-message-bytes", "4194304")),
    Row("flush that is none", BROKER + " --flush never", 2, ("--flush", "sync")),
    Row("peers without myself", BROKER + " --peers n2=127.0.0.1:1", 2, ("--peers", "n1", "n2")),
    Row("address without port", BROKER + " --raft-bind localhost", 2,
        ("--raft-bind", "localhost", "host:port")),
    Row("advertised wildcard",
        "broker --data {data}/n1 --listener name=default,messaging_bind=0.0.0.0:1,log_bind=127.0.0.1:2", 2,
        ("0.0.0.0:1", "messaging_advertise")),
    Row("unknown key in the file", "broker --config {data}/broker.toml", 2,
        ("{data}/broker.toml", "segment_sise", "segment_size"), {"broker.toml": 'segment_sise = "1GiB"\n'}),
    Row("file that is no TOML", "broker --config {data}/broker.toml", 2, ("{data}/broker.toml", "line 1"),
        {"broker.toml": "cluster = local\n"}),
    Row("no configuration file", "broker --config {data}/none.toml", 2, ("{data}/none.toml", "No such file")),
    Row("mistyped variable", "broker --data {data}/n1", 2, ("LEDGERMQ_SEGMENT_SIZ", "LEDGERMQ_SEGMENT_SIZE"),
        environment={"LEDGERMQ_SEGMENT_SIZ": "1GiB"}),
    Row("TLS without a certificate", BROKER + " --client-tls both", 2, ("tls_certificate", "PEM file")),
    Row("a certificate that is none",
        BROKER + " --client-tls tls --tls-certificate {data}/c.pem --tls-private-key {data}/k.pem", 3,
        ("n1 will not start", "{data}/c.pem", "set client_tls to plaintext"), {"c.pem": "x", "k.pem": "x"}),
    Row("TLS between nodes without an authority",
        BROKER + " --peer-tls both --peer-tls-certificate c.pem --peer-tls-private-key k.pem", 2,
        ("peer_tls_ca", "PEM file")),
    Row("a key for TLS between nodes that is not there",
        BROKER + PEER_TLS + " --peer-tls-private-key {data}/none.key", 3,
        ("n1 will not start", "{data}/none.key", "peer_tls_private_key", "No such file")),
    Row("a key for TLS between nodes that belongs to another certificate",
        BROKER + PEER_TLS + f" --peer-tls-private-key {files_of('stranger')[1]}", 3,
        ("n1 will not start", "peer_tls_certificate", "do not belong together")),
    Row("no connections", BROKER + " --max-connections 0", 2, ("--max-connections", "at least 1")),
    Row("busy raft port", BROKER + " --raft-bind 127.0.0.1:{busy}", 3,
        ("127.0.0.1:{busy}", "n1 will not start")),
    Row("busy http port", BROKER + " --http-bind 127.0.0.1:{busy}", 3, ("127.0.0.1:{busy}", "http_bind")),
    Row(
        "busy messaging port",
        "broker --data {data}/n1 --raft-bind 127.0.0.1:{p1} --http-bind 127.0.0.1:{p2} "
        "--listener name=default,messaging_bind=127.0.0.1:{busy},log_bind=127.0.0.1:{p4}",
        3,
        ("127.0.0.1:{busy}", "messaging_bind"),
    ),
    Row("data folder is a file too", BROKER, 3, ("{data}/n1",), {"n1": "not a folder"}),
    # --- nameserver
    Row("unknown nameserver flag", "nameserver --binding 127.0.0.1:1", 2, ("--binding",)),
    Row("nameserver connections", "nameserver --max-connections many", 2, ("max_connections", "many")),
    Row("nameserver address", "nameserver --bind here", 2, ("here", "host:port", "--help")),
    Row("busy nameserver port", "nameserver --bind 127.0.0.1:{busy}", 1, ("127.0.0.1:{busy}", "--bind")),
    Row("unknown nameserver key", "nameserver --config {data}/ns.toml", 2,
        ("{data}/ns.toml", "bindd", "bind"), {"ns.toml": 'bindd = "127.0.0.1:1"\n'}),
    # --- dump and check
    Row("check of nothing", "check {data}/none", 2, ("{data}/none", "ledgermq dump")),
    Row("check of no dump", "check {data}", 2, ("{data}", "ledgermq dump"), {"notes.txt": "x"}),
    Row("dump of no data folder", "dump --data {data} {data}/out", 1, ("{data}",), {"notes.txt": "x"}),
    # --- recovering a broker group
    Row("recover nothing", "cluster recover", 2, ("--data", "ledgermq cluster recover --help")),
    Row("recover no folder", "cluster recover --data {data}/none", 1,
        ("{data}/none", "identity", "nothing was changed")),
    Row("recover a foreign folder", "cluster recover --data {data}", 1,
        ("{data}", "survived", "nothing was changed"), {"notes.txt": "x"}),
    Row("show and change", "cluster recover --data {data} --show --clone-for n2", 1,
        ("--show changes nothing",)),
    Row("recover a newer folder", "cluster recover --data {data}", 1,
        ("{data}/identity", "version 9", "version 4", "nothing was changed"),
        {"identity": "LMQ identity 9 00000000\n"}),
    Row(
        "recover from a damaged folder",
        "cluster recover --data {data}",
        1,
        (
            "{data}/identity is damaged",
            "another node that survived",
            "ledgermq dump --data",
            "nothing was changed",
        ),
        {"identity": "LMQ identity 1 00000001\n"},
    ),
    # --- demo
    Row("demo in a foreign folder", "demo --data {data}", 1, ("{data}", "Nothing was changed"),
        {"mine.txt": "x"}),
    Row("demo of two nodes", "demo --nodes 2 --data {data}/demo", 1, ("3 or 5",)),
]  # fmt: skip


@pytest.mark.parametrize("row", ALONE, ids=lambda row: row.name)
def test_bad_input_without_a_cluster(row: Row, tmp_path: Path) -> None:
    for name, content in row.files.items():
        (tmp_path / name).write_text(content.replace("{{", "{").replace("}}", "}"))
    with socket.create_server(("127.0.0.1", 0)) as busy:
        ports = {f"p{number}": str(port) for number, port in enumerate(free_ports(5), start=1)}
        names = {"data": str(tmp_path), "busy": str(busy.getsockname()[1]), **ports}
        code, text = run([part.format(**names) for part in shlex.split(row.arguments)], row.environment)
    check(row, code, text, names)
    for name, content in row.files.items():
        kept = (tmp_path / name).read_text()
        assert kept == content.replace("{{", "{").replace("}}", "}"), f"{name} was changed"


# --- foreign data folders ---------------------------------------------------------------------------------


def arguments_of_a_broker(folder: Path) -> list[str]:
    """Return flags that would start node n1 with its data in a folder of that folder."""
    ports = {f"p{number}": str(port) for number, port in enumerate(free_ports(5), start=1)}
    return [part.format(data=folder, **ports) for part in BROKER.split()] + ["--segment-size", "64MiB"]


@pytest.fixture
def broker_arguments(tmp_path: Path) -> list[str]:
    return arguments_of_a_broker(tmp_path)


def make_identity(folder: Path, *, node: str = "n1", group: str = "g0", segment_size: int = 64 << 20) -> Path:
    """Write the identity record of some node."""
    folder.mkdir(parents=True)
    identity = Identity(
        cluster_id="local", group=group, node_id=NodeId(node), incarnation=1, segment_size=segment_size
    )
    write_identity(RealFileSystem(), folder / "identity", identity)
    return folder / "identity"


def test_the_folder_of_another_node_is_refused_and_not_touched(
    tmp_path: Path, broker_arguments: list[str]
) -> None:
    path = make_identity(tmp_path / "n1", node="n2")
    before = path.read_bytes()
    code, text = run(broker_arguments)
    row = Row(
        "foreign folder", "", 3, ("n1 will not start", "belongs to node n2", "--data", "nothing was changed")
    )
    check(row, code, text, {})
    assert path.read_bytes() == before


def test_the_folder_of_another_group_is_refused(tmp_path: Path, broker_arguments: list[str]) -> None:
    make_identity(tmp_path / "n1", group="g7")
    code, text = run(broker_arguments)
    check(Row("foreign group", "", 3, ("n1 will not start", "g7")), code, text, {})


def test_another_segment_size_is_refused(tmp_path: Path, broker_arguments: list[str]) -> None:
    make_identity(tmp_path / "n1", segment_size=32 << 20)
    code, text = run(broker_arguments)
    check(Row("segment size", "", 3, ("n1 will not start", "segment")), code, text, {})


def test_a_newer_format_is_refused_with_both_versions(tmp_path: Path, broker_arguments: list[str]) -> None:
    path = make_identity(tmp_path / "n1")
    before = path.read_bytes()
    newer = before.replace(b"identity 4 ", b"identity 9 ")  # in both copies
    assert newer.count(b"identity 9 ") == 2
    path.write_bytes(newer)
    code, text = run(broker_arguments)
    check(Row("newer", "", 3, ("n1 will not start", "identity", "version 9", "version 4")), code, text, {})
    assert path.read_bytes() == newer


def test_a_damaged_identity_is_refused(tmp_path: Path, broker_arguments: list[str]) -> None:
    path = make_identity(tmp_path / "n1")
    path.write_bytes(path.read_bytes().replace(b"g0", b"g1", 1))
    code, text = run(broker_arguments)
    check(Row("damaged identity", "", 3, ("n1 will not start", str(path))), code, text, {})
