"""The same without asyncio: a producer, and a consumer that is a loop."""

from __future__ import annotations

import sys
import uuid

from ledgermq.client import Message
from ledgermq.client.sync import Consumer, Producer


def main(nameserver: str) -> None:
    run = uuid.uuid4().hex[:8]  # so that it may be run twice
    with Producer(nameserver) as producer:
        future = producer.send_async("letters", f"{run} one")  # add_done_callback() takes a function
        batch = producer.send_batch(Message("letters", f"{run} {n}".encode()) for n in ("two", "three"))
        receipts = [*batch, future.result()]
        print(f"stored at {[(receipt.queue_id, receipt.queue_offset) for receipt in receipts]}")

    found = []
    with Consumer(nameserver, group=f"post-{run}", topic="letters", timeout_ms=5_000) as consumer:
        for message in consumer:  # ends when nothing came for 5 s
            if message.body.startswith(run.encode()):
                found.append(message.body.decode().split()[1])
            message.ack()  # in the background; a failure shows in a later step of the loop
            if len(found) == 3:
                break
    print(f"received {', '.join(found)}")
    assert sorted(found) == ["one", "three", "two"]


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "127.0.0.1:9876")
