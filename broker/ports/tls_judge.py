"""What the front of a messaging port looks for: the TLS hello of clients that speak TLS unless told otherwise.

Official clients in four languages do (docs/protocol.md, TLS and plaintext). Where the port speaks TLS, a hello (0x16) goes to the server's
door for TLS. Where it does not, the connection is closed at once, and logged once per peer with what to
switch. Anything else goes to the gRPC server behind, or is closed where the port speaks nothing but TLS.
"""

from __future__ import annotations

import asyncio
import logging
from collections import OrderedDict
from typing import Final

from ledgermq.raft.ports.front import PortVerdict
from ledgermq.raft.ports.tls_records import HANDSHAKE

logger = logging.getLogger(__name__)

#: Peers that were told already; the oldest is forgotten first.
MAX_REMEMBERED_PEERS: Final = 1024
SWITCH_TLS_OFF: Final = (
    "this port is plaintext. Switch TLS off in the client: Java ClientConfiguration enableSsl(false); "
    "Go EnableSsl=false or env rocketmq.client.enableSsl=false; C# EnableSsl(false); C++ withSsl(false); "
    "Python without tls_enable; Node sslEnabled: false; Rust set_enable_tls(false)"
)
SWITCH_TLS_ON: Final = "this port takes TLS only (client_tls = tls). Switch TLS on in the client"


class TlsJudge:
    """The judge of a `PortFront`."""

    def __init__(self, *, plaintext: bool = True, tls: bool = False) -> None:
        self._plaintext, self._tls = plaintext, tls
        self._told: OrderedDict[str, None] = OrderedDict()

    def __call__(self, transport: asyncio.Transport, first: bytes) -> PortVerdict:
        if first[0] != HANDSHAKE:
            return PortVerdict.PASS_ON if self._plaintext else self._refuse(transport, SWITCH_TLS_ON)
        return PortVerdict.PASS_ON_TLS if self._tls else self._refuse(transport, SWITCH_TLS_OFF)

    def _refuse(self, transport: asyncio.Transport, advice: str) -> PortVerdict:
        self._tell(transport.get_extra_info("peername"), advice)
        transport.close()
        return PortVerdict.TAKEN

    def _tell(self, peer: object, advice: str) -> None:
        host = str(peer[0]) if isinstance(peer, tuple) else str(peer)
        if host in self._told:
            return
        self._told[host] = None
        if len(self._told) > MAX_REMEMBERED_PEERS:
            self._told.popitem(last=False)
        what = "tls hello" if advice is SWITCH_TLS_OFF else "plaintext"
        logger.warning("%s refused peer=%s: %s", what, host, advice)
