"""Retention in real processes: a store that is full refuses messages, cleaning it lets them in again."""

from __future__ import annotations

from pathlib import Path

import grpc

from ledgermq.proto import admin_pb2, admin_pb2_grpc, log_pb2, log_pb2_grpc, route_pb2
from ledgermq.proto.record import SectionKind, encode_record, encode_section

from .cluster import Cluster, wait_until

BODY = bytes(64 * 1024)
SETTINGS = {"segment-size": "1MiB", "max-message-bytes": "128KiB", "max-store-bytes": "4MiB"}


def produce_until_refused(stub: log_pb2_grpc.LogServiceStub, topic_id: int) -> route_pb2.Refusal:
    """Send one section after the other; return the refusal that ends it."""
    record = encode_record(
        b"",
        BODY,
        section_distance=64,
        body_offset_in_rest=0,
        body_size=len(BODY),
        message_id=bytes(16),
        born_timestamp=0,
    )
    section = bytes(encode_section(SectionKind.RECORDS, [record], 1, topic_id=topic_id, queue_id=0))

    def read() -> route_pb2.Refusal | None:
        request = log_pb2.ProduceRequest(request_id=1, sections=section, section_count=1)
        (answer,) = stub.Produce(iter([request]), timeout=10)
        return answer.refusal if answer.refusal.code else None

    return wait_until(read, "produce refused")


def test_a_full_store_refuses_messages_with_the_command_and_takes_them_after_it(tmp_path: Path) -> None:
    with Cluster(tmp_path, nodes=3, settings=SETTINGS) as cluster:
        leader = cluster.wait_leader()
        with grpc.insecure_channel(cluster.address(leader)) as channel:
            admin, log = admin_pb2_grpc.AdminServiceStub(channel), log_pb2_grpc.LogServiceStub(channel)
            topic = admin.CreateTopic(admin_pb2.CreateTopicRequest(topic="t", queue_count=1), timeout=5).topic
            refusal = produce_until_refused(log, topic.topic_id)
            assert refusal.code == route_pb2.DISK_FULL
            assert "ledgermq admin clean" in refusal.message

            assert not admin.Clean(admin_pb2.CleanRequest(), timeout=5).segments, "nothing has expired"
            wanted = admin_pb2.CleanRequest(even_unexpired=True, dry_run=True)
            planned = admin.Clean(wanted, timeout=5)
            assert planned.segments
            assert not gone(cluster, planned.segments[0])

            done = admin.Clean(admin_pb2.CleanRequest(even_unexpired=True), timeout=10)
            assert done.bytes > 0
            wait_until(lambda: gone(cluster, done.segments[0]), "segments deleted on all nodes")
            wait_until(lambda: takes_messages(cluster, leader), "messages taken again")
            status = cluster.status(leader)
            assert status is not None
            assert status.first_index >= done.log_start_index

            ranges = log.QueryOffsets(log_pb2.QueryOffsetsRequest(topic="t"), timeout=5).offsets[0]
            assert 0 < ranges.begin_offset < ranges.end_offset
            below = log_pb2.FetchPosition(topic_id=topic.topic_id, queue_id=0, offset=0)
            answer = log.Fetch(log_pb2.FetchRequest(positions=[below]), timeout=5)
            assert answer.queues[0].refusal.code == route_pb2.OFFSET_OUT_OF_RANGE
        cluster.kill(leader)
        cluster.restart(leader)


def gone(cluster: Cluster, segment: str) -> bool:
    """Tell whether no node has that segment any more."""
    return not any((cluster.folder / name / "commitlog" / segment).exists() for name in cluster.nodes)


def takes_messages(cluster: Cluster, name: str) -> bool:
    """Tell whether a node says of itself that it refuses nothing."""
    status = cluster.status(name)
    return status is not None and not status.produce_refused
