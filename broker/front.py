"""What the front of a messaging port looks for: a TLS hello on a port that is plaintext.

Official clients in four languages speak TLS unless told otherwise (protocol.md 2.2). A TLS hello (0x16) is closed at
once, and logged once per peer with what to switch; anything else goes to the gRPC server behind.
"""

from __future__ import annotations

import asyncio
import logging
from collections import OrderedDict
from typing import Final

from ledgermq.raft.port_front import Verdict

logger = logging.getLogger(__name__)

TLS_HANDSHAKE: Final = 0x16
#: Peers that were told already; the oldest is forgotten first.
MAX_REMEMBERED_PEERS: Final = 1024
SWITCH_TLS_OFF: Final = (
    "this port is plaintext. Switch TLS off in the client: Java ClientConfiguration enableSsl(false); "
    "Go EnableSsl=false or env rocketmq.client.enableSsl=false; C# EnableSsl(false); C++ withSsl(false); "
    "Python without tls_enable; Node sslEnabled: false; Rust set_enable_tls(false)"
)


class TlsJudge:
    """The judge of a `PortFront`."""

    def __init__(self) -> None:
        self._told: OrderedDict[str, None] = OrderedDict()

    def __call__(self, transport: asyncio.Transport, first: bytes) -> Verdict:
        if first[0] != TLS_HANDSHAKE:
            return Verdict.PASS_ON
        self._tell_to_switch_tls_off(transport.get_extra_info("peername"))
        transport.close()
        return Verdict.TAKEN

    def _tell_to_switch_tls_off(self, peer: object) -> None:
        host = str(peer[0]) if isinstance(peer, tuple) else str(peer)
        if host in self._told:
            return
        self._told[host] = None
        if len(self._told) > MAX_REMEMBERED_PEERS:
            self._told.popitem(last=False)
        logger.warning("tls hello refused peer=%s: %s", host, SWITCH_TLS_OFF)
