"""TLS between nodes: the contexts of both ends, made from three files, and what a failure means.

Owns: the check that a node's files fit together and name the node, and the sentence for each way in which
TLS with a peer can fail. Must not: open connections. A node shows one certificate at both ends, and accepts
whoever has one of the same authority.
"""

from __future__ import annotations

import ssl
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Any, Final

from ledgermq.proto.foreign_text import safe_text

from .errors import PeerCertificateError

#: Codes of OpenSSL.
_NOT_YET, _EXPIRED, _PURPOSE, _OTHER_HOST, _OTHER_IP = 9, 10, 26, 62, 64
_MAX_NAMES_SIZE: Final = 300
#: What a node says on a Raft port without TLS, or with TLS only.
ONLY_PLAINTEXT: Final = (
    "TLS on a Raft port without TLS (peer_tls = plaintext on this node): set peer_tls to both here, too"
)
ONLY_TLS: Final = (
    "plaintext on a Raft port that takes TLS only (peer_tls = tls): set peer_tls to tls on the node that "
    "sent it, or to both on the other until every node has it"
)


@dataclass(frozen=True, slots=True)
class PeerTls:
    """TLS of a node's Raft port and of its connections to those of others. The default is none."""

    serving: ssl.SSLContext | None = None
    calling: ssl.SSLContext | None = None
    asking: ssl.SSLContext | None = None  # as `calling`, for any host name: to see which one there is
    #: Plaintext is accepted, too, and spoken with a peer with which TLS fails.
    takes_plaintext: bool = True


NO_TLS: Final = PeerTls()


class TlsFault(Enum):
    """Kind of failure of TLS with a peer."""

    OTHER_NAME = "other name"  # the certificate is good, for another host
    CERTIFICATE = "certificate"
    SILENT = "silent"  # no answer in time
    ENDED = "ended"  # by the peer: it speaks no TLS, or does not want this node


class TlsFailedError(Exception):
    """TLS with a peer failed: why, and what to change where."""

    def __init__(self, fault: TlsFault, reason: str, advice: str = "") -> None:
        super().__init__(reason)
        self.fault, self.reason, self.advice = fault, reason, advice


def load_peer_tls(
    certificate: Path, private_key: Path, authority: Path, own_host: str, *, takes_plaintext: bool
) -> PeerTls:
    """Return what these PEM files give. `own_host`: how peers call this node; "": there are none.

    Raises: PeerCertificateError.
    """
    files = {
        "peer_tls_certificate": certificate,
        "peer_tls_private_key": private_key,
        "peer_tls_ca": authority,
    }
    for key, path in files.items():
        try:
            path.read_bytes()
        except OSError as error:
            raise PeerCertificateError(key, str(path), error.strerror or str(error)) from None
    serving = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    calling, asking = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT), ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    serving.verify_mode = ssl.CERT_REQUIRED
    asking.check_hostname = False
    for context in (serving, calling, asking):
        context.minimum_version = ssl.TLSVersion.TLSv1_3
        context.set_alpn_protocols(["h2"])
        try:
            context.load_verify_locations(authority)
        except OSError as error:  # SSLError is a subclass
            raise PeerCertificateError("peer_tls_ca", str(authority), _text(error)) from None
        try:  # an encrypted key would make OpenSSL ask at the terminal
            context.load_cert_chain(certificate, private_key, password="")
        except OSError as error:
            reason = f"it and {private_key} (peer_tls_private_key) do not belong together, or are no PEM"
            raise PeerCertificateError(
                "peer_tls_certificate", str(certificate), f"{reason}: {_text(error)}"
            ) from None
    _check_own(calling if own_host else asking, asking, serving, own_host, certificate)
    return PeerTls(serving, calling, asking, takes_plaintext)


def _check_own(
    calling: ssl.SSLContext, asking: ssl.SSLContext, serving: ssl.SSLContext, host: str, certificate: Path
) -> None:
    """Shake hands with this node itself, as each peer will. Raises: PeerCertificateError."""
    try:
        _shake_hands(calling, serving, host)
    except ssl.SSLError as error:
        failure = calling_failed(error, host)
        reason = failure.reason
        if failure.fault is TlsFault.OTHER_NAME:
            reason = (
                f"peers call this node {host}, and it is for {names_of(_shake_hands(asking, serving, host))}"
            )
        raise PeerCertificateError("peer_tls_certificate", str(certificate), reason) from None


def _shake_hands(calling: ssl.SSLContext, serving: ssl.SSLContext, host: str) -> dict[str, Any]:
    """Return the server's certificate of a handshake in memory. Raises: SSLError."""
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    client = calling.wrap_bio(to_client, to_server, server_hostname=host or None)
    server = serving.wrap_bio(to_server, to_client, server_side=True)
    ends, done = [client, server], set[ssl.SSLObject]()
    while len(done) < len(ends):
        for end in ends:
            try:
                end.do_handshake()
            except ssl.SSLWantReadError:
                continue
            done.add(end)
    return client.getpeercert() or {}


def names_of(certificate: dict[str, Any] | None) -> str:
    """Return the names that a certificate is for, as text."""
    names = [str(value) for _, value in (certificate or {}).get("subjectAltName", ())]
    return safe_text(", ".join(names), _MAX_NAMES_SIZE) if names else "no name (subjectAltName)"


def calling_failed(error: OSError, host: str) -> TlsFailedError:
    """Explain why this node does not go on with a peer that it called `host`."""
    if isinstance(error, ssl.SSLCertVerificationError):
        if error.verify_code in (_OTHER_HOST, _OTHER_IP):
            return TlsFailedError(
                TlsFault.OTHER_NAME,
                f"its certificate is not for {host}",
                f"put {host} into the subjectAltName of peer_tls_certificate on that node, or correct its "
                "address in the peers of this one",
            )
        return TlsFailedError(TlsFault.CERTIFICATE, *_of_certificate(error))
    return TlsFailedError(
        TlsFault.ENDED,
        "it does not go on with TLS",
        "if it speaks plaintext only, set peer_tls to both there, and to both on this node until every node "
        "has it; else its log says what it refuses",
    )


def serving_failed(error: OSError) -> str:
    """Explain why a connection to the Raft port did not come about; "": the other side has left."""
    if isinstance(error, ssl.SSLCertVerificationError):
        reason, advice = _of_certificate(error)
        return f"TLS refused, {reason}: {advice}"
    if isinstance(error, ssl.SSLError):
        if _text(error) == "peer did not return a certificate":
            return "TLS refused, it shows no certificate: only nodes with one of peer_tls_ca's may enter"
        return f"TLS failed ({_text(error)}): nodes need TLS 1.3; see the log of the other side"
    return ""


def _of_certificate(error: ssl.SSLCertVerificationError) -> tuple[str, str]:
    """Return (reason, advice) about a peer's certificate."""
    if error.verify_code in (_EXPIRED, _NOT_YET):
        when = "has expired" if error.verify_code == _EXPIRED else "is not valid yet"
        return (
            f"its certificate {when}",
            "renew peer_tls_certificate on that node and start it again; compare the clocks of both",
        )
    if error.verify_code == _PURPOSE:
        return (
            "its certificate is not for both ends of a connection",
            "make one for server and client authentication (extendedKeyUsage) for that node",
        )
    return (
        f"its certificate is not of an authority in peer_tls_ca ({safe_text(error.verify_message)})",
        "use certificates of one authority on all nodes: see to peer_tls_certificate there and peer_tls_ca "
        "here",
    )


def _text(error: OSError) -> str:
    reason = getattr(error, "reason", None) or error.strerror or str(error)  # SSLErrors of Python lack some
    return str(reason).lower().replace("_", " ")
