"""Test client that runs in its own Python, with the official client installed and nothing of LedgerMQ.

    python official_client.py MODE ACCESS_POINT TOPIC COUNT

MODE simple: a Producer sends COUNT messages and a SimpleConsumer receives and acknowledges all of them.
MODE push: a Producer sends COUNT messages, a PushConsumer takes them. Sending takes some seconds, so that the
test can kill a node meanwhile. Prints `sent N` while sending and `RESULT sent=… received=…` at the end; exit
code 0 when every message that was acknowledged to the producer arrived.
"""

from __future__ import annotations

import sys
import threading
import time
from typing import Any

from rocketmq import (
    ClientConfiguration,
    ConsumeResult,
    Credentials,
    FilterExpression,
    Message,
    MessageListener,
    Producer,
    PushConsumer,
    SimpleConsumer,
)

DEADLINE = 90.0


def send_all(producer: Any, topic: str, count: int, pause: float) -> set[str]:
    """Send messages one by one; return the ids of those that were acknowledged."""
    sent = set()
    for i in range(count):
        message = Message()
        message.topic = topic
        message.body = f"message {i}".encode()
        message.tag = "official"
        message.keys = f"key-{i}"
        message.add_property("number", str(i))
        end = time.monotonic() + DEADLINE
        while True:
            try:
                sent.add(producer.send(message).message_id)
                break
            except Exception as error:  # the client raises its own kinds; a person would try again, too
                print(f"send failed, again: {error}", flush=True)
                if time.monotonic() > end:
                    raise
                time.sleep(0.2)
        if i % 10 == 0:
            print(f"sent {i + 1}", flush=True)
        time.sleep(pause)
    return sent


def simple(configuration: Any, topic: str, sent: set[str]) -> set[str]:
    consumer = SimpleConsumer(configuration, f"{topic}-simple", {topic: FilterExpression("official")}, 3)
    consumer.startup()
    received: set[str] = set()
    end = time.monotonic() + DEADLINE
    try:
        while not sent <= received and time.monotonic() < end:
            try:
                for message in consumer.receive(32, 15) or []:
                    assert message.properties["number"] == message.body.decode().split()[1]
                    consumer.ack(message)
                    received.add(message.message_id)
            except Exception as error:  # noqa: BLE001 (the client raises its own kinds)
                print(f"receive failed, again: {error}", flush=True)
                time.sleep(0.2)
    finally:
        consumer.shutdown()
    return received


class Listener(MessageListener):  # type: ignore[misc]
    def __init__(self) -> None:
        self.received: set[str] = set()
        self.lock = threading.Lock()

    def consume(self, message: Any) -> Any:
        with self.lock:
            self.received.add(message.message_id)
        return ConsumeResult.SUCCESS


def main() -> int:
    mode, access_point, topic, count = sys.argv[1], sys.argv[2], sys.argv[3], int(sys.argv[4])
    configuration = ClientConfiguration(access_point, Credentials())
    listener = Listener()
    consumer = None
    if mode == "push":
        consumer = PushConsumer(configuration, f"{topic}-push", listener, {topic: FilterExpression("*")})
        consumer.startup()
    producer = Producer(configuration, (topic,))
    producer.startup()
    try:
        sent = send_all(producer, topic, count, 4.0 / count)
    finally:
        producer.shutdown()
    if consumer is None:
        received = simple(configuration, topic, sent)
    else:
        end = time.monotonic() + DEADLINE
        while not sent <= listener.received and time.monotonic() < end:
            time.sleep(0.05)
        consumer.shutdown()
        received = listener.received
    print(f"RESULT sent={len(sent)} received={len(sent & received)}", flush=True)
    return 0 if sent <= received else 1


if __name__ == "__main__":
    sys.exit(main())
