"""Files for TLS between nodes: what does not fit is found before the start, and named."""

from __future__ import annotations

import shutil
import ssl
import subprocess
from pathlib import Path

import pytest

from ledgermq.raft.errors import PeerCertificateError
from ledgermq.raft.peer_tls import TlsFault, calling_failed, load_peer_tls, names_of, serving_failed
from tests.tls import AUTHORITY, CERTIFICATE, KEY, files_of

HOST = "127.0.0.1"
NODE, NODE_KEY = files_of("node")


def test_good_files_give_contexts_of_both_ends() -> None:
    tls = load_peer_tls(NODE, NODE_KEY, AUTHORITY, HOST, takes_plaintext=False)
    assert tls.serving is not None and tls.serving.verify_mode is ssl.CERT_REQUIRED
    assert tls.calling is not None and tls.calling.check_hostname
    assert not tls.takes_plaintext
    assert load_peer_tls(NODE, NODE_KEY, AUTHORITY, "", takes_plaintext=True).takes_plaintext


@pytest.mark.parametrize(
    ("certificate", "key", "host", "words"),
    [
        (NODE, files_of("stranger")[1], HOST, ("peer_tls_certificate", "do not belong together")),
        (*files_of("expired"), HOST, ("peer_tls_certificate", "has expired")),
        (*files_of("stranger"), HOST, ("peer_tls_certificate", "not of an authority in peer_tls_ca")),
        (CERTIFICATE, KEY, "", ("peer_tls_certificate", "not of an authority in peer_tls_ca")),
        (
            *files_of("elsewhere"),
            HOST,
            (
                "peer_tls_certificate",
                "peers call this node 127.0.0.1, and it is for n7.example.org, 192.0.2.7",
            ),
        ),
        (NODE, NODE_KEY, "n1.example.org", ("n1.example.org", "127.0.0.1, localhost")),
        (NODE.with_name("none.pem"), NODE_KEY, HOST, ("none.pem", "peer_tls_certificate", "No such file")),
        (NODE, NODE_KEY.with_name("none.key"), HOST, ("none.key", "peer_tls_private_key", "No such file")),
        (NODE, NODE.parent, HOST, ("peer_tls_private_key", "Is a directory")),
    ],
)
def test_files_that_do_not_fit_are_refused(
    certificate: Path, key: Path, host: str, words: tuple[str, ...]
) -> None:
    with pytest.raises(PeerCertificateError) as refused:
        load_peer_tls(certificate, key, AUTHORITY, host, takes_plaintext=True)
    for word in words:
        assert word in str(refused.value)
    assert "then start again" in str(refused.value)


def test_an_authority_that_is_none_is_refused(tmp_path: Path) -> None:
    for name, content in (("empty.pem", b""), ("text.pem", b"x"), ("key.pem", NODE_KEY.read_bytes())):
        (tmp_path / name).write_bytes(content)
        with pytest.raises(PeerCertificateError, match=rf"{name} \(peer_tls_ca\)"):
            load_peer_tls(NODE, NODE_KEY, tmp_path / name, HOST, takes_plaintext=True)


def test_a_key_with_a_passphrase_is_refused_without_a_question(tmp_path: Path) -> None:
    if shutil.which("openssl") is None:
        pytest.skip("needs the program openssl")
    locked = tmp_path / "locked.key"
    subprocess.run(
        ["openssl", "pkcs8", "-topk8", "-in", NODE_KEY, "-out", locked, "-passout", "pass:secret"], check=True
    )
    with pytest.raises(PeerCertificateError, match=r"locked\.key"):
        load_peer_tls(NODE, locked, AUTHORITY, HOST, takes_plaintext=True)


def test_an_end_by_the_peer_is_told_from_a_certificate_that_is_not_accepted() -> None:
    assert calling_failed(ConnectionResetError(), HOST).fault is TlsFault.ENDED
    assert not serving_failed(ConnectionResetError()), "who leaves is not worth a line"
    assert "TLS 1.3" in serving_failed(ssl.SSLError(1, "[SSL: UNSUPPORTED_PROTOCOL] unsupported protocol"))
    assert names_of({}) == "no name (subjectAltName)"
