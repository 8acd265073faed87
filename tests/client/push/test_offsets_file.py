"""The file of a broadcast consumer: what is stored is there, damage is told, one consumer at a time."""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ledgermq.client.cluster.topic_route import BrokerGroup
from ledgermq.client.errors import OffsetsFileError
from ledgermq.client.message import MessageQueue
from ledgermq.client.push.offsets_file import OffsetsFile

QUEUE = MessageQueue("orders", "g0", 3)


def opened(path: Path, group: str = "billing") -> OffsetsFile:
    file = OffsetsFile(path, group)
    file.open()
    return file


def test_offsets_are_there_again_and_others_with_them(tmp_path: Path) -> None:
    path = tmp_path / "new" / "offsets.json"
    file = opened(path)
    assert file.get(QUEUE, 7) is None
    file.put([((QUEUE, 7), 12)])
    file.put([((MessageQueue("orders", "g1", 0), 2), 5)])
    file.close()
    file = opened(path)
    assert (file.get(QUEUE, 7), file.get(MessageQueue("orders", "g1", 0), 2)) == (12, 5)
    assert file.get(QUEUE, 8) is None, "the topic was created again"
    file.close()


def of_id(group_id: int, *former: int) -> BrokerGroup:
    return BrokerGroup("local", "g0", 1, "n1", (), True, group_id=group_id, former_group_ids=former)


@pytest.mark.parametrize(
    ("then", "offset"), [(of_id(7), 12), (of_id(8, 7), 12), (of_id(0), 12), (of_id(8), None)]
)
def test_offsets_of_a_broker_group_that_was_replaced_are_dropped(
    tmp_path: Path, then: BrokerGroup, offset: int | None
) -> None:
    file = opened(tmp_path / "offsets.json")
    file.use_broker_group(of_id(7))
    file.put([((QUEUE, 7), 12), ((MessageQueue("orders", "g1", 0), 2), 5)], of_id(7))
    file.close()
    file = opened(tmp_path / "offsets.json")
    file.use_broker_group(then)
    assert (file.get(QUEUE, 7), file.get(MessageQueue("orders", "g1", 0), 2)) == (offset, 5)
    file.put([((QUEUE, 7), 13)], of_id(7))
    assert file.get(QUEUE, 7) == (13 if offset else None), "what comes late of the one before is not stored"
    file.close()


@pytest.mark.parametrize("newest", [of_id(8, 7), of_id(9, 7, 8)])
def test_a_node_that_does_not_know_that_its_group_was_recovered_or_promoted_drops_no_offsets(
    tmp_path: Path, newest: BrokerGroup
) -> None:
    """It may be the only one that a restarted consumer is told of: a slave, while the new master is down."""
    path = tmp_path / "offsets.json"
    for group in (
        newest,
        of_id(7),
        newest,
        of_id(newest.group_id),
        of_id(7),
        of_id(10, newest.group_id),
        of_id(7),
    ):
        file = opened(path)
        file.use_broker_group(group)
        file.put([((QUEUE, 7), 12)] if group is newest else [], group)
        assert file.get(QUEUE, 7) == 12
        file.close()


def test_a_file_without_group_ids_is_of_whatever_group_has_the_name(tmp_path: Path) -> None:
    file = opened(tmp_path / "offsets.json")
    file.put([((QUEUE, 7), 12)])
    file.close()
    file = opened(tmp_path / "offsets.json")
    file.use_broker_group(of_id(8))
    assert file.get(QUEUE, 7) == 12
    file.close()


def test_a_second_consumer_of_the_same_file_is_refused_until_the_first_is_closed(tmp_path: Path) -> None:
    path = tmp_path / "offsets.json"
    file = opened(path)
    with pytest.raises(OffsetsFileError, match="Another consumer uses it"):
        opened(path)
    file.close()
    opened(path).close()


def _change(change: Callable[[dict[str, Any]], object]) -> Callable[[bytes], bytes]:
    def damaged(raw: bytes) -> bytes:
        content = json.loads(raw)
        change(content)
        return json.dumps(content).encode()

    return damaged


@pytest.mark.parametrize(
    ("damage", "says"),
    [
        (lambda raw: b"", "no list of offsets"),
        (lambda raw: raw[: len(raw) // 2], "no list of offsets"),
        (lambda raw: b"\xff" * 20, "no list of offsets"),
        (lambda raw: b"[]", "no list of offsets"),
        (_change(lambda content: content.pop("crc32c")), "no list of offsets"),
        (_change(lambda content: content["offsets"][0].update(offset=13)), "checksum does not fit"),
        (_change(lambda content: content.update(version=2)), "of version 2"),
        (_change(lambda content: content.update(group="other")), "of the consumer group 'other'"),
    ],
)
def test_a_damaged_file_is_an_error_and_stays_as_it_is(
    tmp_path: Path, damage: Callable[[bytes], bytes], says: str
) -> None:
    path = tmp_path / "offsets.json"
    file = opened(path)
    file.put([((QUEUE, 7), 12)])
    file.close()
    path.write_bytes(damaged := damage(path.read_bytes()))
    for _ in range(2):  # the lock was let go
        with pytest.raises(OffsetsFileError, match=says):
            opened(path)
    assert path.read_bytes() == damaged


def test_a_place_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(OffsetsFileError, match="broadcast_file="):
        opened(tmp_path / "file" / "offsets.json")


def test_what_was_half_written_is_not_looked_at(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "offsets.json"
    file = opened(path)
    file.put([((QUEUE, 7), 12)])

    def torn(fd: int) -> None:
        raise OSError("disk is full")

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", torn)
        with pytest.raises(OffsetsFileError, match="disk is full"):
            file.put([((QUEUE, 7), 13)])
    assert file.get(QUEUE, 7) == 12
    file.close()
    file = opened(path)
    assert file.get(QUEUE, 7) == 12
    file.close()


def test_the_next_consumer_gets_the_file_when_nothing_is_written_any_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "offsets.json"
    file = opened(path)
    writing, may_go_on, sync = threading.Event(), threading.Event(), os.fsync

    def slow(fd: int) -> None:
        writing.set()
        may_go_on.wait(20)
        sync(fd)

    monkeypatch.setattr(os, "fsync", slow)
    threads = [
        threading.Thread(target=file.put, args=[[((QUEUE, 7), 12)]]),
        threading.Thread(target=file.close),
    ]
    threads[0].start()
    assert writing.wait(20)
    threads[1].start()
    threads[1].join(0.2)
    with pytest.raises(OffsetsFileError, match="Another consumer uses it"):
        opened(path)
    may_go_on.set()
    for thread in threads:
        thread.join(20)
    after = opened(path)
    assert after.get(QUEUE, 7) == 12
    with pytest.raises(OffsetsFileError, match="Its consumer is closed"):
        file.put([((QUEUE, 7), 5)])
    after.close()
