"""Errors of the nameserver process.

NameserverError          what happened · why · the next command
├── NameserverConfigError          a setting is wrong; nothing was started
└── BindError            an address cannot be listened on
"""

from __future__ import annotations


class NameserverError(Exception):
    """The nameserver does not start. The text says what to do."""


class NameserverConfigError(NameserverError):
    """A setting is wrong. `key` names it, `source` says where it was set."""

    def __init__(self, key: str, reason: str, source: str) -> None:
        super().__init__(
            f"the nameserver will not start: setting {key!r} ({source}) {reason}. "
            "See all settings: ledgermq nameserver --help"
        )
        self.key = key
        self.source = source


class BindError(NameserverError):
    """An address cannot be listened on. `taken`: another process listens there."""

    def __init__(self, listener: str, address: str, reason: str, *, taken: bool) -> None:
        host, _, port = address.rpartition(":")
        other = f"{host}:{int(port) + 1}" if taken else f"127.0.0.1:{port}"
        flag = f"--bind {other}" if listener == "default" else f"--listener {listener}={other}"
        hint = "Another nameserver or `ledgermq up` may be running there. Choose another address"
        if not taken:
            hint = "Choose an address of this machine (ip address shows them), for example"
        super().__init__(
            f"the nameserver will not start: it cannot listen on {address} (listener {listener!r}): "
            f"{reason}. {hint}: ledgermq nameserver {flag}"
        )
        self.listener = listener
        self.address = address
