"""What all client ports of a node have in common: options of the gRPC servers, limits, time limits, TLS.

Pure but for the certificate, which is read once. Must not: open ports.

How many connections the ports take is configured, and bounded by the file descriptors of the process: what a node needs besides its
clients (log, peers, Raft port) is set aside first, so a storm of clients ends in refused clients, and never in a node that cannot
open the next segment of its log.
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

#: Descriptors for all that is not a client connection, where the limit of the process has room for so many.
RESERVE: Final = 1_200
#: A client of the messaging port: its own connection, and both ends of the one to the gRPC server behind the front.
_PER_SPLICE: Final = 3
_PER_CONNECTION: Final = 1


def raise_descriptor_limit() -> int:
    """Raise this process's own limit of open files as far as it may; return it."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
            soft = hard
        except (OSError, ValueError) as error:
            logger.warning("the limit of open files stays at %d reason=%s", soft, error)
    return soft if soft != resource.RLIM_INFINITY else 1 << 20


def connections_per_port(wanted: int, descriptors: int, listeners: int, *, front: bool) -> int:
    """Return how many connections each client port takes: `wanted`, or what there are descriptors for."""
    free = descriptors - min(RESERVE, descriptors // 2)
    each = listeners * (_PER_CONNECTION + (_PER_SPLICE if front else _PER_CONNECTION))
    return max(min(wanted, free // each), 1)


def port_limit(wanted: int, listeners: int, *, front: bool, chosen: bool) -> int:
    """Return the limit of each client port, and say so when it is less than was wanted; `chosen`: by a person."""
    descriptors = raise_descriptor_limit()
    limit = connections_per_port(wanted, descriptors, listeners, front=front)
    if limit < wanted:
        logger.log(
            logging.WARNING if chosen else logging.INFO,
            "each client port takes %d connections instead of %d: this process may open %d files; raise that limit "
            "(ulimit -n, LimitNOFILE) for more",
            limit, wanted, descriptors,
        )  # fmt: skip
    return limit


#: Bytes; a 4 MiB body and its properties must fit, as in the reference server.
MAX_REQUEST_SIZE: Final = 130 << 20
_OPTIONS: Final = (
    ("grpc.so_reuseport", 0),
    ("grpc.max_send_message_length", -1),
    ("grpc.max_receive_message_length", MAX_REQUEST_SIZE),
    # A message is bounded before it is unpacked, so a small one may become gigabytes: take none that gRPC compressed.
    # (No client does that by itself; bodies are compressed by whoever sends them, and unpacked by whoever reads them.)
    ("grpc.compression_enabled_algorithms_bitset", 1),
    ("grpc.per_message_decompression", 0),
    # Clients ask whether the node lives as often as they like, within reason: official ones every 60 s or more.
    ("grpc.http2.min_ping_interval_without_data_ms", 1_000),
    ("grpc.http2.max_ping_strikes", 10),
    ("grpc.keepalive_permit_without_calls", 1),
    # Calls of one connection that are open at a time; a client holds back the rest by itself.
    ("grpc.max_concurrent_streams", 10_000),
)
#: The same question, asked by the kernel, for connections that a front holds.
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
    """What all client ports of a node have in common. `max_connections` is that of each port."""

    max_connections: int = 10_000
    per_address: int = 0
    idle_ms: int = 600_000  # 0: a connection may be idle for ever
    # Silent for `ask_ms`, a connection is asked whether anybody is there; without an answer in `answer_ms` it ends. So
    # one whose machine vanished is found, whatever it waits for.
    ask_ms: int = 60_000
    answer_ms: int = 20_000
    handshake_ms: int = 10_000  # until both sides speak HTTP/2
    front: bool = True
    plaintext: bool = True
    credentials: grpc.ServerCredentials | None = None  # the messaging ports speak TLS with it

    def server_options(self, max_connections: int | None = None) -> list[tuple[str, int]]:
        """Return the options of a gRPC server; behind a front it takes what it is given."""
        options = [
            *_OPTIONS,
            ("grpc.keepalive_time_ms", self.ask_ms),
            ("grpc.keepalive_timeout_ms", self.answer_ms),
            ("grpc.http2.ping_timeout_ms", self.answer_ms),  # this one counts; its default is a minute
            ("grpc.server_handshake_timeout_ms", self.handshake_ms),
        ]
        if self.idle_ms:
            options.append(("grpc.max_connection_idle_ms", self.idle_ms))
        if max_connections is not None:
            options.append(("grpc.max_allowed_incoming_connections", max_connections))
        return options


def port_policy(config: BrokerConfig) -> PortPolicy:
    """Return what the configuration says. Raises: CertificateError."""
    limit = port_limit(
        config.max_connections,
        len(config.listener),
        front=config.tls_front,
        chosen="max_connections" in config.model_fields_set,
    )
    return PortPolicy(
        max_connections=limit,
        per_address=config.max_connections_per_address,
        idle_ms=round(config.connection_idle_seconds * 1000),
        front=config.tls_front,
        plaintext=config.client_tls != "tls",
        credentials=server_credentials(config),
    )


def server_credentials(config: BrokerConfig) -> grpc.ServerCredentials | None:
    """Return what the messaging ports speak TLS with; None: they do not. Raises: CertificateError."""
    if config.client_tls == "plaintext" or config.tls_private_key is None or config.tls_certificate is None:
        return None
    try:
        ssl.create_default_context(ssl.Purpose.CLIENT_AUTH).load_cert_chain(
            config.tls_certificate, config.tls_private_key
        )  # gRPC itself would not say what is wrong with them
        pair = config.tls_private_key.read_bytes(), config.tls_certificate.read_bytes()
    except OSError as error:  # SSLError is one, too
        raise CertificateError(str(config.tls_certificate), error.strerror or str(error)) from None
    return grpc.ssl_server_credentials([pair])
