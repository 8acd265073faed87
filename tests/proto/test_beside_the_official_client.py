"""The messages of RocketMQ's protocol, as ours and as the official client's, in one process."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

pytest.importorskip("rocketmq", reason="the lower bounds exclude the official client")

#: Imports both in the order of the arguments; then what one writes the other reads.
BOTH = """
import importlib, pickle, sys

for name in sys.argv[2:]:
    importlib.import_module(name)
from google.protobuf.internal import api_implementation
from google.protobuf.timestamp_pb2 import Timestamp
from ledgermq.proto import peer_pb2, rocketmq_v2_pb2 as ours, rocketmq_v2_pb2_grpc
from rocketmq.grpc_protocol import definition_pb2, service_pb2

assert api_implementation.Type() == sys.argv[1], api_implementation.Type()
theirs = {**definition_pb2.DESCRIPTOR.message_types_by_name, **service_pb2.DESCRIPTOR.message_types_by_name}
for name, message in theirs.items():  # ours is of a later version of the protocol, with a field more
    message = ours.DESCRIPTOR.message_types_by_name[name]
    known = {(field.number, field.name, field.type) for field in message.fields}
    assert {(field.number, field.name, field.type) for field in message.fields} <= known, name

fields = dict(
    topic={"name": "orders"}, user_properties={"a": "1"}, body=b"hi",
    system_properties={"born_timestamp": Timestamp(seconds=7), "message_type": ours.NORMAL, "keys": ["k"]},
)
one, other = ours.Message(**fields), definition_pb2.Message(**fields)
assert type(one) is not type(other)
assert one.SerializeToString(deterministic=True) == other.SerializeToString(deterministic=True)
assert ours.Message.FromString(other.SerializeToString()) == one
assert definition_pb2.Message.FromString(one.SerializeToString()) == other
assert type(one.system_properties.born_timestamp) is Timestamp
for message in (one, ours.SendMessageRequest(messages=[one]), peer_pb2.GrantAnswer()):
    again = pickle.loads(pickle.dumps(message))
    assert type(again) is type(message) and again == message

class Channel:
    def unary_unary(self, path, *_, **__):
        paths.append(path)
    unary_stream = stream_stream = unary_unary

paths = []
rocketmq_v2_pb2_grpc.MessagingServiceStub(Channel())
methods = service_pb2.DESCRIPTOR.services_by_name["MessagingService"].methods_by_name
assert sorted(paths) == sorted(f"/apache.rocketmq.v2.MessagingService/{method}" for method in methods)
"""


@pytest.mark.parametrize("backend", ["upb", "python"])
@pytest.mark.parametrize(
    "order", [("rocketmq", "ledgermq.client.sync"), ("ledgermq.client.sync", "rocketmq")], ids=" ".join
)
def test_both_are_loaded_and_write_the_same_bytes(order: tuple[str, str], backend: str) -> None:
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", BOTH, backend, *order],
        env={**os.environ, "PROTOCOL_BUFFERS_PYTHON_IMPLEMENTATION": backend},
        capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
