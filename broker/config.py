"""Settings of a broker node: TOML file < `LEDGERMQ_*` environment < flags (11), validated before the start.

Owns: the keys, their defaults, and the sentence a person reads when one is wrong.
Must not: open ports or create folders. An unknown key in the file, a mistyped variable or an unknown flag is
an error.
"""

from __future__ import annotations

import difflib
import os
import re
import tomllib
from collections.abc import Mapping
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Any, Final, Literal

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ValidationError,
    model_validator,
)

from ledgermq.proto.record import MAX_BODY_SIZE
from ledgermq.raft.config import MAX_ENTRY_DIVISOR
from ledgermq.raft.disk.page_writer import PAGE

from .leader.pipeline import largest_message
from .reading.polls import MAX_KEYS

ENV_PREFIX: Final = "LEDGERMQ_"
MAX_SEGMENT_SIZE: Final = 4 << 30
#: Of the command line, which starts brokers, too.
_NOT_OURS: Final = ("LEDGERMQ_NAMESERVER", "LEDGERMQ_DEBUG")
_SIZE: Final = re.compile(r"(\d+)\s*(B|KiB|MiB|GiB|TiB)?", re.IGNORECASE)
_UNITS: Final = {"": 1, "b": 1, "kib": 1 << 10, "mib": 1 << 20, "gib": 1 << 30, "tib": 1 << 40}
_NAME: Final = re.compile(r"[A-Za-z0-9_-]{1,64}")


#: What pydantic's kinds of errors mean to a person.
_LIMITS: Final = {
    "greater_than_equal": "it must be at least",
    "greater_than": "it must be more than",
    "less_than_equal": "it must be at most",
    "less_than": "it must be less than",
}
_KINDS: Final = {
    "int_": "it is a whole number",
    "float_": "it is a number",
    "finite_number": "it is a finite number",
    "bool_": "it is true or false",
    "string_": "it is a text",
    "path_": "it is a path",
    "dict_": 'it is a table, or a list like "n1=host:port,n2=host:port"',
    "tuple_": 'it is a list, or a text like "a,b"',
    "too_": "there are too few or too many",
    "missing": "it is needed here",
    "model_": "it is a table",
}


class ConfigError(ValueError):
    """The configuration cannot be used; the text says which key of which source, why, and what to do."""


def parse_size(value: object) -> object:
    """Turn "64MiB" into bytes; a plain number is bytes."""
    if not isinstance(value, str):
        return value
    match = _SIZE.fullmatch(value.strip())
    if match is None:
        raise ValueError(f'"{value}" is not a size; write bytes or a number with KiB, MiB, GiB or TiB')
    return int(match[1]) * _UNITS[(match[2] or "").lower()]


def split_address(text: str) -> tuple[str, int]:
    """Return (host, port) of "host:port" (IPv6 hosts in brackets). Raises: ValueError."""
    host, colon, port = text.rpartition(":")
    is_number = port.isascii() and port.isdecimal() and len(port) <= len("65535")
    if not colon or not host or not is_number or int(port) > 65535:
        raise ValueError(f'"{text}" is not host:port, as 127.0.0.1:9876 is; ports are at most 65535')
    return host.strip("[]"), int(port)


def _check_address(text: str) -> str:
    if not text.isprintable():
        raise ValueError(f"{text!r} has characters that cannot be printed; write host:port")
    host, _ = split_address(text)
    try:
        host.encode("idna")  # as the look-up does, which would end in a traceback
    except UnicodeError:
        raise ValueError(
            f"{text!r} is no address: the parts of a host name have 1 to 63 characters each"
        ) from None
    return text


def _check_folder(value: object) -> object:
    if isinstance(value, str) and (not value or "\0" in value):
        raise ValueError(f"{value!r} is not a folder; write its path")
    return value


def check_name(text: str) -> str:
    if not _NAME.fullmatch(text):
        raise ValueError(f'"{text}" is not a name; use 1 to 64 letters, digits, "-" and "_"')
    return text


def _check_name_or_none(text: str) -> str:
    return check_name(text) if text else text


def _check_clock(text: str) -> str:
    if not re.fullmatch(r"([01]\d|2[0-3]):[0-5]\d", text):
        raise ValueError(f'"{text}" is not a time of day; write it like 04:00')
    return text


def _check_zone(text: str) -> str:
    if text != text.strip() or not text.isprintable() or len(text) > 64:
        raise ValueError(
            f"{text!r} is not a zone; use up to 64 printable characters, with no white space at the ends"
        )
    return text


def _parse_peers(value: object) -> object:
    """Accept `n1=host:port,n2=host:port` besides a table."""
    if not isinstance(value, str):
        return value
    pairs = [part.strip().partition("=") for part in value.split(",") if part.strip()]
    if any(not equals for _, equals, _ in pairs):
        raise ValueError(f'"{value}" is not a list like n1=host:port,n2=host:port')
    return {name.strip(): address.strip() for name, _, address in pairs}


def _parse_list(value: object) -> object:
    return [part.strip() for part in value.split(",") if part.strip()] if isinstance(value, str) else value


def _parse_range(value: object) -> object:
    """Accept "400-800" or "400,800" besides a list of two numbers."""
    return [part.strip() for part in re.split(r"[-,]", value)] if isinstance(value, str) else value


def _parse_listeners(value: object) -> object:
    """Accept `name=x,messaging_bind=h:p,log_bind=h:p` with `;` between listeners besides tables."""
    if not isinstance(value, str):
        return value
    return [_parse_peers(part) for part in value.split(";") if part.strip()]


Address = Annotated[str, AfterValidator(_check_address)]
Name = Annotated[str, AfterValidator(check_name)]
Size = Annotated[int, BeforeValidator(parse_size), Field(ge=0)]
Finite = Annotated[float, Field(allow_inf_nan=False)]
_LONGEST_HOURS: Final = 10_000_000  # a thousand years: "for ever" that still is a time in ms
_LONGEST_IDLE_S: Final = ((1 << 31) - 1) // 1000  # gRPC counts ms in 32 bits: 24 days


class ListenerConfig(BaseModel):
    """One network that clients come from: where to bind, and the addresses that answers carry."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: Name = "default"
    messaging_bind: Address = "127.0.0.1:8081"
    messaging_advertise: str = ""
    log_bind: Address = "127.0.0.1:8082"
    log_advertise: str = ""

    @model_validator(mode="before")
    @classmethod
    def _advertise_the_bind_address(cls, data: Any) -> Any:
        if isinstance(data, dict):
            for key, default in (("messaging", "127.0.0.1:8081"), ("log", "127.0.0.1:8082")):
                data = {
                    **data,
                    f"{key}_advertise": data.get(f"{key}_advertise") or data.get(f"{key}_bind", default),
                }
        return data

    @model_validator(mode="after")
    def _advertise_something_reachable(self) -> ListenerConfig:
        for key in ("messaging", "log"):
            address = getattr(self, f"{key}_advertise")
            host, _ = split_address(address)
            if host in ("0.0.0.0", "::", "*"):
                raise ValueError(
                    f'clients cannot connect to "{address}"; set {key}_advertise to the address that they use'
                )
        return self


class BrokerConfig(BaseModel):
    """All settings of a broker node. Sizes are bytes, times as the names say."""

    model_config = ConfigDict(extra="forbid", frozen=True, validate_default=True)

    cluster: Name = "local"
    group: Name = "g0"
    node_id: Name = "n1"
    data_dir: Annotated[Path, BeforeValidator(_check_folder)] = Path("ledgermq-data")
    zone: Annotated[str, AfterValidator(_check_zone)] = ""
    nameservers: Annotated[tuple[Address, ...], BeforeValidator(_parse_list)] = ("127.0.0.1:9876",)
    flush: Literal["sync", "async_timed", "async_notify"] = "sync"
    direct_write_bytes: Size = 128 << 10  # flushes of so many bytes are written past the page cache; 0: none
    replication: Literal["quorum", "async_master", "sync_master"] = "quorum"
    master: Annotated[str, AfterValidator(_check_name_or_none)] = ""
    min_insync_slaves: int = Field(default=1, ge=1)
    slave_timeout_ms: int = Field(default=3000, ge=10)
    peers: Annotated[dict[Name, Address], BeforeValidator(_parse_peers)] = {}
    raft_bind: Address = "127.0.0.1:20911"
    http_bind: Address = "127.0.0.1:5557"
    segment_size: Size = 1 << 30
    max_message_bytes: Size = MAX_BODY_SIZE
    auto_create_topics: bool = False
    queues_per_topic: int = Field(default=4, ge=1, le=1024)
    max_topics: int = Field(default=5000, ge=1, le=100_000)  # of the broker group
    max_queues: int = Field(default=50_000, ge=1)  # of all its topics
    max_consumer_groups: int = Field(default=5000, ge=1)
    max_producer_streams: int = Field(
        default=100_000, ge=1
    )  # producers times the queues they send to, of an hour
    max_clients: int = Field(default=20_000, ge=1)  # of the messaging service, at this node
    max_poll_queues: int = Field(
        default=MAX_KEYS, ge=4098
    )  # that waiting requests wait for; one may name 4096
    max_store_bytes: Size = 0  # 0: the whole file system counts
    retention_hours: Finite = Field(default=72, gt=0, le=_LONGEST_HOURS)
    #: Per cent of the disk (or of max_store_bytes) above which expired segments go at once, the oldest go,
    #: messages are refused.
    disk_delete_expired_percent: Finite = Field(default=75, ge=10)
    disk_delete_oldest_percent: Finite = 85
    disk_refuse_messages_percent: Finite = Field(default=90, le=93)
    delete_unexpired: bool = True  # above disk_delete_oldest_percent, oldest first
    delete_segments_per_second: Finite = Field(default=10, gt=0, le=1_000_000)
    protect_unconsumed: bool = False
    #: Expired segments that holds keep, in bytes; 0: up to disk_delete_oldest_percent.
    hold_max_bytes: Size = 0
    #: A hold that its holder has not named for so long no longer counts.
    hold_expires_hours: Finite = Field(default=168, gt=0, le=_LONGEST_HOURS)
    clean_at: Annotated[str, AfterValidator(_check_clock)] = "04:00"
    follower_reads: bool = True
    trace_topic: bool = False
    access_message_in_memory_max_ratio: int = Field(default=40, ge=0, le=100)  # per cent of the usable memory
    access_message_in_memory_max_bytes: Size = 0  # 0: by the ratio
    scrub_bytes_per_second: Size = 8 << 20  # 0: the log is not read to find damage
    #: A pass over the log begins so often.
    scrub_interval_hours: Finite = Field(default=168, gt=0, le=_LONGEST_HOURS)
    heartbeat_ms: int = Field(default=75, ge=10)
    election_timeout_ms: Annotated[tuple[int, int], BeforeValidator(_parse_range)] = (400, 800)
    min_invisible_ms: int = Field(default=10_000, ge=0)
    #: Who speaks gRPC on the node's ports: `rpc` in the event loop, or grpcio with its threads (D35).
    server_transport: Literal["grpcio", "event_loop"] = "event_loop"
    tls_front: bool = True
    client_tls: Literal["plaintext", "both", "tls"] = "plaintext"  # of the messaging ports
    tls_certificate: Path | None = None
    tls_private_key: Path | None = None
    peer_tls: Literal["plaintext", "both", "tls"] = (
        "plaintext"  # of the Raft port, and towards those of others
    )
    peer_tls_certificate: Path | None = None
    peer_tls_private_key: Path | None = None
    peer_tls_ca: Path | None = None
    max_connections: int = Field(default=10_000, ge=1)  # of each client port
    max_connections_per_address: int = Field(default=0, ge=0)  # 0: as many as the port takes
    connection_idle_seconds: Finite = Field(default=600, ge=0, le=_LONGEST_IDLE_S)  # 0: for ever
    log_level: Literal["debug", "info", "warning", "error"] = "info"
    rejoin: bool = False
    listener: Annotated[tuple[ListenerConfig, ...], BeforeValidator(_parse_listeners)] = Field(
        default=(ListenerConfig(),), min_length=1
    )

    @model_validator(mode="after")
    def _fit_together(self) -> BrokerConfig:
        if self.peers and self.node_id not in self.peers:
            raise ValueError(
                f"peers: node {self.node_id} itself is missing; it lists {', '.join(self.peers)}"
            )
        self._check_master()
        self._check_disk_steps()
        if len({listener.name for listener in self.listener}) < len(self.listener):
            raise ValueError("listener: two listeners have the same name")
        self._fit_messages_into_segments()
        self._fit_tls()
        return self

    def _fit_tls(self) -> None:
        """TLS needs a certificate, its key, and the front that tells it from plaintext."""
        if self.peer_tls != "plaintext":
            self._need_files("peer_tls", "peer_tls_certificate", "peer_tls_private_key", "peer_tls_ca")
        if self.client_tls == "plaintext":
            return
        self._need_files("client_tls", "tls_certificate", "tls_private_key")
        if not self.tls_front:
            raise ValueError(f"tls_front: client_tls is {self.client_tls}, which needs the front")

    def _need_files(self, setting: str, *keys: str) -> None:
        for key in keys:
            if getattr(self, key) is None:
                raise ValueError(f"{key}: {setting} is {getattr(self, setting)}, so a PEM file is needed")

    def _check_disk_steps(self) -> None:
        """Check the order of the steps: deletion must start before messages are refused."""
        steps = {
            "disk_delete_expired_percent": self.disk_delete_expired_percent,
            "disk_delete_oldest_percent": self.disk_delete_oldest_percent,
            "disk_refuse_messages_percent": self.disk_refuse_messages_percent,
        }
        for (lower, before), (name, value) in pairwise(steps.items()):
            if value <= before:
                raise ValueError(f"{name}: {value:g} is not above {lower}, which is {before:g}")

    def _check_master(self) -> None:
        slaves = len(self.voters) - 1
        if self.master and self.replication == "quorum":
            raise ValueError(
                "master: with replication quorum the nodes elect their leader. Leave it out, or set "
                "replication to async_master or sync_master"
            )
        if self.master and self.master not in self.voters:
            raise ValueError(f"master: is no node of this broker group; it has {', '.join(self.voters)}")
        if self.replication == "sync_master" and self.min_insync_slaves > slaves:
            raise ValueError(
                f"min_insync_slaves: no message could ever be confirmed, the broker group has {slaves} "
                "besides the master. Lower it, or add nodes to `peers`"
            )

    def _fit_messages_into_segments(self) -> None:
        """An entry is at most a quarter of a segment, and the largest message must fit into one."""
        if 0 < self.direct_write_bytes < PAGE:
            raise ValueError(f"direct_write_bytes: must be 0, or at least a page ({PAGE})")
        if self.segment_size < 1 << 20:
            raise ValueError("segment_size: must be at least 1MiB")
        if self.segment_size > MAX_SEGMENT_SIZE:
            raise ValueError("segment_size: must be at most 4GiB: places in a segment have 32 bits")
        if not 1 << 10 <= self.max_message_bytes <= MAX_BODY_SIZE:
            raise ValueError(f"max_message_bytes: must be between 1KiB and {MAX_BODY_SIZE} bytes (4MiB)")
        largest = largest_message(self.segment_size // MAX_ENTRY_DIVISOR)
        if self.max_message_bytes > largest:
            overhead = self.segment_size // MAX_ENTRY_DIVISOR - largest
            needed = -(-(self.max_message_bytes + overhead) * MAX_ENTRY_DIVISOR // (1 << 20))
            raise ValueError(
                f"segment_size: segments of {self.segment_size} bytes hold messages of at most {largest} "
                f"bytes, and max_message_bytes is {self.max_message_bytes}. Set segment_size to at least "
                f"{needed}MiB, or max_message_bytes to at most {largest} (all nodes of a broker group alike)"
            )

    @property
    def voters(self) -> dict[str, str]:
        """Raft address by node id, of all nodes of the broker group, which may be this one alone.

        In a broker group with a master only that one votes.
        """
        return self.peers or {self.node_id: self.raft_bind}


def load(
    config_file: Path | None, flags: Mapping[str, object], environment: Mapping[str, str] | None = None
) -> BrokerConfig:
    """Merge the three sources and validate. `flags` holds only what was given. Raises: ConfigError."""
    from_file = _read_file(config_file) if config_file else {}
    from_env = _read_environment(os.environ if environment is None else environment)
    merged: dict[str, Any] = {**from_file, **from_env, **flags}

    def source(key: str) -> str:
        if key in flags:
            return f"flag --{key.replace('_', '-')}"
        if key in from_env:
            return f"environment variable {ENV_PREFIX}{key.upper()}"
        return f'{config_file}: key "{key}"' if key in from_file else f'setting "{key}"'

    try:
        return BrokerConfig(**merged)
    except ValidationError as error:
        first = error.errors()[0]
        raise ConfigError(_explain(dict(first), source)) from None


def _explain(error: dict[str, Any], source: Any) -> str:
    location = [str(part) for part in error["loc"]]
    reason = str(error["msg"]).removeprefix("Value error, ")
    if not location:
        key, _, rest = reason.partition(": ")
        return f"{source(key)}: {rest}. Correct it and start again."
    where = source(location[0]) + "".join(f" [{part}]" for part in location[1:])
    if error["type"] == "extra_forbidden":
        known = list(ListenerConfig.model_fields) if len(location) > 1 else list(BrokerConfig.model_fields)
        return f"{where}: there is no such setting.{_did_you_mean(location[-1], known)} Correct or remove it."
    return f"{where}: {_reason(error, reason)} (given: {error.get('input')!r}). Correct it and start again."


def _reason(error: dict[str, Any], said: str) -> str:
    """Return what is allowed, in our words; `said` are pydantic's, or those of a validator of ours."""
    context = error.get("ctx", {})
    kind = str(error["type"])
    if kind == "literal_error":
        return f"it is one of {str(context['expected']).replace(' or ', ', ')}"
    for limit, words in _LIMITS.items():
        if kind == limit:
            return f"{words} {context[next(iter(context))]}"
    return next((words for begin, words in _KINDS.items() if kind.startswith(begin)), said)


def _did_you_mean(word: str, known: list[str]) -> str:
    close = difflib.get_close_matches(word, known, 1)
    return f' Did you mean "{close[0]}"?' if close else f" Known: {', '.join(sorted(known))}."


def _read_file(path: Path) -> dict[str, object]:
    try:
        return tomllib.loads(path.read_text())
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{path}: not valid TOML: {error}. Correct that line and start again.") from None
    except RecursionError:
        raise ConfigError(f"{path}: its values are nested too deep. Correct it and start again.") from None
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise ConfigError(
            f"{path}: cannot be read: {reason}. Point --config to a readable TOML file."
        ) from None


def _read_environment(environment: Mapping[str, str]) -> dict[str, object]:
    """Take the variables of known keys; refuse a near miss, which is a typing error. Others are not ours."""
    found: dict[str, object] = {}
    for name, value in environment.items():
        if not name.startswith(ENV_PREFIX) or name in _NOT_OURS:
            continue
        key = name.removeprefix(ENV_PREFIX).lower()
        if key in BrokerConfig.model_fields:
            found[key] = value
        elif close := difflib.get_close_matches(key, list(BrokerConfig.model_fields), 1, 0.85):
            raise ConfigError(
                f"environment variable {name}: there is no such setting. Did you mean"
                f" {ENV_PREFIX}{close[0].upper()}?"
            )
    return found
