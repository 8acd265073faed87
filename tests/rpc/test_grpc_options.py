"""grpcio's channel arguments, translated."""

from __future__ import annotations

from ledgermq.rpc.grpc_options import limits_of
from ledgermq.rpc.wire_limits import WireLimits


def test_options_change_the_limits_that_they_name() -> None:
    limits = limits_of(
        (
            ("grpc.max_receive_message_length", 1000),
            ("grpc.keepalive_time_ms", 2500),
            ("grpc.http2.ping_timeout_ms", 1500),
            ("grpc.max_concurrent_streams", 7),
            ("grpc.so_reuseport", 0),
        ),
        WireLimits(),
    )
    assert limits == WireLimits(max_message=1000, keepalive_s=2.5, keepalive_timeout_s=1.5, max_streams=7)


def test_no_limit_of_a_message_is_the_largest_length() -> None:
    assert limits_of((("grpc.max_receive_message_length", -1),), WireLimits()).max_message == (1 << 31) - 1
