"""The official RocketMQ 5 client for Python, unmodified."""

from __future__ import annotations

import sys
import uuid

from rocketmq import ClientConfiguration, Credentials, FilterExpression, Message, Producer, SimpleConsumer

COUNT = 10


def main(endpoints: str) -> None:
    configuration = ClientConfiguration(endpoints, Credentials())
    run = uuid.uuid4().hex[:8]

    producer = Producer(configuration, ("letters",))
    producer.startup()
    for number in range(COUNT):
        message = Message()
        message.topic = "letters"
        message.tag = run
        message.body = f"{number}".encode()
        print(f"{number} is {producer.send(message).message_id}")
    producer.shutdown()

    consumer = SimpleConsumer(configuration, f"post-{run}", {"letters": FilterExpression(run)})
    consumer.startup()
    found: list[bytes] = []
    while len(found) < COUNT:
        for received in consumer.receive(32, 15) or []:
            consumer.ack(received)
            found.append(received.body)
    consumer.shutdown()
    print(f"received {len(found)}")
    assert sorted(found) == sorted(f"{number}".encode() for number in range(COUNT))


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "127.0.0.1:8081")
