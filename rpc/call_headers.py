"""What the header fields of a gRPC call say, in both directions (gRPC over HTTP/2).

Owns: method, metadata, timeout, encoding, status and message of a call as fields, and which fields are
malformed (RFC 9113, 8.2 and 8.3). Must not: know streams.
"""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Iterable, Sequence
from typing import Final

import grpc

from .grpc_messages import ENCODINGS
from .header_blocks import Fields
from .wire_limits import MAX_NUMBER_DIGITS, MAX_STATUS_MESSAGE, MAX_TIMEOUT_DIGITS

Metadata = tuple[tuple[str, str | bytes], ...]

_TIMEOUT_UNITS: Final = {b"H": 3600.0, b"M": 60.0, b"S": 1.0, b"m": 1e-3, b"u": 1e-6, b"n": 1e-9}
_NAME: Final = re.compile(rb"[!#$%&'*+\-.^_`|~0-9a-z]+").fullmatch
_KEY: Final = re.compile(r"[0-9a-z_.\-]+").fullmatch
#: Blanks at the margins are forbidden, too, but grpcio sends them in `grpc-message`.
_BAD_VALUE: Final = re.compile(rb"[\0\r\n]").search
_PRINTABLE: Final = re.compile(rb"[\x20-\x7e]*").fullmatch
#: Of HTTP/1.1; HTTP/2 forbids them.
_CONNECTION_FIELDS: Final = frozenset(
    [b"connection", b"keep-alive", b"proxy-connection", b"transfer-encoding", b"upgrade"]
)
_REQUEST_PSEUDO: Final = frozenset([b":method", b":scheme", b":path", b":authority"])
#: Fields of the protocol itself, which are no metadata.
_RESERVED: Final = frozenset([b"te", b"content-type", b"grpc-timeout", b"grpc-encoding",
                              b"grpc-accept-encoding", b"grpc-status", b"grpc-message",
                              b"content-length", b"host"])  # fmt: skip
_STATUS: Final = {code.value[0]: code for code in grpc.StatusCode}
#: gRPC's mapping of the status of answers that are not gRPC.
_OF_HTTP: Final = {
    b"400": grpc.StatusCode.INTERNAL,
    b"401": grpc.StatusCode.UNAUTHENTICATED,
    b"403": grpc.StatusCode.PERMISSION_DENIED,
    b"404": grpc.StatusCode.UNIMPLEMENTED,
    b"429": grpc.StatusCode.UNAVAILABLE,
    b"502": grpc.StatusCode.UNAVAILABLE,
    b"503": grpc.StatusCode.UNAVAILABLE,
    b"504": grpc.StatusCode.UNAVAILABLE,
}


class MalformedFieldsError(Exception):
    """Fields that HTTP/2 forbids: the stream ends with PROTOCOL_ERROR."""


class RequestHead:
    """The header fields of a request."""

    __slots__ = ("accept_encoding", "authority", "content_length", "content_type", "encoding",
                 "is_grpc", "is_refused", "metadata", "method", "path", "problem", "timeout_s")  # fmt: skip

    def __init__(self) -> None:
        self.method = self.path = self.authority = b""
        self.content_type = b""
        self.encoding = b"identity"
        self.accept_encoding = b""
        self.content_length: int | None = None
        self.timeout_s: float | None = None
        self.metadata: Metadata = ()
        self.problem = ""  # of gRPC's own fields; the call is answered with it
        self.is_grpc = False  # POST with a content-type of gRPC
        self.is_refused = False  # no gRPC, a problem, or an encoding that is not known


class AnswerHead:
    """The header fields of an answer, or its trailers. `code` is None: the call goes on."""

    __slots__ = ("code", "details", "encoding", "has_http_status", "is_informational", "metadata")

    def __init__(self) -> None:
        self.is_informational = False  # 1xx: another head follows
        self.has_http_status = False  # no trailers
        self.code: grpc.StatusCode | None = None
        self.details = ""
        self.encoding = b"identity"
        self.metadata: Metadata = ()


def request_fields(path: str, authority: bytes, *, is_tls: bool, accepts: bytes) -> Fields:
    """Return the header fields of a request, without timeout and metadata.

    `accepts`: encodings of answers.
    """
    return (
        (b":method", b"POST"),
        (b":scheme", b"https" if is_tls else b"http"),
        (b":path", path.encode("ascii")),
        (b":authority", authority),
        (b"te", b"trailers"),
        (b"content-type", b"application/grpc"),
        (b"user-agent", b"grpc-python-ledgermq"),
        (b"grpc-accept-encoding", accepts),
    )


def status_fields(code: grpc.StatusCode, details: str) -> Fields:
    """Return the trailers that say how a call ended."""
    status = ((b"grpc-status", b"%d" % code.value[0]),)
    return (*status, (b"grpc-message", encode_message(details))) if details else status


def read_request(fields: Fields) -> RequestHead:
    """Return what a request says. Raises: MalformedFieldsError."""
    head = RequestHead()
    pseudo = _check(fields, _REQUEST_PSEUDO)
    if not (pseudo.get(b":method") and pseudo.get(b":scheme") and pseudo.get(b":path")):
        raise MalformedFieldsError("a request without :method, :scheme or :path")
    head.method, head.path = pseudo[b":method"], pseudo[b":path"]
    head.authority = pseudo.get(b":authority", b"")
    for name, value in fields[len(pseudo) :]:
        if name == b"content-type":
            head.content_type = value
        elif name == b"grpc-timeout":
            timeout_s = read_timeout(value)
            if timeout_s is None:
                head.problem = "the call's grpc-timeout is no number with a unit"
            else:
                head.timeout_s = timeout_s
        elif name == b"grpc-encoding":
            head.encoding = value
        elif name == b"grpc-accept-encoding":
            head.accept_encoding = value
        elif name == b"content-length":
            if not value.isdigit() or len(value) > MAX_NUMBER_DIGITS:
                raise MalformedFieldsError("a content-length that is no number")
            head.content_length = int(value)
    try:
        head.metadata = read_metadata(fields)
    except ValueError as error:
        head.problem = str(error)
    head.is_grpc = head.method == b"POST" and is_grpc(head.content_type)
    head.is_refused = bool(head.problem) or not head.is_grpc or head.encoding not in ENCODINGS
    return head


def read_trailers(fields: Fields) -> None:
    """Check the trailers of a request. Raises: MalformedFieldsError."""
    _check(fields, frozenset())


def read_answer(fields: Fields, is_trailers: bool) -> AnswerHead:
    """Return what an answer's fields say.

    Raises: MalformedFieldsError.
    """
    pseudo = _check(fields, frozenset() if is_trailers else frozenset([b":status"]))
    head = AnswerHead()
    head.has_http_status = not is_trailers
    content_type = message = b""
    status: bytes | None = None
    for name, value in fields:
        if name == b"grpc-status":
            status = value
        elif name == b"grpc-message":
            message = value
        elif name == b"grpc-encoding":
            head.encoding = value
        elif name == b"content-type":
            content_type = value
    try:
        head.metadata = read_metadata(fields)
    except ValueError as error:
        head.code, head.details = grpc.StatusCode.INTERNAL, str(error)
        return head
    if status is not None:
        number = int(status) if status.isdigit() and len(status) <= MAX_NUMBER_DIGITS else -1
        head.code, head.details = _STATUS.get(number, grpc.StatusCode.UNKNOWN), decode_message(message)
    elif not is_trailers:
        http = pseudo.get(b":status", b"")
        if http[:1] == b"1":
            head.is_informational = True
        elif http != b"200":
            head.code = _OF_HTTP.get(http, grpc.StatusCode.UNKNOWN)
            head.details = f"the answer has the HTTP status {http.decode('ascii', 'replace')}"
        elif not is_grpc(content_type):
            head.code = grpc.StatusCode.UNKNOWN
            head.details = f"the answer's content-type is {content_type[:100].decode('ascii', 'replace')!r}"
    return head


def _check(fields: Fields, pseudo_names: frozenset[bytes]) -> dict[bytes, bytes]:
    """Return the pseudo-header fields, which stand first. Raises: MalformedFieldsError."""
    pseudo: dict[bytes, bytes] = {}
    seen_regular = False
    for name, value in fields:
        if name[:1] == b":":
            if seen_regular or name in pseudo or name not in pseudo_names:
                raise MalformedFieldsError("a pseudo-header field that is unknown, repeated or misplaced")
            pseudo[name] = value
            continue
        seen_regular = True
        if not _NAME(name):
            raise MalformedFieldsError("a field name that HTTP/2 forbids")
        if name in _CONNECTION_FIELDS or (name == b"te" and value != b"trailers"):
            raise MalformedFieldsError("a field that belongs to HTTP/1.1 connections")
        if _BAD_VALUE(value):
            raise MalformedFieldsError("a field value with a line break")
    return pseudo


def is_grpc(content_type: bytes) -> bool:
    """Whether a content-type is one of gRPC: `application/grpc`, with `+` or `;` behind it."""
    return content_type.startswith(b"application/grpc") and content_type[16:17] in (b"", b"+", b";")


def read_metadata(fields: Fields) -> Metadata:
    """Return the fields that are metadata. Raises: ValueError (a value that is not what its name says)."""
    found: list[tuple[str, str | bytes]] = []
    for name, value in fields:
        if name[:1] == b":" or name in _RESERVED:
            continue
        key = name.decode("ascii")
        if not key.endswith("-bin"):
            if not _PRINTABLE(value):
                raise ValueError(f"the metadata {key} has bytes that are not printable ASCII")
            found.append((key, value.decode("ascii")))
            continue
        for part in value.split(b","):  # equal names may be joined on the way
            try:
                found.append((key, base64.b64decode(part + b"=" * (-len(part) % 4), validate=True)))
            except binascii.Error:
                raise ValueError(f"the metadata {key} is no base64") from None
    return tuple(found)


def metadata_fields(metadata: Iterable[Sequence[str | bytes]] | None) -> Fields:
    """Return metadata as fields. Raises: ValueError, TypeError (a key or value that cannot be sent)."""
    if not metadata:
        return ()
    fields = []
    for key, value in metadata:
        if not isinstance(key, str) or not _KEY(key) or key.startswith("grpc-"):
            raise ValueError(f"metadata key {key!r} cannot be sent: lower-case letters, digits, - _ . only")
        if key.endswith("-bin"):
            if not isinstance(value, bytes):
                raise TypeError(f"the value of metadata {key} must be bytes")
            encoded = base64.b64encode(value).rstrip(b"=")
        else:
            encoded = value.encode("utf-8") if isinstance(value, str) else bytes(value)
            encoded = encoded.strip(b" \t")
            if not _PRINTABLE(encoded):
                raise ValueError(f"the value of metadata {key} must be printable ASCII")
        fields.append((key.encode("ascii"), encoded))
    return tuple(fields)


def read_timeout(value: bytes) -> float | None:
    """Return seconds, or None if it is no timeout."""
    digits, unit = value[:-1], _TIMEOUT_UNITS.get(value[-1:])
    if unit is None or not digits.isdigit() or len(digits) > MAX_TIMEOUT_DIGITS:
        return None
    return int(digits) * unit


def encode_timeout(timeout_s: float) -> bytes:
    """Return `grpc-timeout` of a time that is left; never shorter than it."""
    microseconds = max(0, -int(-timeout_s * 1_000_000 // 1))
    for unit, size in ((b"u", 1), (b"m", 1000), (b"S", 1_000_000), (b"M", 60_000_000)):
        number = -(-microseconds // size)
        if number < 10**MAX_TIMEOUT_DIGITS:
            return b"%d%b" % (number, unit)
    return b"%dH" % min(10**MAX_TIMEOUT_DIGITS - 1, -(-microseconds // 3_600_000_000))


def encode_message(details: str) -> bytes:
    """Return `grpc-message`: UTF-8 with everything but printable ASCII as %XX; cut to MAX_STATUS_MESSAGE."""
    raw = details[:MAX_STATUS_MESSAGE].encode("utf-8", "replace")
    if _PRINTABLE(raw) and b"%" not in raw:
        return raw.replace(b" ", b"%20") if raw[:1] == b" " or raw[-1:] == b" " else raw
    margins = len(raw) - 1
    return b"".join(
        b"%c" % byte
        if 0x20 <= byte <= 0x7E and byte != 0x25 and not (byte == 0x20 and position in (0, margins))
        else b"%%%02X" % byte
        for position, byte in enumerate(raw)
    )[: 3 * MAX_STATUS_MESSAGE]


def decode_message(value: bytes) -> str:
    """Return the text of `grpc-message`; what is no escape stays as it is."""
    if b"%" in value:
        value = re.sub(rb"%([0-9A-Fa-f]{2})", lambda found: bytes([int(found[1], 16)]), value)
    return value.decode("utf-8", "replace")
