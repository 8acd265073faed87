"""The certificate of tests that speak TLS: for localhost, signed by itself, its key known to everybody."""

from __future__ import annotations

from pathlib import Path
from typing import Final

_FOLDER: Final = Path(__file__).parent / "fixtures" / "tls"
CERTIFICATE: Final = _FOLDER / "certificate.pem"
KEY: Final = _FOLDER / "key.pem"
