"""Steady writer with our own client, in a separate process.

    python -m bench.failover.our_writer NAMESERVERS TOPIC FILE PAUSE_MS

Writes one message after the other, each number once, and one line per write to FILE (`gaps.parse_write`).
Ends at SIGTERM. The client logs to stderr.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import sys
from pathlib import Path
from time import monotonic_ns

# Set before gRPC is loaded, as the command line and the brokers do.
os.environ.setdefault("GRPC_EXPERIMENTS", "-event_engine_client,-event_engine_listener")

import uvloop

from ledgermq.client import Producer

_PADDING = bytes(1016)


async def write(nameservers: str, topic: str, file: Path, pause_s: float) -> None:
    """Write until SIGTERM."""
    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    with file.open("w", buffering=1) as out:
        async with Producer(nameservers) as producer:
            number = 0
            while not stop.is_set():
                begun, error = monotonic_ns(), ""
                try:
                    await producer.send(topic, b"%08d" % number + _PADDING, tag="t")
                except Exception as failed:  # noqa: BLE001 - whatever it is, it is written down and the next one is sent
                    error = f"{type(failed).__name__}: {failed}".replace("\n", " ")
                out.write(f"{number} {begun} {monotonic_ns()} {error}\n")
                number += 1
                await asyncio.sleep(0.05 if error else pause_s)


def main() -> None:
    nameservers, topic, file, pause_ms = sys.argv[1:]
    logging.basicConfig(level="INFO", format="%(asctime)s %(levelname)s %(name)s %(message)s")
    uvloop.install()
    asyncio.run(write(nameservers, topic, Path(file), float(pause_ms) / 1000))


if __name__ == "__main__":
    main()
