"""Steady writer with the official client, run by a Python that has that client and nothing of ours.

    python official_writer.py ENDPOINTS TOPIC FILE PAUSE_MS

Writes one message after the other, each number once, and one line per write to FILE (`gaps.parse_write`).
Ends at SIGTERM.
"""

from __future__ import annotations

import signal
import sys
import time
from pathlib import Path
from threading import Event

from rocketmq import ClientConfiguration, Credentials, Message, Producer

_PADDING = bytes(1016)


def main() -> None:
    endpoints, topic, file, pause_ms = sys.argv[1:]
    stop = Event()
    signal.signal(signal.SIGTERM, lambda *_: stop.set())
    producer = Producer(ClientConfiguration(endpoints, Credentials()), (topic,))
    producer.startup()
    number = 0
    with Path(file).open("w", buffering=1) as out:
        while not stop.is_set():
            message = Message()
            message.topic = topic
            message.body = b"%08d" % number + _PADDING
            message.tag = "t"
            begun, error = time.monotonic_ns(), ""
            try:
                producer.send(message)
            except Exception as failed:  # noqa: BLE001 - the client raises its own kinds; written down, the next one is sent
                error = f"{type(failed).__name__}: {failed}".replace("\n", " ")
            out.write(f"{number} {begun} {time.monotonic_ns()} {error}\n")
            number += 1
            stop.wait(0.05 if error else float(pause_ms) / 1000)
    producer.shutdown()


if __name__ == "__main__":
    main()
