"""`python -m ledgermq.nameserver`: run one nameserver until SIGTERM or SIGINT.

Prints `ready nameserver=<host:port>` (and `<listener>=<host:port>` for more listeners) once all ports listen.
Exit codes: 0 stopped by a signal, 1 cannot start, 2 wrong flags or settings.
"""

from __future__ import annotations

import argparse
import asyncio
import importlib
import logging
import os
import signal
import sys
import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

if __name__ == "__main__":
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        # While modules load nothing has begun, so Ctrl-C ends the process without a traceback. `serve` stops
        # in order.
        signal.signal(signal.SIGINT, lambda _number, _frame: os._exit(130))
    # gRPC reads both while the imports below load it.
    # Its own lines on stderr would mix with our error messages. Its errors reach us as exceptions.
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")
    # Without the event engine's threads a message on a stream wakes one thread less (docs/performance.md).
    os.environ.setdefault("GRPC_EXPERIMENTS", "-event_engine_client,-event_engine_listener")

from .config import NameserverConfig, resolve
from .errors import NameserverConfigError, NameserverError
from .registrations import Room
from .service import NameServer


def _arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="ledgermq nameserver",
        description="Run one nameserver.",
        epilog="Flags win over the environment (LEDGERMQ_NAMESERVER_BIND and so on), and that over the file.",
    )
    parser.add_argument("--config", metavar="FILE", help="TOML file with the settings below")
    parser.add_argument("--bind", metavar="HOST:PORT", help="address to listen on (default 127.0.0.1:9876)")
    parser.add_argument(
        "--listener", action="append", default=[], metavar="NAME=HOST:PORT",
        help="one more listener; its answers carry the brokers' addresses of their listener with that name",
    )  # fmt: skip
    parser.add_argument(
        "--expiry-ms", metavar="MS", help="silence after which a node is dropped (default 10000)"
    )
    parser.add_argument(
        "--max-connections", metavar="N",
        help="connections that each listener takes (default 10000, fewer without file descriptors for them)",
    )  # fmt: skip
    parser.add_argument("--max-nodes", metavar="N", help="nodes that may be registered (default 1000)")
    parser.add_argument(
        "--max-registered-bytes", metavar="N", help="bytes of all registrations together (default 67108864)"
    )
    parser.add_argument(
        "--server-transport", metavar="NAME",
        help="who speaks gRPC: event_loop, or grpcio, which needs more CPU (default event_loop)",
    )  # fmt: skip
    parser.add_argument("--log-level", metavar="LEVEL", help="debug, info, warning or error (default info)")
    return parser.parse_args(argv)


def load_config(argv: Sequence[str] | None = None) -> NameserverConfig:
    """Read flags, environment and file. Raises: NameserverConfigError."""
    arguments = _arguments(argv)
    flags = {key: value for key, value in vars(arguments).items() if key != "config"}
    return resolve(_read_file(arguments.config), os.environ, flags, file_name=arguments.config or "")


def _read_file(name: str | None) -> dict[str, Any]:
    if name is None:
        return {}
    try:
        return tomllib.loads(Path(name).read_text())
    except OSError as error:
        raise NameserverConfigError(
            "config", f"names a file that cannot be read: {error.strerror}", name
        ) from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise NameserverConfigError("config", f"is not valid TOML: {error}", name) from error


async def serve(config: NameserverConfig) -> None:
    """Run until a signal arrives. Raises: BindError."""
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    room = Room(config.max_nodes, config.max_registered_bytes)
    server = NameServer(
        config.listeners, config.expiry_ms, config.max_connections, room, config.server_transport
    )
    await server.start()
    try:
        first, *more = server.addresses.items()
        names = [f"nameserver={first[1]}", *(f"{name}={address}" for name, address in more)]
        sys.stdout.write(f"ready {' '.join(names)}\n")
        sys.stdout.flush()
        await stop.wait()
        logging.getLogger(__name__).info("stopping on a signal")
    finally:
        await server.stop()


def main(argv: Sequence[str] | None = None) -> int:
    """Start, serve, stop. Every failure becomes one line on stderr."""
    try:
        config = load_config(argv)
    except NameserverConfigError as error:
        sys.stderr.write(f"error: {error}\n")
        return 2
    logging.basicConfig(
        level=config.log_level.upper(),
        stream=sys.stderr,
        format="%(asctime)s %(levelname)s %(name)s %(message)s",
    )
    try:
        with asyncio.Runner(loop_factory=_loop_factory()) as runner:
            runner.run(serve(config))
    except NameserverError as error:
        sys.stderr.write(f"error: {error}\n")
        return 1
    return 0


def _loop_factory() -> Any:
    """Return uvloop's event loop if it is installed, else asyncio's."""
    try:
        return importlib.import_module("uvloop").new_event_loop
    except ModuleNotFoundError:
        return None


if __name__ == "__main__":
    sys.exit(main())
