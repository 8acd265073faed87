"""Offsets file of a broadcast consumer, and commits to it.

Owns: the file, its lock, its format. Must not: decide what is finished.
Invariants: the file is replaced as a whole, and synced before the next replacement, so after a crash it is
the old or the new one. One consumer at a time uses it. An unreadable file is an error, never a fresh start.

Format: one JSON object {"version", "group", "offsets": [{"topic", "topic_id", "broker_group", "queue",
"offset"}], "crc32c", "group_ids": {broker group: 16 hex digits}, "former_group_ids": {broker group:
[16 hex digits]}}. The checksum covers the text of the offsets. Builds from before the ids omit these.
"""

from __future__ import annotations

import asyncio
import fcntl
import json
import logging
import os
import threading
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, Final

from crc32c import crc32c

from ..cluster.topic_route import BrokerGroup
from ..errors import OffsetsFileError
from ..message import MessageQueue
from .offset_commits import OffsetCommits
from .owned_queue import OwnedQueue

logger = logging.getLogger(__name__)

_VERSION: Final = 1
_MAX_IDS: Final = 64  # remembered per broker group
#: A queue with the id of its topic: a topic that was created again has other queues.
Place = tuple[MessageQueue, int]


class OffsetsFile:
    """The offsets of one broadcast consumer. Call `open` first; `close` releases the file."""

    def __init__(self, path: Path, consumer_group: str) -> None:
        self.path = path
        self._consumer_group = consumer_group
        self._offsets: dict[Place, int] = {}
        #: Known ids of the broker groups that the offsets belong to: the current id first, then former ones.
        self._ids: dict[str, tuple[int, ...]] = {}
        self._used: dict[str, BrokerGroup] = {}  # broker groups of this run
        self._lock_fd = -1
        self._writing = threading.Lock()  # broker groups commit concurrently, each in a thread

    def open(self) -> None:
        """Lock the file and read it. It may be missing; its folder is created. Raises: OffsetsFileError."""
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self._lock_fd = os.open(self._beside(".lock"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
            fcntl.flock(self._lock_fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            self.close()
            step = "Give every consumer a file of its own"
            raise OffsetsFileError(str(self.path), "Another consumer uses it", step) from None
        except OSError as error:
            self.close()
            raise self._unusable(error) from error
        try:
            self._offsets = self._read()
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Release the file for other consumers, after a write in progress has ended."""
        with self._writing:
            if self._lock_fd >= 0:
                os.close(self._lock_fd)
                self._lock_fd = -1

    def get(self, queue: MessageQueue, topic_id: int) -> int | None:
        """Return the stored offset of a queue, or None."""
        return self._offsets.get((queue, topic_id))

    def use_broker_group(self, group: BrokerGroup) -> None:
        """Drop the offsets of a replaced broker group of this name; the next `put` stores that.

        May block on the disk.
        """
        with self._writing:
            if not group.group_id:
                return
            if self._is_of_another(group):
                text = "offsets of a broker group that was replaced are dropped broker_group=%s file=%s"
                logger.warning(text, group.name, self.path)
                kept = {
                    place: each
                    for place, each in self._offsets.items()
                    if place[0].broker_group != group.name
                }
                self._offsets = kept
                del self._ids[group.name]
            ids = self._ids.get(group.name, ())
            # Otherwise a node does not know yet that the broker group was recovered
            if group.group_id not in ids[1:]:
                self._ids[group.name] = _joined(group.group_id, *reversed(group.former_group_ids), *ids)
            self._used[group.name] = group

    def _is_of_another(self, group: BrokerGroup) -> bool:
        used, ids = self._used.get(group.name), self._ids.get(group.name)
        if used is not None:
            return group.is_another(used)
        if not group.group_id or ids is None or group.group_id in ids:
            return False
        return ids[0] not in group.former_group_ids

    def put(self, rows: Iterable[tuple[Place, int]], group: BrokerGroup | None = None) -> None:
        """Store offsets durably, unless `group` is not the one they belong to. Raises: OffsetsFileError."""
        with self._writing:
            if self._lock_fd < 0:
                raise OffsetsFileError(str(self.path), "Its consumer is closed", "Make a new one")
            if group is not None and self._is_of_another(group):
                return
            offsets = {**self._offsets, **dict(rows)}
            try:
                self._replace(self._encode(offsets))
            except OSError as error:
                raise self._unusable(error) from error
            self._offsets = offsets

    def _replace(self, content: bytes) -> None:
        new = self._beside(".new")
        with new.open("wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        new.replace(self.path)
        folder = os.open(self.path.parent, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)

    def _beside(self, ending: str) -> Path:
        return self.path.with_name(self.path.name + ending)

    def _unusable(self, error: OSError) -> OffsetsFileError:
        return OffsetsFileError(
            str(self.path), str(error), "Give a file that can be written, in broadcast_file="
        )

    def _encode(self, offsets: dict[Place, int]) -> bytes:
        rows = [
            {
                "topic": queue.topic, "topic_id": topic_id, "broker_group": queue.broker_group,
                "queue": queue.queue_id, "offset": offset,
            }
            for (queue, topic_id), offset in sorted(offsets.items())
        ]  # fmt: skip
        content = {"version": _VERSION, "group": self._consumer_group, "offsets": rows, "crc32c": _sum(rows)}
        if self._ids:
            ids = {name: [f"{each:016x}" for each in found] for name, found in sorted(self._ids.items())}
            content["group_ids"] = {name: found[0] for name, found in ids.items()}
            content["former_group_ids"] = {name: found[1:] for name, found in ids.items()}
        return (json.dumps(content, indent=1) + "\n").encode()

    def _read(self) -> dict[Place, int]:
        """Read and check the file; {} if it is missing. Raises: OffsetsFileError."""
        try:
            content = json.loads(self.path.read_bytes())
        except FileNotFoundError:
            return {}
        except OSError as error:
            raise self._unusable(error) from error
        except (ValueError, RecursionError) as error:
            raise self._damaged(str(error)) from None
        try:
            version, group, rows = content["version"], content["group"], content["offsets"]
            if version != _VERSION:
                step = "Use the version of LedgerMQ that wrote it, or give another file"
                raise OffsetsFileError(str(self.path), f"It is of version {version!r}", step)
            if content["crc32c"] != _sum(rows):
                raise self._damaged("its checksum does not fit")
            if group != self._consumer_group:
                step = "Give every consumer group a file of its own"
                raise OffsetsFileError(str(self.path), f"It is of the consumer group {group!r}", step)
            former = content.get("former_group_ids", {})
            self._ids = {
                name: tuple(int(each, 16) for each in (text, *former.get(name, ())))
                for name, text in content.get("group_ids", {}).items()
            }
            return {
                (
                    MessageQueue(row["topic"], row["broker_group"], int(row["queue"])),
                    int(row["topic_id"]),
                ): int(row["offset"])
                for row in rows
            }
        except (KeyError, TypeError, ValueError, AttributeError, OverflowError) as error:
            raise self._damaged(f"{type(error).__name__}: {error}") from None

    def _damaged(self, reason: str) -> OffsetsFileError:
        return OffsetsFileError(
            str(self.path),
            f"What is in it is no list of offsets: {reason}",
            "Put a copy of it back, or remove it: the consumer then begins at its start position",
        )


def _joined(*ids: int) -> tuple[int, ...]:
    """Return each id once; at most the first _MAX_IDS."""
    return tuple(dict.fromkeys(ids))[:_MAX_IDS]


def _sum(rows: Any) -> int:
    return crc32c(json.dumps(rows, sort_keys=True).encode())


class FileCommits(OffsetCommits):
    """Commits to a file, in a thread: the event loop must not wait for a disk."""

    def __init__(
        self,
        file: OffsetsFile,
        group: Callable[[], BrokerGroup],
        interval_ms: int,
        queues: Callable[[], Iterable[OwnedQueue]],
    ) -> None:
        self._file = file
        self._group = group
        super().__init__(group().name, interval_ms, queues)

    async def _store(self, rows: list[tuple[OwnedQueue, int]]) -> None:
        places = [((owned.queue, owned.topic_id), offset) for owned, offset in rows]
        await asyncio.to_thread(self._file.put, places, self._group())
        for owned, offset in rows:
            owned.committed = max(owned.committed, offset)
