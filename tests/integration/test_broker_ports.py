"""Answers of a broker's ports to callers that ask for something other than they serve."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from typing import Any

import grpc
import pytest

from ledgermq.proto import admin_pb2, admin_pb2_grpc, log_pb2, peer_pb2, route_pb2
from ledgermq.proto import rocketmq_v2_pb2 as v2
from ledgermq.proto import rocketmq_v2_pb2_grpc as v2_grpc

from .cluster import Cluster, wait_until

CLIENT = (("x-mq-client-id", "c1"),)


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with Cluster(
        tmp_path_factory.mktemp("ports"), nodes=1, settings={"auto-create-topics": "false"}
    ) as running:
        running.wait_leader()
        yield running


@pytest.fixture
def messaging(cluster: Cluster) -> Iterator[v2_grpc.MessagingServiceStub]:
    with grpc.insecure_channel(cluster.address("n1", "messaging")) as channel:
        yield v2_grpc.MessagingServiceStub(channel)


def test_a_tls_hello_is_closed_and_the_log_says_once_what_to_switch(cluster: Cluster) -> None:
    host, port = cluster.address("n1", "messaging").split(":")
    for _ in range(2):
        with socket.create_connection((host, int(port)), timeout=10) as connection:
            connection.sendall(b"\x16\x03\x01\x02\x00")
            assert connection.recv(16) == b""
    wait_until(lambda: "tls hello refused" in cluster.nodes["n1"].log(), "the refusal in the log")
    assert cluster.nodes["n1"].log().count("tls hello refused") == 1
    assert "enableSsl(false)" in cluster.nodes["n1"].log()


def test_failures_are_in_band_with_the_codes_that_clients_know(
    messaging: v2_grpc.MessagingServiceStub,
) -> None:
    topic = v2.Resource(name="nothing")
    answer = messaging.QueryRoute(v2.QueryRouteRequest(topic=topic), metadata=CLIENT, timeout=5)
    assert answer.status.code == v2.TOPIC_NOT_FOUND
    assert "No topic route info in name server for the topic: nothing" in answer.status.message
    assert (
        messaging.QueryRoute(v2.QueryRouteRequest(topic=topic), timeout=5).status.code
        == v2.CLIENT_ID_REQUIRED
    )
    assert messaging.Heartbeat(v2.HeartbeatRequest(), metadata=CLIENT, timeout=5).status.code == v2.OK
    recall = messaging.RecallMessage(v2.RecallMessageRequest(), metadata=CLIENT, timeout=5)
    assert recall.status.code == v2.NOT_IMPLEMENTED
    system = v2.QueryRouteRequest(topic=v2.Resource(name="TBW102"))
    assert messaging.QueryRoute(system, metadata=CLIENT, timeout=5).status.code == v2.ILLEGAL_TOPIC


def test_a_receive_that_fails_still_ends_with_the_time(messaging: v2_grpc.MessagingServiceStub) -> None:
    request = v2.ReceiveMessageRequest(
        group=v2.Resource(name="g"),
        message_queue=v2.MessageQueue(topic=v2.Resource(name="nothing")),
        auto_renew=True,
    )
    frames = list(messaging.ReceiveMessage(request, metadata=CLIENT, timeout=5))
    assert frames[0].status.code == v2.TOPIC_NOT_FOUND
    assert frames[-1].HasField("delivery_timestamp")


def test_settings_are_answered_at_once(messaging: v2_grpc.MessagingServiceStub) -> None:
    settings = v2.Settings(client_type=v2.PRODUCER)
    settings.publishing.topics.add(name="orders")
    answers = messaging.Telemetry(iter([v2.TelemetryCommand(settings=settings)]), metadata=CLIENT, timeout=5)
    assert next(answers).settings.publishing.max_body_size == 4194304


def test_admin_says_what_may_have_been_meant(cluster: Cluster) -> None:
    with grpc.insecure_channel(cluster.address("n1")) as channel:
        admin = admin_pb2_grpc.AdminServiceStub(channel)
        assert not admin.CreateTopic(admin_pb2.CreateTopicRequest(topic="orders"), timeout=5).refusal.code
        again = admin.CreateTopic(admin_pb2.CreateTopicRequest(topic="orders"), timeout=5).refusal
        assert again.code == route_pb2.ALREADY_EXISTS
        missing = admin.DescribeTopic(admin_pb2.DescribeTopicRequest(topic="order"), timeout=5).refusal
        assert missing.code == route_pb2.TOPIC_NOT_FOUND
        assert 'Did you mean "orders"?' in missing.message
        bad = admin.CreateTopic(admin_pb2.CreateTopicRequest(topic="rmq_sys_x"), timeout=5).refusal
        assert bad.code == route_pb2.INVALID_ARGUMENT


def test_what_an_unanswered_attempt_has_done_is_a_success_and_nothing_else_is(cluster: Cluster) -> None:
    with grpc.insecure_channel(cluster.address("n1")) as channel:
        admin = admin_pb2_grpc.AdminServiceStub(channel)
        topic = admin_pb2.CreateTopicRequest(topic="twice", queue_count=2, perhaps_done=True)
        info = admin_pb2.ConsumerGroupInfo(name="twice", fifo=True)
        group = admin_pb2.CreateGroupRequest(group=info, perhaps_done=True)
        for _ in range(2):
            assert not admin.CreateTopic(topic, timeout=5).refusal.code
            assert not admin.CreateGroup(group, timeout=5).refusal.code
        topic.queue_count, group.group.fifo = 3, False
        assert admin.CreateTopic(topic, timeout=5).refusal.code == route_pb2.ALREADY_EXISTS
        assert admin.CreateGroup(group, timeout=5).refusal.code == route_pb2.ALREADY_EXISTS
        for _ in range(2):
            gone = admin_pb2.DeleteTopicRequest(topic="twice", perhaps_done=True)
            assert not admin.DeleteTopic(gone, timeout=5).refusal.code
            left = admin_pb2.DeleteGroupRequest(name="twice", perhaps_done=True)
            assert not admin.DeleteGroup(left, timeout=5).refusal.code
        missing = admin.DeleteTopic(admin_pb2.DeleteTopicRequest(topic="twice"), timeout=5).refusal
        assert missing.code == route_pb2.TOPIC_NOT_FOUND


def test_the_http_port_tells_life_readiness_and_metrics(cluster: Cluster) -> None:
    for path in ("/livez", "/readyz", "/healthz"):
        assert cluster.http("n1", path)[0] == 200
    status, text = cluster.http("n1", "/metrics")
    assert status == 200
    assert "ledgermq_applied_index" in text
    assert cluster.http("n1", "/nothing")[0] == 404


@pytest.mark.parametrize("handle", ["", "x", "g0", "g0:1:2", "\u00e4" * 5000, "AAAA", "/" * 300])
def test_receipt_handles_that_are_none_are_refused_in_band(
    cluster: Cluster, messaging: v2_grpc.MessagingServiceStub, handle: str
) -> None:
    names: dict[str, Any] = {"group": v2.Resource(name="g"), "topic": v2.Resource(name="orders")}
    acks = v2.AckMessageRequest(**names, entries=[v2.AckMessageEntry(message_id="m", receipt_handle=handle)])
    answer = messaging.AckMessage(acks, metadata=CLIENT, timeout=5)
    codes = {answer.status.code, *(entry.status.code for entry in answer.entries)}
    assert codes == {v2.INVALID_RECEIPT_HANDLE}
    change = v2.ChangeInvisibleDurationRequest(**names, receipt_handle=handle, message_id="m")
    change.invisible_duration.FromSeconds(30)
    code = messaging.ChangeInvisibleDuration(change, metadata=CLIENT, timeout=5).status.code
    assert code == v2.INVALID_RECEIPT_HANDLE
    assert "Traceback" not in cluster.nodes["n1"].log()


def test_bytes_that_are_no_request_are_refused_and_leave_no_trace_in_the_log(cluster: Cluster) -> None:
    garbage = b"\x0f\xff\xff not a request"
    in_band: dict[str, Any] = {
        "LogService/Fetch": log_pb2.FetchResponse,
        "LogService/QueryOffsets": log_pb2.QueryOffsetsResponse,
        "LogService/CommitOffsets": log_pb2.CommitOffsetsResponse,
        "AdminService/ListTopics": admin_pb2.ListTopicsResponse,
        "AdminService/CreateTopic": admin_pb2.CreateTopicResponse,
    }
    with grpc.insecure_channel(cluster.address("n1", "log")) as plain:
        channel: Any = plain
        for method, response in in_band.items():
            answer = response.FromString(channel.unary_unary(f"/ledgermq.v1.{method}")(garbage, timeout=5))
            assert answer.refusal.code == route_pb2.INVALID_ARGUMENT, method
        chunks = list(channel.unary_stream("/ledgermq.v1.AdminService/Dump")(garbage, timeout=5))
        assert admin_pb2.DumpChunk.FromString(chunks[-1]).refusal.code == route_pb2.INVALID_ARGUMENT
        fetched = next(
            channel.stream_stream("/ledgermq.v1.LogService/FetchStream")(iter([garbage]), timeout=5)
        )
        assert log_pb2.FetchResponse.FromString(fetched).refusal.code == route_pb2.INVALID_ARGUMENT
        with pytest.raises(grpc.RpcError) as refused:
            channel.unary_unary("/ledgermq.v1.AdminService/GetStatus")(garbage, timeout=5)
        assert refused.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    with grpc.insecure_channel(cluster.address("n1", "messaging")) as plain:
        channel = plain
        telemetry = channel.stream_stream("/apache.rocketmq.v2.MessagingService/Telemetry")
        with pytest.raises(grpc.RpcError) as refused:
            list(telemetry(iter([garbage]), metadata=CLIENT, timeout=5))
        assert refused.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    with grpc.insecure_channel(cluster.address("n1", "raft")) as plain:
        channel = plain
        answer = channel.unary_unary("/ledgermq.v1.PeerService/Report")(garbage, timeout=5)
        assert peer_pb2.GroupView.FromString(answer).refusal.code == route_pb2.INVALID_ARGUMENT
    assert "Traceback" not in cluster.nodes["n1"].log()
