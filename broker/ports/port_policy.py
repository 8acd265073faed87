"""Settings that all client ports of a node share: gRPC server options, limits, timeouts, TLS.

Pure, except that the certificate is read once. Must not: open ports.

The number of connections per port is configured, and bounded by the process's file descriptors. Descriptors
for the node's own needs (log, peers, Raft port) are reserved first. So a storm of clients ends in refused
clients, never in a node that cannot open the next segment of its log.
"""

from __future__ import annotations

import logging
import resource
import ssl
from dataclasses import dataclass
from typing import Final

import grpc

from ..config import BrokerConfig
from ..errors import CertificateError

logger = logging.getLogger(__name__)

#: Descriptors reserved for everything but client connections; at most half of the process's limit.
RESERVE: Final = 1_200
#: Descriptors per client of the messaging port: its connection, and both ends of the one behind grpcio's
#: front.
_PER_SPLICE: Final = 3
_PER_CONNECTION: Final = 1


def raise_descriptor_limit() -> int:
    """Raise this process's limit of open files to the hard limit if possible; return the limit."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
            soft = hard
        except (OSError, ValueError) as error:
            logger.warning("the limit of open files stays at %d reason=%s", soft, error)
    return soft if soft != resource.RLIM_INFINITY else 1 << 20


def connections_per_port(wanted: int, descriptors: int, listeners: int, *, front: bool) -> int:
    """Return how many connections each client port accepts: `wanted`, or as many as descriptors allow.

    `front`: the messaging port has a front that splices.
    """
    free = descriptors - min(RESERVE, descriptors // 2)
    each = listeners * (_PER_CONNECTION + (_PER_SPLICE if front else _PER_CONNECTION))
    return max(min(wanted, free // each), 1)


def port_limit(wanted: int, listeners: int, *, front: bool, chosen: bool) -> int:
    """Return the limit of each client port, and log it when it is below `wanted`.

    `chosen`: the number was configured, not a default.
    """
    descriptors = raise_descriptor_limit()
    limit = connections_per_port(wanted, descriptors, listeners, front=front)
    if limit < wanted:
        logger.log(
            logging.WARNING if chosen else logging.INFO,
            "each client port takes %d connections instead of %d: this process may open %d files; "
            "raise that limit (ulimit -n, LimitNOFILE) for more",
            limit, wanted, descriptors,
        )  # fmt: skip
    return limit


#: Bytes. A 4 MiB body and its properties must fit, as in the reference server.
MAX_REQUEST_SIZE: Final = 130 << 20
_OPTIONS: Final = (
    ("grpc.so_reuseport", 0),
    ("grpc.max_send_message_length", -1),
    ("grpc.max_receive_message_length", MAX_REQUEST_SIZE),
    # gRPC bounds a message before it decompresses it, so a small one could expand to gigabytes: refuse all
    # messages that gRPC compressed. (No client lets gRPC compress by default: producers compress bodies, and
    # consumers decompress them.)
    ("grpc.compression_enabled_algorithms_bitset", 1),
    ("grpc.per_message_decompression", 0),
    # Clients may ping as often as they like, within reason; official ones ping every 60 s or less often.
    ("grpc.http2.min_ping_interval_without_data_ms", 1_000),
    ("grpc.http2.max_ping_strikes", 10),
    ("grpc.keepalive_permit_without_calls", 1),
    # Open calls per connection; a client queues the rest by itself.
    ("grpc.max_concurrent_streams", 10_000),
)
#: TCP keepalive: the kernel's own pings, for connections that a front holds.
CLIENT_SOCKET_OPTIONS: Final = (
    ("IPPROTO_TCP", "TCP_NODELAY", 1),
    ("SOL_SOCKET", "SO_KEEPALIVE", 1),
    ("IPPROTO_TCP", "TCP_KEEPIDLE", 60),
    ("IPPROTO_TCP", "TCP_KEEPINTVL", 10),
    ("IPPROTO_TCP", "TCP_KEEPCNT", 3),
    ("IPPROTO_TCP", "TCP_USER_TIMEOUT", 90_000),
)


@dataclass(frozen=True, slots=True)
class PortPolicy:
    """Settings that all client ports of a node share."""

    max_connections: int = 10_000  # per port
    per_address: int = 0  # connections per client address at a port with a front; 0: no limit
    idle_ms: int = 600_000  # a connection without calls is closed after this; 0: never
    # A connection that was silent for `ask_ms` is pinged, and closed without an answer within `answer_ms`.
    # This detects a client whose machine vanished, even while it waits for an answer.
    ask_ms: int = 60_000
    answer_ms: int = 20_000
    handshake_ms: int = 10_000  # time until both sides speak HTTP/2
    front: bool = True  # a `PortFront` accepts the messaging port's connections, not gRPC
    plaintext: bool = True  # the messaging ports accept plaintext
    credentials: grpc.ServerCredentials | None = None  # for TLS on the messaging ports; None: no TLS
    transport: str = "event_loop"  # who speaks gRPC: `rpc` in the event loop, or grpcio
    tls: ssl.SSLContext | None = None  # what event_loop needs instead of `credentials`

    def server_options(self, max_connections: int | None = None) -> list[tuple[str, int]]:
        """Return the options of a gRPC server; None: a front limits its connections."""
        options = [
            *_OPTIONS,
            ("grpc.keepalive_time_ms", self.ask_ms),
            ("grpc.keepalive_timeout_ms", self.answer_ms),
            ("grpc.http2.ping_timeout_ms", self.answer_ms),  # the effective one; its default is a minute
            ("grpc.server_handshake_timeout_ms", self.handshake_ms),
        ]
        if self.idle_ms:
            options.append(("grpc.max_connection_idle_ms", self.idle_ms))
        if max_connections is not None:
            options.append(("grpc.max_allowed_incoming_connections", max_connections))
        return options


def port_policy(config: BrokerConfig) -> PortPolicy:
    """Return the policy that the configuration sets. Raises: CertificateError."""
    limit = port_limit(
        config.max_connections,
        len(config.listener),
        front=config.tls_front and config.server_transport == "grpcio",
        chosen="max_connections" in config.model_fields_set,
    )
    in_loop = config.server_transport == "event_loop"
    return PortPolicy(
        max_connections=limit,
        per_address=config.max_connections_per_address,
        idle_ms=round(config.connection_idle_seconds * 1000),
        front=config.tls_front,
        plaintext=config.client_tls != "tls",
        credentials=None if in_loop else server_credentials(config),
        transport=config.server_transport,
        tls=server_context(config) if in_loop else None,
    )


def server_credentials(config: BrokerConfig) -> grpc.ServerCredentials | None:
    """Return the TLS credentials of the messaging ports; None: no TLS. Raises: CertificateError."""
    if server_context(config) is None:  # fails with a reason, which gRPC itself would not give
        return None
    assert config.tls_private_key is not None and config.tls_certificate is not None
    try:
        pair = config.tls_private_key.read_bytes(), config.tls_certificate.read_bytes()
    except OSError as error:
        raise CertificateError(str(config.tls_certificate), error.strerror or str(error)) from None
    return grpc.ssl_server_credentials([pair])


def server_context(config: BrokerConfig) -> ssl.SSLContext | None:
    """Return the TLS context of the messaging ports; None: no TLS. Raises: CertificateError."""
    if config.client_tls == "plaintext" or config.tls_private_key is None or config.tls_certificate is None:
        return None
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    try:
        context.load_cert_chain(config.tls_certificate, config.tls_private_key)
    except OSError as error:  # SSLError is a subclass
        raise CertificateError(str(config.tls_certificate), error.strerror or str(error)) from None
    return context
