"""Settings of the nameserver: TOML file < environment < flags. Pure: callers pass in what they read.

Keys: `bind` (host:port of the listener "default"), `listener` (more listeners, name = host:port),
`expiry_ms`, `max_connections` (per listener), `max_nodes` and `max_registered_bytes` (of all registrations),
`server_transport` (who speaks gRPC), `log_level`. Environment: LEDGERMQ_NAMESERVER_<KEY>; listeners there as
`name=host:port,name=host:port`.
Invariant: an unknown key is an error that names the nearest known one.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any

from .errors import NameserverConfigError
from .registrations import MAX_NODES, MAX_REGISTERED
from .route_table import EXPIRY_MS

DEFAULT_BIND = "127.0.0.1:9876"
ENVIRONMENT_PREFIX = "LEDGERMQ_NAMESERVER_"
_KEYS = (
    "bind",
    "listener",
    "expiry_ms",
    "max_connections",
    "max_nodes",
    "max_registered_bytes",
    "server_transport",
    "log_level",
)
MAX_CONNECTIONS = 10_000
#: This project's own gRPC in the event loop, or grpcio with its threads (decision D35).
TRANSPORTS = ("event_loop", "grpcio")
_LOG_LEVELS = ("debug", "info", "warning", "error")


@dataclass(frozen=True, slots=True)
class NameserverConfig:
    """Validated settings. `listeners` maps names to host:port; the first one is the default."""

    listeners: Mapping[str, str]
    expiry_ms: int = EXPIRY_MS  # silence after which a node is dropped
    log_level: str = "info"
    max_connections: int = MAX_CONNECTIONS  # per listener
    max_nodes: int = MAX_NODES  # of all registrations
    max_registered_bytes: int = MAX_REGISTERED  # bytes of all registrations
    server_transport: str = TRANSPORTS[0]


def resolve(
    file: Mapping[str, Any], environment: Mapping[str, str], flags: Mapping[str, Any], *, file_name: str = ""
) -> NameserverConfig:
    """Merge the three sources. Flags not given are absent or None. Raises: NameserverConfigError."""
    settings: dict[str, Any] = {}
    sources: dict[str, str] = {}
    for values, source in (
        (file, f"in {file_name}" if file_name else "in the file"),
        (_from_environment(environment), "in the environment"),
        ({key: value for key, value in flags.items() if value not in (None, [], ())}, "as a flag"),
    ):
        for key, value in values.items():
            if key not in _KEYS:
                raise NameserverConfigError(key, f"is not known{_suggest(key)}", source)
            settings[key] = value
            sources[key] = source
    return NameserverConfig(
        listeners=_listeners(settings, sources),
        expiry_ms=_expiry_ms(settings.get("expiry_ms", EXPIRY_MS), sources.get("expiry_ms", "")),
        max_connections=_limit("max_connections", MAX_CONNECTIONS, settings, sources),
        max_nodes=_limit("max_nodes", MAX_NODES, settings, sources),
        max_registered_bytes=_limit("max_registered_bytes", MAX_REGISTERED, settings, sources),
        server_transport=_one_of(
            "server_transport",
            TRANSPORTS,
            settings.get("server_transport", TRANSPORTS[0]),
            sources.get("server_transport", ""),
        ),
        log_level=_one_of(
            "log_level", _LOG_LEVELS, settings.get("log_level", "info"), sources.get("log_level", "")
        ),
    )


def _suggest(key: str) -> str:
    near = get_close_matches(key, _KEYS, n=1, cutoff=0.5)
    return f'; did you mean "{near[0]}"' if near else f" (known: {', '.join(_KEYS)})"


def _from_environment(environment: Mapping[str, str]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, value in environment.items():
        if name.startswith(ENVIRONMENT_PREFIX):
            key = name.removeprefix(ENVIRONMENT_PREFIX).lower()
            found[key] = [part for part in value.split(",") if part] if key == "listener" else value
    return found


def _listeners(settings: Mapping[str, Any], sources: Mapping[str, str]) -> dict[str, str]:
    more = settings.get("listener", {})
    source = sources.get("listener", "")
    if isinstance(more, (list, tuple)):
        more = dict(_named_address(text, source) for text in more)
    if not isinstance(more, Mapping):
        raise NameserverConfigError("listener", 'must be a table of name = "host:port"', source)
    listeners: dict[str, str] = {}
    if "bind" in settings or not more:
        listeners["default"] = _address("bind", settings.get("bind", DEFAULT_BIND), sources.get("bind", ""))
    for name, address in more.items():
        listeners[name] = _address("listener", address, source)
    return listeners


def _named_address(text: object, source: str) -> tuple[str, str]:
    name, equals, address = str(text).partition("=")
    if not (name and equals and address):
        raise NameserverConfigError("listener", f"has {text!r}; the form is name=host:port", source)
    return name, address


def _is_number(text: str) -> bool:
    """Return whether a text consists of digits that `int` accepts; `isdigit` alone accepts ² too."""
    return text.isascii() and text.isdecimal() and len(text) < 20


def _address(key: str, value: object, source: str) -> str:
    host, colon, port = str(value).rpartition(":")
    if not (host and colon and _is_number(port) and len(port) <= 5 and int(port) < 65536):
        raise NameserverConfigError(
            key, f"is {value!r}; the form is host:port, for example {DEFAULT_BIND}", source
        )
    return str(value)


def _expiry_ms(value: object, source: str) -> int:
    try:
        expiry = int(str(value))
    except ValueError:
        raise NameserverConfigError(
            "expiry_ms", f"is {value!r}; a whole number of milliseconds is wanted", source
        ) from None
    if expiry < 2_000:
        raise NameserverConfigError(
            "expiry_ms", f"is {expiry}; below 2000 (two heartbeats) nodes would come and go", source
        )
    return expiry


def _limit(key: str, default: int, settings: Mapping[str, Any], sources: Mapping[str, str]) -> int:
    value = settings.get(key, default)
    if not _is_number(str(value)) or int(str(value)) < 1:
        raise NameserverConfigError(
            key, f"is {value!r}; a whole number above 0 is wanted", sources.get(key, "")
        )
    return int(str(value))


def _one_of(key: str, known: tuple[str, ...], value: object, source: str) -> str:
    chosen = str(value).lower()
    if chosen not in known:
        raise NameserverConfigError(key, f"is {value!r}; one of {', '.join(known)} is wanted", source)
    return chosen
