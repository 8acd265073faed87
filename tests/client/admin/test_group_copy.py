"""What a broker group lacks that joins a cluster."""

from __future__ import annotations

from ledgermq.client.admin.broker_group_rules import compare_consumer_groups, compare_topics
from ledgermq.proto import route_pb2 as pb
from ledgermq.proto.admin_pb2 import ConsumerGroupInfo


def topic(
    name: str, queues: int = 4, kind: pb.TopicMessageType = pb.NORMAL, retention_ms: int = 0
) -> pb.TopicInfo:
    return pb.TopicInfo(name=name, queue_count=queues, message_type=kind, retention_ms=retention_ms)


def test_topics_that_are_missing_are_found_once_and_those_that_are_alike_are_left() -> None:
    sources = {"g0": [topic("a"), topic("b", 8)], "g2": [topic("a"), topic("c", 1, pb.FIFO)]}
    found = compare_topics("g1", [topic("b", 8)], sources)
    assert [info.name for info in found.missing] == ["a", "c"]
    assert found.existing == ["b"]
    assert found.conflicts == []


def test_only_the_named_topics_are_compared() -> None:
    found = compare_topics("g1", [], {"g0": [topic("a"), topic("b")]}, ["b"])
    assert [info.name for info in found.missing] == ["b"]


def test_what_is_there_otherwise_is_a_conflict_that_says_who_has_what() -> None:
    found = compare_topics("g1", [topic("a", 8)], {"g0": [topic("a")], "g2": [topic("a")]})
    assert found.conflicts == ['topic "a" differs (g0, g2: 4 queues, normal; g1: 8 queues, normal)']
    assert not (found.missing or found.existing)
    unread = compare_topics(
        "g1",
        [topic("a")],
        {"g0": [pb.TopicInfo(name="a", queue_count=4, message_type=pb.NORMAL, keep_unread=True)]},
    )
    assert unread.conflicts == ['topic "a" differs (g0: 4 queues, normal, unread kept; g1: 4 queues, normal)']
    kept = compare_topics("g1", [topic("a")], {"g0": [topic("a", retention_ms=7_200_000)]})
    assert kept.conflicts == ['topic "a" differs (g0: 4 queues, normal, kept 2 h; g1: 4 queues, normal)']
    kinds = compare_topics("g1", [topic("a")], {"g0": [topic("a", 4, pb.FIFO)]})
    assert "fifo" in kinds.conflicts[0]


def test_groups_that_differ_among_themselves_are_a_conflict_even_when_the_target_agrees_with_one() -> None:
    sources = {"g0": [topic("a", 4)], "g2": [topic("a", 2)]}
    for there in ([], [topic("a", 4)]):
        found = compare_topics("g1", there, sources)
        assert "g2: 2 queues" in found.conflicts[0]
        assert not (found.missing or found.existing)


def test_consumer_groups_are_compared_by_their_settings_and_not_by_who_is_connected() -> None:
    def group(start: str = "earliest", clients: int = 0) -> ConsumerGroupInfo:
        return ConsumerGroupInfo(
            name="billing", start_position=start, max_attempts=17, connected_clients=clients
        )

    assert compare_consumer_groups("g1", [group()], {"g0": [group(clients=3)]}).existing == ["billing"]
    assert compare_consumer_groups("g1", [], {"g0": [group()]}).missing == [group()]
    differing = compare_consumer_groups("g1", [group("latest")], {"g0": [group()]}).conflicts
    assert differing == [
        'consumer group "billing" differs (g0: from earliest, 17 attempts; g1: from latest, 17 attempts)'
    ]
