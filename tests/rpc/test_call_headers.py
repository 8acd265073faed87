"""Header fields of calls: metadata, timeouts, statuses, and what HTTP/2 forbids."""

from __future__ import annotations

import grpc
import pytest

from ledgermq.rpc.call_headers import (
    MalformedFieldsError,
    decode_message,
    encode_message,
    encode_timeout,
    is_grpc,
    metadata_fields,
    read_answer,
    read_metadata,
    read_request,
    read_timeout,
    read_trailers,
)
from ledgermq.rpc.header_blocks import Fields

REQUEST: Fields = (
    (b":method", b"POST"),
    (b":scheme", b"http"),
    (b":path", b"/s/m"),
    (b"te", b"trailers"),
    (b"content-type", b"application/grpc+proto"),
    (b"grpc-timeout", b"1500m"),
    (b"x-own", b"value"),
)


def test_a_request_says_method_timeout_and_metadata() -> None:
    head = read_request(REQUEST)
    assert (head.path, head.timeout_s, head.metadata) == (b"/s/m", 1.5, (("x-own", "value"),))
    assert not head.is_refused


@pytest.mark.parametrize(
    "fields",
    [
        REQUEST[1:],
        (*REQUEST, (b":path", b"/x")),
        (REQUEST[0], *REQUEST),
        (*REQUEST, (b"X-Upper", b"x")),
        (*REQUEST, (b"connection", b"close")),
        (*REQUEST, (b"te", b"gzip")),
        (*REQUEST, (b"x", b"a\r\nb")),
        (*REQUEST, (b"", b"x")),
        ((b":unknown", b""), *REQUEST),
        ((b":status", b"200"), *REQUEST),
        (*REQUEST, (b"content-length", b"-1")),
        (*REQUEST, (b"content-length", b"9" * 1000)),
    ],
)
def test_what_http_2_forbids_is_malformed(fields: Fields) -> None:
    with pytest.raises(MalformedFieldsError):
        read_request(fields)


def test_trailers_have_no_pseudo_header_fields() -> None:
    read_trailers(((b"x-end", b"1"),))
    with pytest.raises(MalformedFieldsError):
        read_trailers(((b":method", b"POST"),))


@pytest.mark.parametrize(
    ("field", "problem"),
    [
        ((b"grpc-timeout", b"5"), "grpc-timeout"),
        ((b"grpc-timeout", b"999999999S"), "grpc-timeout"),
        ((b"x-bin", b"!"), "base64"),
        ((b"x-text", b"\xff"), "printable"),
    ],
)
def test_what_grpc_forbids_is_answered(field: tuple[bytes, bytes], problem: str) -> None:
    head = read_request((*REQUEST, field))
    assert head.is_refused and problem in head.problem


def test_requests_that_are_no_grpc_are_refused() -> None:
    assert read_request(((b":method", b"GET"), *REQUEST[1:])).is_refused
    assert read_request(REQUEST[:4]).is_refused
    assert read_request((*REQUEST, (b"grpc-encoding", b"snappy"))).is_refused
    assert is_grpc(b"application/grpc;x=y") and not is_grpc(b"application/grpc-web")


@pytest.mark.parametrize("seconds", [0.0, 0.000001, 0.1, 1.0, 99.9999999, 3600.0, 1e6, 1e9, 1e12])
def test_a_timeout_is_never_shortened_and_hardly_lengthened(seconds: float) -> None:
    encoded = encode_timeout(seconds)
    found = read_timeout(encoded)
    assert found is not None and len(encoded) <= 9
    if seconds < 1e11:
        assert seconds <= found * (1 + 1e-9) and found <= seconds * 1.01 + 0.000001


def test_metadata_come_back_as_they_were_sent() -> None:
    metadata = (("x-text", "a b"), ("x-bin", bytes(range(256))), ("x-bin", b""))
    assert read_metadata(metadata_fields(metadata)) == metadata
    assert read_metadata(((b"a-bin", b"AAE=,Ag"),)) == (("a-bin", b"\0\1"), ("a-bin", b"\2"))
    assert metadata_fields(None) == ()


@pytest.mark.parametrize(
    "metadata", [("X-Upper", "x"), ("grpc-own", "x"), ("x", "a\nb"), ("x-bin", "text"), ("x y", "x")]
)
def test_metadata_that_cannot_be_sent_are_refused(metadata: tuple[str, str]) -> None:
    with pytest.raises((ValueError, TypeError)):
        metadata_fields((metadata,))


@pytest.mark.parametrize("text", ["", "plain", " margins ", "100 %", "tab\tline\r\n", "ü ☺ 😈", "%41"])
def test_a_status_message_comes_back_as_it_was(text: str) -> None:
    encoded = encode_message(text)
    assert decode_message(encoded) == text
    assert all(0x20 <= byte <= 0x7E for byte in encoded)


def test_a_status_message_is_cut_and_broken_escapes_stay() -> None:
    assert len(encode_message("x" * 100_000)) == 4096
    assert decode_message(b"50% of %zz%4") == "50% of %zz%4"


def test_an_answer_ends_with_its_status() -> None:
    head = read_answer(((b":status", b"200"), (b"content-type", b"application/grpc")), False)
    assert head.code is None
    head = read_answer(((b"grpc-status", b"5"), (b"grpc-message", b"no%20way")), True)
    assert (head.code, head.details) == (grpc.StatusCode.NOT_FOUND, "no way")
    assert read_answer(((b"grpc-status", b"99"),), True).code is grpc.StatusCode.UNKNOWN
    assert read_answer(((b":status", b"503"),), False).code is grpc.StatusCode.UNAVAILABLE
    assert read_answer(((b":status", b"200"),), False).code is grpc.StatusCode.UNKNOWN
    assert read_answer(((b":status", b"100"),), False).is_informational
