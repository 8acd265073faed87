"""Peers on Java without a JVM: jars, configurations, RocketMQ's remoting protocol, warming up."""

from __future__ import annotations

import asyncio
import json
import struct
import subprocess
from pathlib import Path

import pytest

from bench.peers import java, kafka_node, remoting, rocketmq
from bench.peers import run as comparison
from bench.peers.measure import until_steady
from bench.peers.rocketmq_session import RocketSession


def settings_of(text: str) -> dict[str, str]:
    return dict(line.split("=", 1) for line in text.splitlines())


@pytest.mark.parametrize(
    ("answer", "version"),
    [
        ('openjdk version "17.0.15" 2025-04-15\n', 17),
        ('java version "1.8.0_402"\n', 8),
        ('openjdk version "25" 2025-09-16\n', 25),
        ("Error: could not find libjava.so\n", 0),
    ],
)
def test_the_feature_release_of_java_is_found(answer: str, version: int) -> None:
    assert java.java_version(answer) == version


def test_without_java_and_maven_a_sentence_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    lacks = java.missing()
    assert lacks.startswith("java and mvn not found; install: apt-get install")
    assert comparison.prepared(["rocketmq"], tmp_path / "jars") == {}
    assert capsys.readouterr().out == f"RocketMQ DLedger is skipped: {lacks}\n"
    assert not (tmp_path / "jars").exists()


def maven(folder: Path, script: str) -> None:
    (folder / "mvn").write_text(f"#!/bin/sh\n{script}\n")
    (folder / "mvn").chmod(0o755)


def test_jars_are_resolved_once_and_again_when_a_version_changes(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    calls = tmp_path / "calls"
    maven(tmp_path, f'echo "$@" >> {calls}')
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    for version in ("1", "1", "2"):
        library = java.resolve(tmp_path / "cache", "some", [f"org.some:some:{version}"])
    assert library == tmp_path / "cache" / "some" / "lib"
    assert len(calls.read_text().splitlines()) == 2
    assert f"-DoutputDirectory={library}" in calls.read_text()
    assert "<version>2</version>" in (tmp_path / "cache" / "some" / "pom.xml").read_text()


def test_a_failure_of_maven_is_reported_with_its_first_error_and_tried_again(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    maven(tmp_path, "echo '[INFO] begin'; echo '[ERROR] no route to it'; echo '[ERROR] more'; exit 1")
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    for _ in range(2):
        with pytest.raises(
            java.JarsError, match=r"org.some:some:1;.*settings\.xml\. \[ERROR\] no route to it$"
        ):
            java.resolve(tmp_path / "cache", "some", ["org.some:some:1"])
    monkeypatch.setattr(java, "missing", lambda: "")
    assert comparison.prepared(["rocketmq"], tmp_path / "cache") == {}
    assert "is skipped: Maven did not resolve org.apache.rocketmq" in capsys.readouterr().out


def test_a_java_command_has_a_fixed_heap_and_all_jars(tmp_path: Path) -> None:
    command = java.command(tmp_path, "some.Main", "-c", "file", properties=["a=b"])
    assert command[0] == "java"
    assert {"-Xms768m", "-Xmx768m", "-Da=b"} <= set(command)
    assert command[-5:] == ["-cp", f"{tmp_path}/*", "some.Main", "-c", "file"]


def test_kafka_nodes_differ_in_what_must_differ_and_flush_only_where_asked(tmp_path: Path) -> None:
    first, second = (
        settings_of(kafka_node.properties(node, tmp_path / f"n{node}", False)) for node in (1, 2)
    )
    differ = {name for name in first if first[name] != second[name]}
    assert differ == {"node.id", "listeners", "advertised.listeners", "log.dirs"}
    assert first["process.roles"] == "broker,controller"
    assert first["min.insync.replicas"] == "2"
    assert first["default.replication.factor"] == "3"
    flushed = settings_of(kafka_node.properties(1, tmp_path / "n1", True))
    assert flushed == {**first, "log.flush.interval.messages": "1"}


def test_rocketmq_nodes_share_a_dledger_group_and_batch_push_is_a_setting(tmp_path: Path) -> None:
    nodes = [settings_of(rocketmq.broker_conf(node, tmp_path / f"n{node}", False)) for node in rocketmq.NODES]
    assert len({node["dLegerPeers"] for node in nodes}) == 1
    assert [node["dLegerSelfId"] for node in nodes] == ["n0", "n1", "n2"]
    assert len({node["listenPort"] for node in nodes}) == len(nodes)
    assert {node["enableDLegerCommitLog"] for node in nodes} == {"true"}
    assert {node["enableBatchPush"] for node in nodes} == {"false"}
    assert settings_of(rocketmq.broker_conf(0, tmp_path, True))["enableBatchPush"] == "true"


@pytest.mark.parametrize(
    ("key", "name"),
    [("rocketmq", "RocketMQ DLedger"), ("rocketmq-batch-push", "RocketMQ DLedger with batch push")],
)
def test_systems_on_java_say_what_an_acknowledgement_means(key: str, name: str, tmp_path: Path) -> None:
    system = comparison.make(key, tmp_path)
    assert (system.name, system.acknowledged) == (
        name,
        "a majority has it in its page cache, flushed every 10 ms",
    )


def stored_message(body: bytes, flags: int = 0) -> bytes:
    """Return a message in the form of RocketMQ's commit log, with hosts of IPv4 or IPv6."""
    born, store = (b"h" * (20 if flags & bit else 8) for bit in (1 << 4, 1 << 5))
    rest = (
        struct.pack(">IIIIQQI", 0xDAA320A7, 0, 3, 0, 7, 900, flags)
        + struct.pack(">Q", 1) + born
        + struct.pack(">Q", 2) + store
        + struct.pack(">IQ", 0, 0)
        + struct.pack(">I", len(body)) + body
        + b"\x05topic" + b"\0\0"
    )  # fmt: skip
    return struct.pack(">I", 4 + len(rest)) + rest


def test_bodies_of_stored_messages_are_found_behind_hosts_of_both_kinds() -> None:
    found = b"".join(
        (stored_message(b"one"), stored_message(b"", 1 << 4), stored_message(b"three", 1 << 4 | 1 << 5))
    )
    assert list(remoting.stored_bodies(found)) == [b"one", b"", b"three"]
    with pytest.raises(ValueError, match="does not fit"):
        list(remoting.stored_bodies(found[:-1]))


def test_a_batch_is_messages_with_their_lengths() -> None:
    body = remoting.batch_body([b"ab", b""])
    assert (
        body
        == struct.pack(">IIIII", 24, 0, 0, 0, 2) + b"ab\0\0" + struct.pack(">IIIII", 22, 0, 0, 0, 0) + b"\0\0"
    )


class Broker(asyncio.Protocol):
    """A broker that answers frames in pieces, the last request of each read first."""

    requests: list[tuple[dict[str, object], bytes]]

    def __init__(self) -> None:
        self.received = b""
        self.requests = []

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        self.received += data
        answers = []
        while len(self.received) >= 8:
            length, header_length = struct.unpack_from(">II", self.received)
            if len(self.received) < 4 + length:
                break
            header = json.loads(self.received[8 : 8 + header_length])
            body = self.received[8 + header_length : 4 + length]
            self.received = self.received[4 + length :]
            self.requests.append((header, body))
            refused = body == b"refuse"
            head = {"code": 14 if refused else 0, "flag": 1, "opaque": header["opaque"], "remark": "full"}
            encoded = json.dumps(head).encode()
            answers.append(struct.pack(">II", 4 + len(encoded) + len(body), len(encoded)) + encoded + body)
        for answer in reversed(answers):
            self.transport.write(answer[:5])
            self.transport.write(answer[5:])


async def serve(broker: Broker) -> tuple[asyncio.Server, int]:
    server = await asyncio.get_running_loop().create_server(lambda: broker, "127.0.0.1", 0)
    return server, server.sockets[0].getsockname()[1]


def test_answers_find_their_requests_and_errors_are_raised() -> None:
    async def run() -> None:
        broker = Broker()
        server, port = await serve(broker)
        async with server:
            connection = await remoting.Connection.to(port)
            request = remoting.send_request("topic", 5)
            answers = await asyncio.gather(
                *(connection.call(request, b"%d" % number) for number in range(20))
            )
            assert [answer.body for answer in answers] == [b"%d" % number for number in range(20)]
            with pytest.raises(remoting.RefusedError, match="code 14: full"):
                (await connection.call(request, b"refuse")).accept()
            fields = broker.requests[0][0]["extFields"]
            assert isinstance(fields, dict)
            assert (fields["b"], fields["e"], fields["k"], fields["m"]) == ("topic", "5", "false", "false")
            waiting = asyncio.ensure_future(connection.call(request, b"late"))
            broker.transport.abort()
            with pytest.raises(ConnectionError):
                await waiting
            with pytest.raises(ConnectionError):
                await connection.call(request)

    asyncio.run(run())


def test_a_session_creates_its_topic_and_takes_queues_in_turn() -> None:
    async def run() -> None:
        broker = Broker()
        server, port = await serve(broker)
        async with server:
            session = RocketSession("topic", 3, port)
            await session.start(producers=1)
            for _ in range(4):
                await session.send(b"body")
            await session.batch(b"x", 2)()
            with pytest.raises(remoting.RefusedError):
                await session.send(b"refuse")
            await session.close()
        refused = [header["code"] for header, body in broker.requests if body == b"refuse"]
        assert refused == [remoting.SEND] * 3
        del broker.requests[-3:]
        codes = [header["code"] for header, _ in broker.requests]
        assert codes == [remoting.CREATE_TOPIC, *[remoting.SEND] * 4, remoting.SEND_BATCH]
        fields = [header["extFields"] for header, _ in broker.requests[1:]]
        assert [each["e"] for each in fields if isinstance(each, dict)] == ["0", "1", "2", "0", "1"]
        assert broker.requests[-1][1] == remoting.batch_body([b"x", b"x"])

    asyncio.run(run())


@pytest.mark.parametrize(
    ("rates", "most", "taken", "steady"),
    [
        ([100.0, 200.0, 209.0, 500.0], 9, 3, True),
        ([100.0, 104.0], 9, 2, True),
        ([100.0, 94.0, 100.0, 94.0], 4, 4, False),
        ([100.0, 100.0], 1, 1, False),
    ],
)
def test_windows_are_repeated_until_two_rates_differ_by_less_than_five_percent(
    rates: list[float], most: int, taken: int, steady: bool
) -> None:
    left = iter(rates)

    async def window() -> float:
        return next(left)

    assert asyncio.run(until_steady(window, most)) == (rates[:taken], steady)


def test_a_jar_never_enters_the_repository() -> None:
    root = Path(comparison.__file__).parents[2]
    listed = subprocess.run(
        ["git", "ls-files", "*.jar"], cwd=root, capture_output=True, text=True, check=False
    )
    assert listed.stdout == ""
