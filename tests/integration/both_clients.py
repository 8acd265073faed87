"""Uses the official Python client and ours in one process: each receives what the other one sent.

    python both_clients.py FIRST NAMESERVER ACCESS_POINT TOPIC

FIRST, `rocketmq` or `ledgermq`, is imported first. Both are open at the same time. Prints what each received.
"""

from __future__ import annotations

import importlib
import sys
import time
from typing import Any

LIBRARIES = {"rocketmq": "rocketmq", "ledgermq": "ledgermq.client.sync"}
COUNT = 20
DEADLINE_S = 60.0


def receive(consumer: Any, count: int) -> list[bytes]:
    """Receive and acknowledge with the official client until `count` messages came."""
    bodies: list[bytes] = []
    end = time.monotonic() + DEADLINE_S
    while len(bodies) < count and time.monotonic() < end:
        for message in consumer.receive(32, 15) or []:
            consumer.ack(message)
            bodies.append(message.body)
    return bodies


def main(first: str, nameserver: str, access_point: str, topic: str) -> None:
    for name in sorted(LIBRARIES, key=lambda name: name != first):
        importlib.import_module(LIBRARIES[name])
    import rocketmq

    from ledgermq.client import sync

    with sync.Admin(nameserver) as admin:
        for sender in LIBRARIES:
            admin.create_topic(f"{topic}-{sender}", queues=2)
    configuration = rocketmq.ClientConfiguration(access_point, rocketmq.Credentials())
    official_producer = rocketmq.Producer(configuration, (f"{topic}-rocketmq",))
    official_consumer = rocketmq.SimpleConsumer(
        configuration, f"{topic}-official", {f"{topic}-ledgermq": rocketmq.FilterExpression("*")}, 3
    )
    official_producer.startup()
    official_consumer.startup()
    try:
        with (
            sync.Producer(nameserver) as producer,
            sync.Consumer(
                nameserver, group=f"{topic}-ours", topic=f"{topic}-rocketmq", timeout_ms=30_000
            ) as consumer,
        ):
            for number in range(COUNT):
                producer.send(f"{topic}-ledgermq", f"{number}".encode(), tag="t", keys=["k"])
                message = rocketmq.Message()
                message.topic, message.tag, message.body = f"{topic}-rocketmq", "t", f"{number}".encode()
                official_producer.send(message)
            print("official", sorted(map(int, receive(official_consumer, COUNT))))
            ours = []
            for received in consumer:
                received.ack()
                ours.append(int(received.body))
                if len(ours) == COUNT:
                    break
            print("ours", sorted(ours))
    finally:
        official_consumer.shutdown()
        official_producer.shutdown()


if __name__ == "__main__":
    main(*sys.argv[1:])
