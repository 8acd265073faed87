"""Verdict on the first bytes of a client's connection: TLS hello or plaintext.

Official clients in four languages speak TLS by default (docs/protocol.md, TLS and plaintext). A port with TLS
passes a hello (0x16) to the server's TLS socket. A port without TLS closes the connection at once, and logs
once per peer which setting to change. Any other byte goes to the gRPC server behind the front, or is refused
in the same way where the port accepts TLS only. A stream between nodes is refused likewise: it belongs on
the Raft port. The HTTP port (`http.py`) logs its refusals here.
Whether a hello is whole: `raft/ports/tls_records.py`.
"""

from __future__ import annotations

import asyncio
import logging
from collections import OrderedDict
from typing import Final

from ledgermq.raft.ports.front import PortVerdict
from ledgermq.raft.ports.tls_records import HANDSHAKE

logger = logging.getLogger(__name__)

#: Most peers whose refusal was logged and is remembered; the oldest is forgotten first.
MAX_REMEMBERED_PEERS: Final = 1024
SWITCH_TLS_OFF: Final = (
    "this port is plaintext. Switch TLS off in the client: Java ClientConfiguration enableSsl(false); "
    "Go EnableSsl=false or env rocketmq.client.enableSsl=false; C# EnableSsl(false); C++ withSsl(false); "
    "Python without tls_enable; Node sslEnabled: false; Rust set_enable_tls(false)"
)
#: First bytes of a stream between nodes.
_BETWEEN_NODES: Final = b"LMQR"
SWITCH_PORT: Final = (
    "a node connects to a port for clients. Set the address of this node in the peers of that node to the "
    "Raft port (raft_bind)"
)
SWITCH_TLS_ON: Final = "this port takes TLS only (client_tls = tls). Switch TLS on in the client"
#: For the port of probes and metrics.
HTTP_WITHOUT_TLS: Final = (
    "this port speaks HTTP without TLS. Ask for http://, in Prometheus scheme: http; or correct the port "
    "(http_bind)"
)
ONLY_HTTP: Final = (
    "this port speaks HTTP/1.1 and serves probes and metrics only. Correct the port of the client: that of a "
    "listener for messages, raft_bind between nodes"
)

_KINDS: Final = {
    SWITCH_TLS_OFF: "tls hello",
    SWITCH_TLS_ON: "plaintext",
    SWITCH_PORT: "stream between nodes",
    HTTP_WITHOUT_TLS: "tls hello",
    ONLY_HTTP: "foreign bytes",
}


class TlsJudge:
    """Decides where a `PortFront` passes a connection."""

    def __init__(self, port: str, *, plaintext: bool = True, tls: bool = False) -> None:
        """`port`: its name in log lines."""
        self._port = port
        self._plaintext, self._tls = plaintext, tls
        self._told: OrderedDict[tuple[str, str], None] = OrderedDict()  # (host, advice)

    def __call__(self, transport: asyncio.Transport, first: bytes) -> PortVerdict:
        if first[0] == _BETWEEN_NODES[0] and _BETWEEN_NODES.startswith(first[: len(_BETWEEN_NODES)]):
            is_whole = len(first) >= len(_BETWEEN_NODES)
            return self._refuse(transport, SWITCH_PORT) if is_whole else PortVerdict.WAIT
        if first[0] != HANDSHAKE:
            return PortVerdict.PASS_ON if self._plaintext else self._refuse(transport, SWITCH_TLS_ON)
        return PortVerdict.PASS_ON_TLS if self._tls else self._refuse(transport, SWITCH_TLS_OFF)

    def _refuse(self, transport: asyncio.Transport, advice: str) -> PortVerdict:
        self.tell(transport.get_extra_info("peername"), advice)
        transport.close()
        return PortVerdict.TAKEN

    def tell(self, peer: object, advice: str) -> None:
        """Log why a connection was closed, once per peer and advice. `peer`: its address (host, port)."""
        host = str(peer[0]) if isinstance(peer, tuple) else str(peer)
        if (host, advice) in self._told:
            return
        self._told[host, advice] = None
        if len(self._told) > MAX_REMEMBERED_PEERS:
            self._told.popitem(last=False)
        logger.warning("%s refused port=%s peer=%s: %s", _KINDS[advice], self._port, host, advice)
