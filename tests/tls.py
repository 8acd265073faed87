"""The certificate of tests that speak TLS: for localhost, signed by itself, its key known to everybody."""

from __future__ import annotations

import ssl
from contextlib import suppress
from pathlib import Path
from typing import Final

_FOLDER: Final = Path(__file__).parent / "fixtures" / "tls"
CERTIFICATE: Final = _FOLDER / "certificate.pem"
KEY: Final = _FOLDER / "key.pem"

#: Certificates of nodes, for 127.0.0.1 unless said otherwise: `NODE` and the ones that are of no use.
PEERS: Final = _FOLDER.parent / "peer_tls"
AUTHORITY: Final = PEERS / "authority.pem"
FOREIGN_AUTHORITY: Final = PEERS / "foreign.pem"  # of `stranger`


def files_of(name: str) -> tuple[Path, Path]:
    """Return certificate and key: node, elsewhere (another host), expired, stranger (another authority)."""
    return PEERS / f"{name}.pem", PEERS / f"{name}.key"


def peer_tls_settings(value: str, name: str = "node") -> dict[str, str]:
    """Return the flags of a broker for TLS between nodes."""
    certificate, key = files_of(name)
    return {
        "peer-tls": value,
        "peer-tls-certificate": str(certificate),
        "peer-tls-private-key": str(key),
        "peer-tls-ca": str(AUTHORITY),
    }


def tls_hello() -> bytes:
    """Return the first thing that a TLS client says."""
    context = ssl.create_default_context(cafile=str(CERTIFICATE))
    context.set_alpn_protocols(["h2"])
    out = ssl.MemoryBIO()
    client = context.wrap_bio(ssl.MemoryBIO(), out, server_hostname="localhost")
    with suppress(ssl.SSLWantReadError):
        client.do_handshake()
    return out.read()
