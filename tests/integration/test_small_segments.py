"""Small segments take small messages only; clients learn the limit, and messages below it fit."""

from __future__ import annotations

from collections.abc import Iterator

import grpc
import pytest

from ledgermq.client.errors import MessageTooLargeError
from ledgermq.client.message import Message
from ledgermq.client.sync import Producer
from ledgermq.proto import rocketmq_v2_pb2 as v2
from ledgermq.proto import rocketmq_v2_pb2_grpc as v2_grpc

from .cluster import Cluster

LIMIT = 128 * 1024
CLIENT = (("x-mq-client-id", "c1"),)


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    settings = {"segment-size": "1MiB", "max-message-bytes": "128KiB"}
    with Cluster(tmp_path_factory.mktemp("small"), nodes=1, settings=settings) as running:
        running.wait_leader()
        yield running


def test_batches_of_our_client_fit_into_entries(cluster: Cluster) -> None:
    """More waits than an entry of 256 KiB holds: the client fits its requests to the broker group's limit."""
    messages = [Message("orders", bytes([i]) * size) for i, size in enumerate([1000] * 100 + [LIMIT] * 10)]
    with Producer(cluster.nameserver, compress_above=None) as producer:
        receipts = producer.send_batch(messages * 3)
    assert len({(r.queue_id, r.queue_offset) for r in receipts}) == 3 * len(messages)


def test_a_message_above_the_limit_is_refused_with_the_limit(cluster: Cluster) -> None:
    with (
        Producer(cluster.nameserver) as producer,
        pytest.raises(MessageTooLargeError, match="131,073 bytes; the limit is 131,072"),
    ):
        producer.send("orders", bytes(LIMIT + 1))


def test_official_clients_are_told_the_limit_and_held_to_it(cluster: Cluster) -> None:
    with grpc.insecure_channel(cluster.address("n1", "messaging")) as channel:
        stub = v2_grpc.MessagingServiceStub(channel)
        settings = v2.Settings(client_type=v2.PRODUCER)
        settings.publishing.topics.add(name="orders")
        answers = stub.Telemetry(iter([v2.TelemetryCommand(settings=settings)]), metadata=CLIENT, timeout=5)
        assert next(answers).settings.publishing.max_body_size == LIMIT
        request = v2.SendMessageRequest()
        message = request.messages.add(topic=v2.Resource(name="orders"), body=bytes(LIMIT))
        message.system_properties.message_id = "01" + 32 * "A"
        assert stub.SendMessage(request, metadata=CLIENT, timeout=5).status.code == v2.OK
        message.body = bytes(LIMIT + 1)
        answer = stub.SendMessage(request, metadata=CLIENT, timeout=5)
        assert answer.status.code == v2.MESSAGE_BODY_TOO_LARGE
        assert str(LIMIT) in answer.status.message
