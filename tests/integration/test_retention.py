"""Retention in real processes: what it deletes and when, what readers learn; begins never go back."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import grpc
import pytest

from ledgermq.client import PullConsumer, SimpleConsumer
from ledgermq.client.errors import MessagesDeletedError
from ledgermq.proto import admin_pb2, admin_pb2_grpc, log_pb2, log_pb2_grpc, route_pb2
from ledgermq.proto.record import SectionKind, encode_record, encode_section

from .cluster import Cluster, wait_until

BODY = bytes(64 * 1024)
SMALL = {"segment-size": "1MiB", "max-message-bytes": "128KiB"}
SETTINGS = SMALL | {"max-store-bytes": "4MiB", "delete-unexpired": "false"}
LARGER = SMALL | {"max-store-bytes": "12MiB"}
SECONDS = {"retention-hours": "0.0006"}  # about two of them


class Group:
    """What a test calls at the leader."""

    def __init__(self, cluster: Cluster, channel: grpc.Channel) -> None:
        self.cluster = cluster
        self.admin = admin_pb2_grpc.AdminServiceStub(channel)
        self.log = log_pb2_grpc.LogServiceStub(channel)

    def topic(self, name: str = "t", retention_ms: int = 0) -> route_pb2.TopicInfo:
        request = admin_pb2.CreateTopicRequest(topic=name, queue_count=1, retention_ms=retention_ms)
        answer: admin_pb2.CreateTopicResponse = self.admin.CreateTopic(request, timeout=5)
        assert not answer.refusal.code, answer.refusal.message
        return answer.topic

    def produce(self, topic_id: int, body: bytes = BODY) -> route_pb2.Refusal:
        """Send one message; return the refusal."""
        record = encode_record(
            b"",
            body,
            section_distance=64,
            body_offset_in_rest=0,
            body_size=len(body),
            message_id=bytes(16),
            born_timestamp=0,
        )
        section = bytes(encode_section(SectionKind.RECORDS, [record], 1, topic_id=topic_id, queue_id=0))
        request = log_pb2.ProduceRequest(request_id=1, sections=section, section_count=1)
        answers: list[log_pb2.ProduceResponse] = list(self.log.Produce(iter([request]), timeout=10))
        (answer,) = answers
        return answer.refusal

    def produce_until_refused(self, topic_id: int) -> route_pb2.Refusal:
        """Send one message after the other; return the refusal that ends it."""

        def read() -> route_pb2.Refusal | None:
            refusal = self.produce(topic_id)
            return refusal if refusal.code else None

        return wait_until(read, "produce refused")

    def produce_all(self, topic_id: int, count: int) -> None:
        """Send messages, each again while it is refused for want of room."""
        for _ in range(count):
            wait_until(lambda: not self.produce(topic_id).code, "a message is taken")

    def clean(self, **options: bool | int) -> admin_pb2.CleanResponse:
        request = admin_pb2.CleanRequest()
        for name, value in options.items():
            setattr(request, name, value)
        answer: admin_pb2.CleanResponse = self.admin.Clean(request, timeout=10)
        assert not answer.refusal.code, answer.refusal.message
        return answer

    def offsets(self, topic: str = "t", group: str = "") -> log_pb2.QueueOffset:
        request = log_pb2.QueryOffsetsRequest(topic=topic, group=group)
        answer: log_pb2.QueryOffsetsResponse = self.log.QueryOffsets(request, timeout=5)
        return answer.offsets[0]

    def commit(self, offset: int, group: str = "billing", topic: str = "t") -> None:
        request = log_pb2.CommitOffsetsRequest(group=group)
        request.offsets.add(topic=topic, queue_id=0, offset=offset)
        assert not self.log.CommitOffsets(request, timeout=5).refusal.code


@contextmanager
def at(cluster: Cluster, node: str = "") -> Iterator[Group]:
    """Call a node, the leader by default."""
    with grpc.insecure_channel(cluster.address(node or cluster.wait_leader())) as channel:
        yield Group(cluster, channel)


def segments_of(cluster: Cluster, name: str) -> list[str]:
    return sorted(
        path.name for path in (cluster.folder / name / "commitlog").iterdir() if path.name.isdigit()
    )


def gone(cluster: Cluster, segment: str) -> bool:
    """Tell whether no node has that segment any more."""
    return not any(segment in segments_of(cluster, name) for name in cluster.nodes)


def takes_messages(cluster: Cluster, name: str) -> bool:
    """Tell whether a node says of itself that it refuses nothing."""
    status = cluster.status(name)
    return status is not None and not status.produce_refused


def is_settled(group: Group) -> bool:
    """Tell whether nothing is being deleted and nothing more will be."""
    status = group.admin.GetStatus(admin_pb2.GetStatusRequest(), timeout=5)
    return bool(status.segments_going == 0 and status.disk_step < 2)


def has_room(group: Group) -> bool:
    """Tell whether the store of 12 MiB is below the share at which segments go."""
    status = group.admin.GetStatus(admin_pb2.GetStatusRequest(), timeout=5)
    assert status.disk_limit_bytes == 12 << 20
    return bool(status.disk_used_bytes < 0.91 * status.disk_limit_bytes)


def test_a_full_store_refuses_messages_with_the_command_and_takes_them_after_it(tmp_path: Path) -> None:
    with Cluster(tmp_path, nodes=3, settings=SETTINGS) as cluster:
        leader = cluster.wait_leader()
        with at(cluster) as group:
            topic = group.topic()
            refusal = group.produce_until_refused(topic.topic_id)
            assert refusal.code == route_pb2.DISK_FULL
            assert "ledgermq admin clean" in refusal.message

            nothing = group.clean()
            assert not nothing.segments, "nothing has expired"
            assert "what is older than 72 hours goes" in nothing.note
            planned = group.clean(even_unexpired=True, dry_run=True)
            assert planned.segments
            assert not gone(cluster, planned.segments[0])

            done = group.clean(even_unexpired=True)
            assert done.bytes > 0
            wait_until(lambda: gone(cluster, done.segments[0]), "segments deleted on all nodes")
            wait_until(lambda: takes_messages(cluster, leader), "messages taken again")
            status = cluster.status(leader)
            assert status is not None
            assert status.first_index >= done.log_start_index
            assert status.log_start_offset > 0

            ranges = group.offsets()
            assert 0 < ranges.begin_offset < ranges.end_offset
            below = log_pb2.FetchPosition(topic_id=topic.topic_id, queue_id=0, offset=0)
            (queue,) = group.log.Fetch(log_pb2.FetchRequest(positions=[below]), timeout=5).queues
            assert queue.refusal.code == route_pb2.OFFSET_OUT_OF_RANGE
            assert (
                f"begins at {ranges.begin_offset} now, {ranges.begin_offset} messages are gone"
                in queue.refusal.message
            )
            assert (queue.begin_offset, queue.end_offset) == (ranges.begin_offset, ranges.end_offset)
        cluster.kill(leader)
        cluster.restart(leader)


def test_the_oldest_messages_make_room_on_a_nearly_full_disk_and_readers_are_told(tmp_path: Path) -> None:
    """Above 85 %, unexpired segments are deleted on all nodes, oldest first; slow readers learn the loss."""
    with Cluster(tmp_path, nodes=3, settings=LARGER) as cluster:
        with at(cluster) as group:
            topic = group.topic()
            group.produce(topic.topic_id, b"first")
            group.commit(0)
            group.commit(1, group="ahead")
            group.produce_all(topic.topic_id, 400)  # 25 MiB into a store of 12
            wait_until(lambda: gone(cluster, f"{0:020d}"), "the first segment is gone everywhere")
            wait_until(lambda: has_room(group) and is_settled(group), "enough is gone")
            ranges = group.offsets(group="billing")
            assert ranges.begin_offset > 0 and ranges.end_offset == 401
            assert ranges.offset == ranges.begin_offset, "the group goes on at what is left"
            assert ranges.lost == ranges.begin_offset
            assert has_room(group)
        asyncio.run(_read_behind(cluster, ranges.begin_offset))
        _, text = cluster.http(cluster.wait_leader(), "/metrics")
        assert "ledgermq_retention_segments_deleted_total" in text


async def _read_behind(cluster: Cluster, begin: int) -> None:
    nameserver = cluster.nameserver
    async with PullConsumer(nameserver, group="billing", when_deleted="raise") as pulling:
        await pulling.subscribe("t")
        with pytest.raises(MessagesDeletedError) as told:
            await pulling.poll(1, 10_000)
        assert (told.value.count, told.value.begin) == (begin, begin)
        (message,) = await pulling.poll(1, 10_000)
        assert message.queue_offset == begin
        pulling.seek(message.queue, begin - 3)
        with pytest.raises(MessagesDeletedError) as told:
            while True:
                await pulling.poll(1, 10_000)
        assert (told.value.count, told.value.begin) == (3, begin)
        assert [each.queue_offset for each in await pulling.poll(1, 10_000)] == [begin]


def test_a_simple_consumer_is_told_in_the_log_what_was_deleted(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with Cluster(tmp_path, nodes=1, settings=SETTINGS | {"max-store-bytes": "64GiB"}) as cluster:
        with at(cluster) as group:
            topic = group.topic()
            group.produce_all(topic.topic_id, 40)
            group.commit(0)
            assert group.clean(even_unexpired=True).segments
            begin = group.offsets().begin_offset
            assert 0 < begin < 40
            group.produce_all(topic.topic_id, 2)

        async def receive() -> None:
            async with SimpleConsumer(cluster.nameserver, group="billing") as consumer:
                await consumer.subscribe("t")
                offsets = [(await consumer.receive(1))[0].queue_offset for _ in range(2)]
                assert offsets == [begin, begin + 1]

        asyncio.run(asyncio.wait_for(receive(), 60))
        told = [record.message for record in caplog.records if "retention deleted" in record.message]
        assert told == [
            f"group=billing: retention deleted {begin} messages of topic t queue 0 before consumer "
            "group billing had consumed them; "
            f"the queue begins at offset {begin} now"
        ], "once"


def test_expired_segments_go_at_once_above_75_percent_and_not_before(tmp_path: Path) -> None:
    settings = SETTINGS | SECONDS | {"max-store-bytes": "8MiB"}
    with Cluster(tmp_path, nodes=1, settings=settings) as cluster, at(cluster) as group:
        topic = group.topic()
        group.produce_all(topic.topic_id, 60)  # under 4 MiB
        wait_until(lambda: group.clean(dry_run=True).segments, "some of it expires")
        time.sleep(3)  # the disk is looked at every second
        assert not gone(cluster, f"{0:020d}"), "half full: it waits for its time of day"
        group.produce_all(topic.topic_id, 45)  # above 6 MiB
        wait_until(lambda: gone(cluster, f"{0:020d}"), "expired segments deleted at once")


def test_what_a_group_has_not_consumed_stays_when_it_is_protected(tmp_path: Path) -> None:
    settings = SETTINGS | SECONDS | {"max-store-bytes": "64GiB", "protect-unconsumed": "true"}
    with Cluster(tmp_path, nodes=1, settings=settings) as cluster, at(cluster) as group:
        topic = group.topic()
        group.produce_all(topic.topic_id, 40)
        group.commit(5)
        wait_until(
            lambda: "kept for consumer group billing in topic t" in group.clean(dry_run=True).note,
            "it expires, and stays",
        )
        assert not group.clean().segments
        status = group.admin.GetStatus(admin_pb2.GetStatusRequest())
        assert "expired segments" in status.protection and "group billing in topic t" in status.protection
        _, text = cluster.http(cluster.wait_leader(), "/metrics")
        (line,) = [
            each for each in text.splitlines() if each.startswith("ledgermq_retention_protected_bytes")
        ]
        assert float(line.split()[1]) > 0
        group.commit(40)
        assert group.clean().segments, "consumed: it goes"


def test_messages_of_a_topic_are_hidden_when_they_are_old_and_no_failover_shows_them_again(
    tmp_path: Path,
) -> None:
    with Cluster(tmp_path, nodes=3, settings=SMALL) as cluster:
        leader = cluster.wait_leader()
        with at(cluster) as group:
            short, long = group.topic("short", retention_ms=3000), group.topic("long")
            refused = group.admin.CreateTopic(
                admin_pb2.CreateTopicRequest(topic="forever", retention_ms=1 << 40), timeout=5
            ).refusal
            assert refused.code == route_pb2.INVALID_ARGUMENT and "72" in refused.message
            for topic in (short, long):
                for _ in range(5):
                    assert not group.produce(topic.topic_id, b"old").code
            wait_until(lambda: group.offsets("short").begin_offset == 5, "all of it is hidden", 60)
            assert group.offsets("long").begin_offset == 0
            answer = group.admin.UpdateTopic(
                admin_pb2.UpdateTopicRequest(topic="short", retention_ms=3_600_000), timeout=5
            )
            assert answer.topic.retention_ms == 3_600_000
            assert not group.produce(short.topic_id, b"new").code
        for _ in range(2):
            cluster.kill(leader)
            after = cluster.wait_leader(other_than=leader)
            with at(cluster, after) as group:
                assert group.offsets("short").begin_offset == 5, "no beginning goes back"
                assert group.offsets("short").end_offset == 6
            cluster.restart(leader)
            cluster.wait_ready(leader)
            with at(cluster, leader) as group:
                assert group.offsets("short").begin_offset == 5, "nor at a node that comes back"
            leader = after


def test_begin_offsets_stay_through_kills_of_all_nodes_while_segments_go(tmp_path: Path) -> None:
    """Nodes die between the decision, their checkpoints and the unlinks; no new leader shows more again."""
    with Cluster(tmp_path, nodes=3, settings=SETTINGS | {"max-store-bytes": "64GiB"}) as cluster:
        with at(cluster) as group:
            topic = group.topic()
        begin = 0
        for round_number in range(4):
            with at(cluster) as group:
                group.produce_all(topic.topic_id, 40)
                group.clean(even_unexpired=True)
                found = group.offsets().begin_offset
                assert found > begin
                begin = found
            leader = cluster.wait_leader()
            time.sleep(0.7 * round_number)  # another moment of the deletion each time
            cluster.kill(leader)
            after = cluster.wait_leader(other_than=leader)
            with at(cluster, after) as group:
                assert group.offsets().begin_offset == begin
            cluster.restart(leader)
            cluster.wait_ready(leader)
            for name in cluster.nodes:
                with at(cluster, name) as group:
                    assert group.offsets().begin_offset == begin, name
        wait_until(lambda: gone(cluster, f"{0:020d}"), "segments are deleted in the end")


def test_a_topic_that_keeps_what_is_unread_refuses_new_messages_instead_of_losing_old_ones(
    tmp_path: Path,
) -> None:
    """Unread messages hold the log through age, a full disk and a clean by hand, until they are consumed."""
    steps = {"disk-delete-expired-percent": "30", "disk-delete-oldest-percent": "40"}
    settings = SMALL | SECONDS | steps | {"disk-refuse-messages-percent": "50", "max-store-bytes": "6MiB"}
    with Cluster(tmp_path, nodes=1, settings=settings) as cluster, at(cluster) as group:
        request = admin_pb2.CreateTopicRequest(topic="kept", queue_count=1, keep_unread=True)
        topic = group.admin.CreateTopic(request, timeout=5).topic
        assert topic.keep_unread
        group.produce(topic.topic_id, b"first")
        group.commit(0, topic="kept")

        def refused() -> bool:
            refusal = group.produce(topic.topic_id)
            return "is held by consumer group billing in topic kept" in refusal.message

        wait_until(refused, "refused, and it is said who holds the log")
        assert not group.clean(even_unexpired=True).segments
        ranges = group.offsets("kept", "billing")
        assert (ranges.begin_offset, ranges.offset, ranges.lost) == (0, 0, 0)
        group.commit(ranges.end_offset, topic="kept")
        wait_until(lambda: group.offsets("kept").begin_offset > 0, "consumed: it goes")
        assert group.offsets("kept", "billing").lost == 0
