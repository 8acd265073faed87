"""Opens a data folder and assembles what lies in it: identity, hard state, CommitLog, flusher.

(interface first; the bodies follow)
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from .commit_log import CommitLog
from .errors import StorageError
from .files import FileSystem
from .flusher import FlushStatistics
from .hard_state import MembershipState
from .identity import Identity
from .types import HardState, LogIndex, NodeId, Term


@dataclass(frozen=True, slots=True, kw_only=True)
class StorageConfig:
    """Settings of one data folder. Sizes are bytes."""

    data_dir: Path
    cluster_id: str
    group: str
    node_id: NodeId
    segment_size: int
    flush: str = "sync"  # sync | async_timed | async_notify
    flush_interval_ms: int = 500
    flush_bytes: int = 8 << 20
    cache_bytes: int = 24 << 20
    read_threads: int = 4


@dataclass(frozen=True, slots=True)
class RecoveryReport:
    """What opening found."""

    clean_stop: bool  # the last stop was clean: the log was not scanned
    rebooted_unclean: bool  # another boot id and no clean-stop mark: in async mode, do not vote before caught up (D7)
    scanned_bytes: int
    truncated_bytes: int  # of a torn tail
    floor_index: LogIndex
    floor_term: Term


class RaftStorage:
    """The open data folder of one node. Holds its lock until `close`."""

    identity: Identity
    hard_state: HardState  # as recovered; commit is min(hint, last index)
    membership: MembershipState  # VOTER or REJOINING
    incarnation: int
    log: CommitLog
    recovered: RecoveryReport

    def start(
        self,
        post: Callable[[Callable[[], None]], None],
        *,
        on_durable: Callable[[int], None],
        on_failed: Callable[[StorageError], None],
        on_disk_full: Callable[[bool], None],
    ) -> None:
        """Start the threads. `post` is `loop.call_soon_threadsafe`; callbacks come through it.

        `on_failed` is terminal (P15). `on_disk_full(True)`: no room for another segment; (False): there is again.
        """

    def set_membership(self, seq: int, state: MembershipState) -> None:
        """Queue a durable change of VOTER/REJOINING; `on_durable(seq)` follows."""

    def learn_members(self, members: dict[NodeId, int]) -> None:
        """Store the incarnations of the peers (and our own) durably. Blocking; call it in a thread."""

    def statistics(self) -> FlushStatistics:
        """Fsync latency (p50, p99 in ms), flushed index, and so on."""
        raise NotImplementedError

    def close(self, *, clean: bool = True) -> None:
        """Flush, mark a clean stop, stop the threads, unlock. Blocking; call it in a thread."""


def is_initialized(data_dir: Path, files: FileSystem) -> bool:
    """Tell whether the folder holds a node's data. Raises: DamagedFolderError (files, but no identity)."""
    raise NotImplementedError


def create_data_folder(config: StorageConfig, files: FileSystem, *, membership: MembershipState) -> None:
    """Make an empty folder into a node's data folder: identity with a new incarnation, hard state, first segment."""


def open_storage(config: StorageConfig, files: FileSystem) -> RaftStorage:
    """Lock, check and recover a data folder (blocking: may scan gigabytes).

    Raises: DataFolderError subclasses, DamagedLogError.
    """
    raise NotImplementedError


def quarantine(config: StorageConfig, files: FileSystem) -> Path | None:
    """--rejoin: move the old log and state aside (never delete); return the folder they are in now."""
    raise NotImplementedError
