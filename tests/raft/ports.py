"""Free ports for servers in tests: outside the range that the kernel gives to outgoing connections."""

from __future__ import annotations

import random
import socket


def free_port() -> int:
    """Return a port on loopback that nobody uses now."""
    while True:
        port = random.SystemRandom().randrange(12_000, 32_000)
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                continue
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
        return port
