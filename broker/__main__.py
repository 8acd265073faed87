"""`python -m ledgermq.broker`: read the configuration, run one broker node until SIGTERM, SIGINT or a fault.

Exit codes: 0 clean stop · 1 a fault while running · 2 wrong configuration or flags · 3 will not start (data
folder, ports).
"""

from __future__ import annotations

import argparse
import asyncio
import errno
import gc
import logging
import os
import signal
import sys
import time
from collections.abc import Coroutine, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NoReturn, TypeVar

if __name__ == "__main__" and signal.getsignal(signal.SIGINT) is signal.default_int_handler:
    # While modules are loading, nothing has started: Ctrl-C ends the process without a traceback. `run` stops
    # in order.
    signal.signal(signal.SIGINT, lambda _number, _frame: os._exit(130))

from ledgermq.raft.disk.files import FileSystem, RealFileSystem
from ledgermq.raft.errors import AddressInUseError, RaftError
from ledgermq.raft.folder.quarantine import is_under_way
from ledgermq.raft.log.segment_keeper import LogFolders

from .config import BrokerConfig, ConfigError, load
from .errors import BrokerError

if TYPE_CHECKING:
    from .service.probes import ProcessProbes

logger = logging.getLogger(__name__)

_T = TypeVar("_T")

EXIT_FAULT: Final = 1
EXIT_USAGE: Final = 2
EXIT_WILL_NOT_START: Final = 3
#: Time (s) that the flusher thread waits for the interpreter lock while the event loop is busy. Under load,
#: the default of 5 ms would delay every flush.
SWITCH_INTERVAL: Final = 0.0005
#: Time (s) that a node waits for its own ports when it starts again after a reset.
PORT_PATIENCE: Final = 30.0
#: Allocations minus deallocations that start a collection of the youngest generation; serving creates hardly
#: any cycles.
GC_THRESHOLD: Final = 20_000
#: An idle or stopping cluster is silent. Without the event engine's threads a message on a stream wakes one
#: thread less at each end (measured: docs/performance.md).
GRPC_SETTINGS: Final = {
    "GRPC_VERBOSITY": "ERROR",
    "GRPC_EXPERIMENTS": "-event_engine_client,-event_engine_listener",
}
_ALIASES: Final = {"data_dir": "--data", "node_id": "--node"}
_SWITCHES: Final = {"rejoin"}
_HELP: Final = {
    "data_dir": "folder of this node's log and state; created when missing",
    "node_id": "id of this node in its broker group",
    "peers": "all nodes of the broker group, this one included: n1=host:port,n2=host:port",
    "listener": (
        "name=x,messaging_bind=h:p,log_bind=h:p[,messaging_advertise=h:p,log_advertise=h:p]; more after a ';'"
    ),
    "nameservers": "host:port,host:port",
    "cluster": "name of the cluster",
    "group": "name of the broker group, equal on its nodes",
    "zone": (
        "where this node stands (a rack, a data centre): producers with the same zone prefer the broker "
        "groups that it leads"
    ),
    "flush": "sync, async_timed or async_notify: what an acknowledgement promises (docs/architecture.md)",
    "direct_write_bytes": (
        "flushes of so many bytes are written past the page cache, in every mode (128KiB); 0: none"
    ),
    "replication": (
        "quorum; or one node, the master, decides: async_master, sync_master (answers wait for slaves, too)"
    ),
    "master": "id of the first master; empty on a slave: asked of the nameservers",
    "min_insync_slaves": "sync_master: slaves that must hold a message on disk before it is confirmed",
    "slave_timeout_ms": "sync_master: how long to wait for them, before the answer says that they lack it",
    "raft_bind": "host:port for the other nodes of the broker group",
    "http_bind": "host:port for /livez, /startupz, /readyz and /metrics",
    "segment_size": "size of a log segment, e.g. 64MiB; fixed when the broker group is made",
    "max_message_bytes": "largest message body; an entry, a quarter of a segment, must hold it",
    "auto_create_topics": "true: a topic comes into being by its first use",
    "queues_per_topic": "queues of a new topic when its creator names no number",
    "max_topics": "topics that the broker group has at most",
    "max_queues": "queues of all topics that the broker group has at most",
    "max_consumer_groups": "consumer groups that the broker group has at most",
    "max_producer_streams": "producers times the queues that they sent to within an hour, at most",
    "max_clients": "clients of the messaging ports that a node knows at most",
    "max_poll_queues": "queues that all waiting requests at a node wait for, at most",
    "max_store_bytes": "room for the log, e.g. 100GiB; 0: the whole file system",
    "retention_hours": "age at which messages may be deleted",
    "clean_at": "time of day at which they are",
    "disk_delete_expired_percent": (
        "disk use (or of max_store_bytes) above which expired segments go at once (75; at least 10)"
    ),
    "disk_delete_oldest_percent": "above which the oldest go, expired or not (85; more than the one before)",
    "disk_refuse_messages_percent": (
        "above which messages are refused (90; more than the one before, at most 93)"
    ),
    "delete_unexpired": (
        "true (default): above disk_delete_oldest_percent the oldest segments go before they expire; false: "
        "never"
    ),
    "delete_segments_per_second": "how fast segments are unlinked (10)",
    "protect_unconsumed": (
        "true: expired segments stay while a consumer group has to read them, up to "
        "disk_delete_oldest_percent"
    ),
    "hold_max_bytes": (
        "expired bytes that holds (ledgermq topic hold) keep at most, e.g. 100GiB; 0: up to "
        "disk_delete_oldest_percent"
    ),
    "hold_expires_hours": "a hold that its holder has not named for so long no longer counts (168)",
    "follower_reads": (
        "false: the leader serves all reads: no reader is told to go to a follower, which hands out nothing "
        "of its own log"
    ),
    "trace_topic": (
        "true: keep the message traces that clients write (trace=True), in the topic RMQ_SYS_TRACE_TOPIC"
    ),
    "access_message_in_memory_max_ratio": (
        "a reader that is behind by more than these per cent of the memory reads from a follower"
    ),
    "access_message_in_memory_max_bytes": "the same limit in bytes, e.g. 4GiB; 0: by the ratio",
    "scrub_bytes_per_second": (
        "rate at which the whole log is read to find damage, e.g. 8MiB; 0: it is not read"
    ),
    "scrub_interval_hours": "how often such a pass begins; it takes no longer than that",
    "heartbeat_ms": "interval of the leader's heartbeats",
    "election_timeout_ms": "range of the election timeout, e.g. 400-800",
    "min_invisible_ms": "shortest time that a consumer may keep a message to itself",
    "server_transport": "who speaks gRPC on clients' ports: event_loop, or grpcio, which needs more CPU",
    "tls_front": "false: do not look for TLS on the messaging ports, nor limit connections by address",
    "client_tls": "of the messaging ports: plaintext, tls, or both on one port",
    "tls_certificate": "PEM file with the certificate (and its chain) for client_tls",
    "tls_private_key": "PEM file with its key",
    "peer_tls": (
        "between the nodes of the broker group: plaintext, tls, or both, for the way from one to the other"
    ),
    "peer_tls_certificate": "PEM file with this node's certificate (and its chain) for peer_tls",
    "peer_tls_private_key": "PEM file with its key",
    "peer_tls_ca": "PEM file with the authority that signed the certificates of all nodes",
    "max_connections": (
        "connections that each client port takes; fewer when there are too few file descriptors"
    ),
    "max_connections_per_address": (
        "of them, from one address, on the messaging ports; 0: as many as the port takes"
    ),
    "connection_idle_seconds": (
        "a connection without a call for so long is closed, and opened again when needed; 0: never"
    ),
    "log_level": "debug, info, warning or error",
    "rejoin": "come back with an empty data folder under a known node id, as a non-voting learner first",
}


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        """Print the error and the remedy, without a page of usage."""
        sys.stderr.write(f"ledgermq broker: {message}. See all flags: ledgermq broker --help\n")
        raise SystemExit(EXIT_USAGE)


def _help(key: str) -> str:
    """Return the help text of a setting, with its default if that is a plain value."""
    default = BrokerConfig.model_fields[key].default
    if isinstance(default, bool):
        default = str(default).lower()
    shown = f" (default {default})" if isinstance(default, str | int | float | Path) and str(default) else ""
    return _HELP[key] + shown


def parse_flags(arguments: Sequence[str]) -> tuple[Path | None, dict[str, Any]]:
    """Return the configuration file and the flags that were given, by key."""
    parser = _Parser(
        prog="ledgermq broker", description="Run one node of a broker group.", allow_abbrev=False
    )
    parser.add_argument("--config", type=Path, help="TOML file; environment and flags are stronger")
    for key in BrokerConfig.model_fields:
        names = [f"--{key.replace('_', '-')}"] + ([_ALIASES[key]] if key in _ALIASES else [])
        if key in _SWITCHES:
            parser.add_argument(*names, dest=key, action="store_true", default=None, help=_HELP.get(key))
        else:
            parser.add_argument(*names, dest=key, default=None, metavar="VALUE", help=_help(key))
    given = vars(parser.parse_args(arguments))
    config_file = given.pop("config")
    return config_file, {key: value for key, value in given.items() if value is not None}


async def run(config: BrokerConfig, files: FileSystem | None = None) -> int:
    """Run a node until it is told to stop or faults; return the exit code.

    A node that is reset to the leader's state, left behind by a promotion, or promoted itself, is stopped and
    replaced by a new one on its folder. Nothing of the old state remains in memory, and the new node starts
    like any other.
    """
    loop = asyncio.get_running_loop()
    stop = asyncio.Event()
    for name in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(name, stop.set)
    # Slow imports happen before the port opens, so that no probe has to wait for them.
    from . import node as server  # noqa: F401
    from .service.probes import ProcessProbes

    probed = ProcessProbes()
    await probed.http.start(config.http_bind)  # first: opening and repairing a folder may take hours
    try:
        return await _run(config, files, stop, probed)
    finally:
        await probed.http.stop()


async def _run(
    config: BrokerConfig, files: FileSystem | None, stop: asyncio.Event, probed: ProcessProbes
) -> int:
    known = await _with_master(config, stop, probed)
    node = await _started(known, files, stop, probed, 0.0) if known is not None else None
    if known is None or node is None:
        return 0
    config = known
    sys.stdout.write(node.ready_line() + "\n")
    sys.stdout.flush()
    while True:
        try:
            await _until_ended(node, stop)
        finally:
            await node.stop()
        if node.fault is not None:  # also a fault that occurred during the stop
            sys.stderr.write(f"{config.node_id} stops: {node.fault}\n")
            return EXIT_FAULT
        if stop.is_set():
            return 0
        probed.node = None
        if (plan := node.promotion_plan) is not None:
            from .admin.promotion import promote

            probed.doing = "begins a new generation as the master"
            await asyncio.to_thread(promote, config.data_dir, files or RealFileSystem(), plan)
        else:
            logger.warning("starting again with the leader's state node=%s", config.node_id)
        # The folder is in place now: the flag must not discard it again.
        config = config.model_copy(update={"rejoin": False})
        del node
        gc.unfreeze()  # lets the old state be collected
        node = await _started(config, files, stop, probed, PORT_PATIENCE)
        if node is None:
            return 0


async def _with_master(
    config: BrokerConfig, stop: asyncio.Event, probed: ProcessProbes
) -> BrokerConfig | None:
    """Return the settings with `master` set, if needed with the help of nameservers; None: stopped before."""
    knows = LogFolders(config.data_dir).identity.exists() or is_under_way(config.data_dir, RealFileSystem())
    if config.replication == "quorum" or config.master or knows:
        return config
    if not config.peers:
        return config.model_copy(update={"master": config.node_id})
    from .find_master import find_master, looks_for

    probed.doing = looks_for(config)
    finding = await _unless_stopped(find_master(config), stop)
    return config.model_copy(update={"master": finding.result()}) if finding is not None else None


async def _started(
    config: BrokerConfig,
    files: FileSystem | None,
    stop: asyncio.Event,
    probed: ProcessProbes,
    patience: float,
) -> Any | None:
    """Return a running node; None: it was told to stop before.

    A node that has just released its client ports retries for `patience` s until they are free.
    """
    from .node import BrokerNode
    from .ports.listeners import PortError

    end = time.monotonic() + patience
    while True:
        probed.node = node = BrokerNode(config, files=files, http=probed.http.counts)
        try:
            starting = await _unless_stopped(node.start(), stop)
            if starting is None:
                await node.stop()
                return None
            starting.result()
        except (PortError, AddressInUseError) as error:
            await node.stop()
            if time.monotonic() >= end:
                raise
            logger.warning("waiting for a port reason=%s", error)
            await asyncio.sleep(0.2)
        except BaseException:
            await node.stop()
            raise
        else:
            _settle_memory()
            return node


async def _unless_stopped(work: Coroutine[Any, Any, _T], stop: asyncio.Event) -> asyncio.Task[_T] | None:
    """Return the task when it is done; None: the process was told to stop before, and the task is cancelled.

    A log repair, or the search for a master, may wait long for other nodes.
    """
    working, stopped = asyncio.create_task(work), asyncio.create_task(stop.wait())
    await asyncio.wait((working, stopped), return_when=asyncio.FIRST_COMPLETED)
    stopped.cancel()
    if working.done():
        return working
    working.cancel()
    await asyncio.gather(working, return_exceptions=True)
    return None


def _settle_memory() -> None:
    """Exclude the objects of the start from garbage collection: a full collection would block the loop."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(GC_THRESHOLD, 20, 100)


async def _until_ended(node: Any, stop: asyncio.Event) -> None:
    """Wait until the node must end: it was told to stop, has a fault, or must be replaced by a new one."""
    ends = [
        asyncio.create_task(wait)
        for wait in (stop.wait(), node.wait_fatal(), node.wait_reset(), node.wait_promotion())
    ]
    await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
    for task in ends:
        task.cancel()


def main(arguments: Sequence[str] | None = None, *, files: FileSystem | None = None) -> int:
    """Parse, validate, run. Every refusal is one sentence on stderr: what, why, what to do.

    `files` is the disk; None is the real one.
    """
    config_file, flags = parse_flags(sys.argv[1:] if arguments is None else arguments)
    try:
        config = load(config_file, flags)
    except ConfigError as error:
        sys.stderr.write(f"ledgermq broker: {error}\n")
        return EXIT_USAGE
    logging.basicConfig(
        level=config.log_level.upper(),
        stream=sys.stderr,
        format="%(asctime)s %(levelname)s %(name)s %(message)s",
    )
    for name, value in GRPC_SETTINGS.items():
        os.environ.setdefault(name, value)  # `run` loads gRPC, which reads them then
    try:
        import uvloop
    except ImportError:
        sys.stderr.write(
            "ledgermq broker: the server parts are not installed. Run: pip install 'ledgermq[server]'\n"
        )
        return EXIT_WILL_NOT_START
    from .ports.listeners import PortError

    sys.setswitchinterval(SWITCH_INTERVAL)
    try:
        return uvloop.run(run(config, files))
    except (RaftError, BrokerError, PortError, OSError) as error:
        prefix = f"{config.node_id} will not start: "
        reason = _file_error(error, config) if isinstance(error, OSError) else str(error)
        sys.stderr.write(f"{prefix}{reason.removeprefix(prefix)}\n")
        return EXIT_WILL_NOT_START


_OF_ANOTHER_USER: Final = (
    "Give it to the user that runs this node (chown -R, chmod u+rwX), or point --data to another folder"
)
_FILE_ADVICE: Final = {
    errno.EACCES: _OF_ANOTHER_USER,
    errno.EPERM: _OF_ANOTHER_USER,
    errno.EROFS: (
        "The file system is mounted read-only: see dmesg, mount it for writing, or point --data elsewhere"
    ),
    errno.ENOSPC: "The disk is full: remove other files from it, and start again",
    errno.EDQUOT: "The quota of this user is used up: raise it or remove other files, and start again",
    errno.EIO: (
        "The disk cannot read or write it (dmesg): replace the disk, and start with: ledgermq broker --rejoin"
    ),
    errno.ENOENT: (
        "Something removed it: put it back; else let the other nodes send everything: ledgermq broker "
        "--rejoin"
    ),
    errno.ENOTDIR: (
        "A file stands where LedgerMQ has a folder: move that file away, or point --data elsewhere"
    ),
    errno.EEXIST: "A file stands where LedgerMQ has a folder: move that file away, and start again",
    errno.EISDIR: "A folder stands where LedgerMQ has a file: move that folder away, and start again",
}


def _file_error(error: OSError, config: BrokerConfig) -> str:
    what = f"{error.filename}: {error.strerror}" if error.filename else error.strerror or str(error)
    advice = _FILE_ADVICE.get(error.errno or 0, "See what this file is, and dmesg")
    return f"{what}. {advice} (data folder: {config.data_dir})."


if __name__ == "__main__":
    raise SystemExit(main())
