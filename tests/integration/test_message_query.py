"""Message search on real broker groups: every node, restarts, no leader, damaged files, retention."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import grpc
import pytest

from ledgermq.client import Admin, FoundMessages, Message, Producer
from ledgermq.client.cli import run_cli
from ledgermq.client.message import SendReceipt
from ledgermq.client.produce.queue_selection import StrictRoundRobin
from ledgermq.proto import admin_pb2, admin_pb2_grpc, rocketmq_v2_pb2_grpc
from ledgermq.proto import rocketmq_v2_pb2 as v2
from ledgermq.proto.record import decode_record

from .cluster import Cluster, wait_until
from .history import run_client

#: Segments of a MiB, so that there are closed ones.
SETTINGS = {"segment-size": "1MiB", "max-message-bytes": "128KiB"}
TOPIC = "orders"
BODY = bytes(2000)


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """Two broker groups of three nodes, and a topic over both."""
    with Cluster(tmp_path_factory.mktemp("find"), nodes=3, groups=2, settings=SETTINGS) as running:
        run_client(_create(running))
        yield running


async def _create(cluster: Cluster) -> None:
    async with Admin(cluster.nameserver) as admin:
        await admin.create_topic(TOPIC, 2)


@pytest.fixture(autouse=True)
def ledgermq(cluster: Cluster, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Any:
    """Run one command line; return its exit code, stdout and stderr. Every test begins with all nodes up."""
    cluster.start_all()
    monkeypatch.setenv("LEDGERMQ_NAMESERVER", cluster.nameserver)
    monkeypatch.setenv("COLUMNS", "200")

    def command(*arguments: str) -> tuple[int, str, str]:
        code = run_cli(list(arguments))
        printed = capfd.readouterr()
        return code, printed.out, printed.err

    assert command("cluster", "status", "--wait", "30s")[0] == 0
    return command


def send(cluster: Cluster, name: str, count: int) -> list[SendReceipt]:
    """Send messages with the keys `name` and `name`-<number>, and bodies that fill segments."""
    receipts: list[SendReceipt] = []

    async def work() -> None:
        address = cluster.nameserver
        async with Producer(address, timeout_ms=30_000, selector=StrictRoundRobin()) as producer:
            receipts.extend(
                await producer.send_batch(
                    Message(TOPIC, b"%d" % i + BODY, tag=name, keys=[name, f"{name}-{i}"])
                    for i in range(count)
                )
            )

    run_client(work())
    return receipts


def query(cluster: Cluster, key: str = "", limit: int = 5000, **times: int) -> FoundMessages:
    found: list[FoundMessages] = []

    async def work() -> None:
        async with Admin(cluster.nameserver) as admin:
            found.append(await admin.query_messages(TOPIC, key=key, limit=limit, **times))

    run_client(work())
    return found[0]


def ask(cluster: Cluster, node: str, **fields: Any) -> admin_pb2.QueryMessagesResponse:
    """Ask one node."""
    with grpc.insecure_channel(cluster.address(node)) as channel:
        stub = admin_pb2_grpc.AdminServiceStub(channel)
        answer: admin_pb2.QueryMessagesResponse = stub.QueryMessages(
            admin_pb2.QueryMessagesRequest(**fields), timeout=10
        )
    assert not answer.refusal.code, answer.refusal.message
    assert answer.node_id == node
    return answer


def places(found: FoundMessages) -> set[tuple[str, int, int]]:
    return {(each.queue.broker_group, each.queue_id, each.queue_offset) for each in found.messages}


def test_messages_are_found_in_all_groups_by_key_and_by_time_the_newest_first(cluster: Cluster) -> None:
    receipts = send(cluster, "first", 3000)
    sent = {(each.broker_group, each.queue_id, each.queue_offset) for each in receipts}
    assert {group for group, _, _ in sent} == {"g0", "g1"}
    found = query(cluster, "first")
    assert found.is_complete, found
    assert places(found) == sent and len(found.messages) == 3000
    assert found.is_complete and not found.truncated
    times = [each.store_timestamp for each in found.messages]
    assert times == sorted(times, reverse=True)
    one = query(cluster, "first-1234")
    assert [(each.message_id, each.body[:4]) for each in one.messages] == [
        (receipts[1234].message_id, b"1234")
    ]
    some = query(cluster, "first", limit=10)
    assert some.truncated and [each.store_timestamp for each in some.messages] == times[:10]
    middle = times[1500]
    later, earlier = query(cluster, begin_ms=middle), query(cluster, end_ms=middle)
    assert places(later) | places(earlier) >= sent and not places(later) & places(earlier)
    assert min(each.store_timestamp for each in later.messages) == middle
    assert max(each.store_timestamp for each in earlier.messages) < middle


def test_every_node_answers_also_after_a_restart_and_with_damaged_files(cluster: Cluster) -> None:
    receipts = [each for each in send(cluster, "nodes", 1500) if each.broker_group == "g0"]
    leader = cluster.wait_leader()
    follower = cluster.others(leader)[0]
    wanted = receipts[:: len(receipts) // 10]

    def find_all(node: str) -> bool:
        for receipt in wanted:
            answer = ask(cluster, node, message_id=receipt.message_id)
            assert answer.unsearched_bytes or len(answer.messages) == 1
            if not answer.messages:
                return False
            (found,) = answer.messages
            assert (found.topic, found.queue_id, found.queue_offset) == (
                TOPIC, receipt.queue_id, receipt.queue_offset,
            )  # fmt: skip
            assert decode_record(found.record).message_id == bytes.fromhex(receipt.message_id[2:])
        return True

    for node in cluster.groups["g0"]:
        assert find_all(node)
    assert cluster.terminate(follower) == 0
    cluster.restart(follower)
    assert find_all(follower)
    cluster.kill(follower)
    folder = cluster.folder / follower / "keyindex"
    runs = [path for path in sorted(folder.iterdir()) if not path.suffix]
    assert len(runs) > 2
    for path in runs[:-1]:
        raw = bytearray(path.read_bytes())
        raw[len(raw) // 2] ^= 0xFF
        path.write_bytes(raw)
    runs[-1].unlink()
    cluster.restart(follower)
    wait_until(lambda: find_all(follower), "the damaged files are made again")
    assert "key index damaged" in cluster.nodes[follower].log(1000)


def test_messages_of_official_clients_are_found_by_their_ids_and_keys(
    cluster: Cluster, ledgermq: Any
) -> None:
    """Also ids that are no v1 ids: of them the log's fixed header has only a digest."""
    request = v2.SendMessageRequest()
    for message_id in ("our own id, with blanks", "01" + 32 * "A"):
        message = request.messages.add(topic=v2.Resource(name=TOPIC), body=b"official")
        message.system_properties.message_id = message_id
        message.system_properties.keys.extend(["official", f"key of {message_id}"])
        message.system_properties.message_type = v2.NORMAL
    with grpc.insecure_channel(cluster.address(cluster.wait_leader(), "messaging")) as channel:
        stub = rocketmq_v2_pb2_grpc.MessagingServiceStub(channel)
        answer = stub.SendMessage(request, timeout=15, metadata=(("x-mq-client-id", "c"),))
    assert answer.status.code == v2.OK, answer.status.message
    for entry in answer.entries:
        (found,) = query(cluster, f"key of {entry.message_id}").messages
        assert (found.message_id, found.queue_offset) == (entry.message_id, entry.offset)
        (shown,) = json.loads(ledgermq("message", "get", entry.message_id, "--json")[1])
        assert (shown["body"], shown["keys"][0]) == ("official", "official")
    assert len(query(cluster, "official").messages) == 2


def test_without_a_leader_a_node_answers_what_it_has_and_says_so(cluster: Cluster) -> None:
    receipt, *more = (each for each in send(cluster, "alone", 20) if each.broker_group == "g1")
    last, *others = cluster.groups["g1"]
    ids = [each.message_id for each in (receipt, *more)]
    wait_until(lambda: all(ask(cluster, last, message_id=each).messages for each in ids), "applied there")
    for name in others:
        cluster.kill(name)
    answer = wait_until(
        lambda: found if (found := ask(cluster, last, message_id=receipt.message_id)).stale else None,
        "it knows no leader",
    )
    assert len(answer.messages) == 1
    found = query(cluster, "alone")
    assert (len(found.messages), found.stale, found.silent) == (20, ["g1"], {})
    cluster.kill(last)
    found = query(cluster, "alone")
    assert 0 < len(found.messages) < 20 and list(found.silent) == ["g1"] and not found.is_complete


def test_the_command_line_finds_messages(cluster: Cluster, ledgermq: Any) -> None:
    receipts = send(cluster, "shop", 30)
    code, out, err = ledgermq("message", "get", receipts[7].message_id)
    assert (code, err) == (0, "")
    assert f"message id    {receipts[7].message_id}" in out and "keys          shop shop-7" in out
    code, out, _ = ledgermq("message", "get", receipts[7].message_id, "--json")
    (one,) = json.loads(out)
    assert (one["queue_offset"], one["tag"], one["body"][:1]) == (receipts[7].queue_offset, "shop", "7")
    code, _, err = ledgermq("message", "get", "01" + 32 * "0")
    assert code == 1 and "no stored message has the id" in err
    code, out, err = ledgermq("message", "query", "--topic", TOPIC, "--key", "shop", "--limit", "4")
    assert code == 0 and len(out.splitlines()) == 5 and "there are more" in err
    code, out, _ = ledgermq("message", "query", "--topic", TOPIC, "--key", "shop", "--json")
    assert code == 0 and {each["message_id"] for each in json.loads(out)["messages"]} == {
        each.message_id for each in receipts
    }
    assert ledgermq("message", "query", "--topic", TOPIC, "--key", "nothing")[1] == "no messages found\n"
    code, _, err = ledgermq("message", "query", "--topic", "order")
    assert code == 1 and 'Did you mean "orders"?' in err


def test_what_retention_deletes_is_found_no_more_and_its_index_goes(cluster: Cluster, ledgermq: Any) -> None:
    old = send(cluster, "old", 2000)
    send(cluster, "new", 1500)
    before = query(cluster, "old")
    assert len(before.messages) == 2000
    assert ledgermq("admin", "clean", "--even-unexpired", "--yes")[0] == 0
    wait_until(lambda: not query(cluster, "old-0").messages, "the first segments are gone")
    left = query(cluster, "old")
    assert places(left) < places(before)
    assert ledgermq("message", "get", old[0].message_id)[0] == 1

    def files_fit() -> bool:
        for name in cluster.nodes:
            segments = {path.name for path in (cluster.folder / name / "commitlog").iterdir()}
            runs = {path.name.split(".")[0] for path in (cluster.folder / name / "keyindex").iterdir()}
            if not runs <= segments:
                return False
        return True

    wait_until(files_fit, "the index files of deleted segments are gone")
