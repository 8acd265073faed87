"""Errors of the consensus layer.

RaftError                     base; `retryable` tells whether the same call may be repeated elsewhere or later
├── ConfigurationError        settings that cannot work
├── AddressInUseError         the Raft port is taken
├── PeerCertificateError      the files for TLS between nodes cannot be used
├── NotLeaderError            this node does not lead; carries the leader if known (definite: no append)
├── BusyError                 too many uncommitted bytes (definite)
├── TransferringError         leadership is being transferred (definite)
├── EntryTooLargeError        larger than a quarter of a segment (definite)
├── ProposalLostError         the outcome of a proposal is unknown
├── TransferFailedError       no node took over leadership
├── NodeStoppedError          the node is stopping or has faulted
├── DamagedFrameError         bytes between two nodes were corrupted on the way; the connection ends
├── StateTransferError        the leader's state did not reach a follower; tried again
└── StorageError              the data folder and the log
    ├── DataFolderError       the folder cannot be used; nothing was changed
    │   ├── ForeignFolderError    of another node, broker group or cluster, or of another segment size
    │   ├── LockedFolderError     another process uses it
    │   ├── NewerFolderError      written by a newer LedgerMQ
    │   ├── DamagedFolderError    identity, hard state or manifest is missing or damaged
    │   └── BrokerGroupRecoveryError    a broker group that lost its majority cannot be recovered from it
    ├── DamagedLogError       an entry that must be there is damaged or missing; carries file and offset
    ├── InvalidWireError      entries from a peer that do not fit: checksum, chain, index, offset, size
    │   └── OtherHistoryError     they are intact, but continue another log
    ├── LogTruncatedError     the range was cut off while it was read; look again
    ├── LogCompactedError     the range is below the first retained index
    ├── DiskFullError         no room for another segment (definite when raised by staging)
    ├── StorageFailedError    a write or fsync failed: terminal for the node (rule P15)
    └── StorageDefectError    a storage thread hit a bug of ours: terminal for the node

Every message says what happened, why, and what to do next.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from ledgermq.proto.errors import NewerFormatError

if TYPE_CHECKING:
    from .damage import Damage


class RaftError(Exception):
    """Base of the consensus layer's errors."""

    retryable = False


class ConfigurationError(RaftError, ValueError):
    """Settings that cannot work."""


class AddressInUseError(RaftError):
    """The Raft port cannot be opened."""

    def __init__(self, address: str) -> None:
        super().__init__(
            f"cannot listen on {address} for Raft: the port is in use or not an address of this machine. "
            "Stop the other process (ss -tnap shows it, an outgoing connection, too) or choose another "
            "address"
        )
        self.address = address


class PeerCertificateError(RaftError):
    """The files for TLS between nodes cannot be used; `key` is the setting that names the file."""

    def __init__(self, key: str, path: str, reason: str) -> None:
        super().__init__(
            f"{path} ({key}) cannot be used for TLS between nodes: {reason}. Correct file or setting, "
            "then start again"
        )
        self.key = key


class NotLeaderError(RaftError):
    """This node does not lead. Nothing was appended."""

    retryable = True

    def __init__(self, leader: str | None = None) -> None:
        super().__init__(
            f"not the leader; {leader} leads" if leader else "not the leader; no leader is known"
        )
        self.leader = leader


class BusyError(RaftError):
    """Too many bytes are waiting for commit. Nothing was appended."""

    retryable = True


class TransferringError(RaftError):
    """Leadership is being transferred. Nothing was appended."""

    retryable = True

    def __init__(self, to: str) -> None:
        super().__init__(f"leadership is being transferred to {to}")
        self.to = to


class EntryTooLargeError(RaftError):
    """The entry exceeds a quarter of a segment. Nothing was appended."""

    def __init__(self, size: int, limit: int, unit: str = "bytes") -> None:
        super().__init__(f"an entry of {size} {unit} is above the limit of {limit} {unit}; send less at once")
        self.size = size
        self.limit = limit


class ProposalLostError(RaftError):
    """The outcome of a proposal is unknown: another leader may commit it, or it may be lost."""

    retryable = True


class TransferFailedError(RaftError):
    """No node took over leadership in time. This node still leads, or steps down by itself."""

    retryable = True


class NodeStoppedError(RaftError):
    """The node is stopping or has faulted."""


class DamagedFrameError(RaftError):
    """Bytes between two nodes were corrupted on the way.

    None of them was used; the connection is reopened.
    """

    retryable = True


class StateTransferError(RaftError):
    """The leader's state did not reach a follower that needs it. Nothing was changed there."""

    retryable = True


class StorageError(RaftError):
    """Base of all errors of the data folder and the log."""


class DataFolderError(StorageError):
    """The data folder cannot be used. Nothing in it was changed."""


class ForeignFolderError(DataFolderError):
    """The folder belongs to another node, broker group or cluster, or to other settings."""


class LockedFolderError(DataFolderError):
    """Another process uses the folder."""


class NewerFolderError(DataFolderError):
    """The folder was written by a newer LedgerMQ."""

    def __init__(self, node: str, path: Path, error: NewerFormatError) -> None:
        super().__init__(
            f"{node} will not start: {path} ({error.what}) has format version {error.found}; this build reads"
            f" up to version {error.supported}. Install the LedgerMQ that wrote it, or a newer one; nothing "
            "was changed."
        )
        self.path = path


class DamagedFolderError(DataFolderError):
    """Identity, hard state or manifest is missing or damaged. `found`: the file and its problem."""

    def __init__(self, text: str, *, found: str = "") -> None:
        super().__init__(text)
        self.found = found or text


class OldHardStateError(DamagedFolderError):
    """The hard state is older than the log beside it, so the newer one, and the vote in it, are lost."""


class BrokerGroupRecoveryError(DataFolderError):
    """A broker group cannot be recovered from this folder, or a copy of it cannot become a member."""


class DamagedLogError(StorageError):
    """An entry that must exist is damaged or missing. Never fixed by truncation (rule P18).

    `damage` tells where to start a repair if recovery found it; None: found while serving. `extent`: the
    damage begins within this many bytes from `offset` on. (A disk that cannot read a range does not say which
    part of it.)
    """

    def __init__(
        self,
        node: str,
        path: Path,
        position: int,
        offset: int,
        reason: str,
        damage: Damage | None = None,
        extent: int = 1,
    ) -> None:
        super().__init__(
            f"{node} will not use its log: {path} is damaged at byte {position} (physical offset {offset}): "
            f"{reason}. Acknowledged messages may be stored there, so nothing was cut off. Fetch a clean "
            "copy from the other nodes: ledgermq broker --rejoin"
        )
        self.path = path
        self.position = position
        self.offset = offset
        self.reason = reason
        self.damage = damage
        self.extent = extent


class InvalidWireError(StorageError):
    """Entries from a peer that do not fit this log. Nothing was stored."""


class OtherHistoryError(InvalidWireError):
    """Committed entries from a peer do not continue this log: this log's last entries were never
    committed.
    """


class LogTruncatedError(StorageError):
    """The range was cut off while it was read. Look again; dropping the read is always safe."""

    retryable = True


class LogCompactedError(StorageError):
    """The range is below the first retained index."""

    def __init__(self, wanted: int, first: int) -> None:
        super().__init__(f"{wanted} was deleted by retention; the log starts at {first}")
        self.wanted = wanted
        self.first = first


class DiskFullError(StorageError):
    """The disk has no room for the next segment. If staging raised it, nothing was appended."""

    retryable = True


class StorageFailedError(StorageError):
    """A write or fsync failed. Terminal: the node must go silent and exit (rule P15)."""

    def __init__(self, path: Path, cause: OSError) -> None:
        super().__init__(
            f"writing {path} failed: {cause.strerror or cause}. What the disk holds is unknown, so this node "
            "stops; the others go on. Check the disk (dmesg), then start the node again."
        )
        self.path = path
        self.cause = cause


class StorageDefectError(StorageError):
    """A storage thread hit a bug of ours. Terminal: accepted work is not done."""

    def __init__(self, doing: str, defect: Exception) -> None:
        super().__init__(defect_text(doing, defect))
        self.defect = defect


def defect_text(doing: str, defect: Exception) -> str:
    """Return why a node stops because of a bug of ours, and what a person can do about it."""
    return (
        f"{doing} failed with {type(defect).__name__}: {defect}. This is a defect of LedgerMQ; what this "
        "node holds in memory is no longer certain, so it stops; the others go on. Keep its log for a "
        "report, then start the node again."
    )
