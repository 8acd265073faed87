"""Whose data folder this is, and the base point of its log.

Owns: the files `identity` and `manifest`, and the refusal to use a folder that does not fit, in words that tell what
to do. Nothing on disk is changed before all checks have passed.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final, TypeVar

from ledgermq.proto.errors import CorruptError, NewerFormatError

from .checked_file import read_record, write_record
from .errors import DamagedFolderError, ForeignFolderError, NewerFolderError
from .files import FileSystem
from .reign import Claim, Reign
from .types import HardState, LogIndex, NodeId, Term

#: Stand in a learner's own entry of its member record, where a new node has its incarnation (which is odd): of one
#: that lost something, and of one that began with an empty folder for `--rejoin`.
LEARNER_MARK: Final = 0
REJOINED_MARK: Final = 2
#: Written for a folder that a former build must not use: it would not see who the master is, or that the folder was left
#: behind, or (3) would promote it beside a generation that another node has claimed. All others stay in the version that
#: every build reads.
IDENTITY_VERSION: Final = 3
_MASTER_VERSION: Final = 2
_QUORUM_VERSION: Final = 1
MANIFEST_VERSION: Final = 1
_FIRST_INDEX: Final = LogIndex(1)
_NO_TERM: Final = Term(0)

_T = TypeVar("_T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Recovery:
    """How a folder became part of a group that was recovered after the loss of its majority (group_recovery.py)."""

    replaced_group_id: int  # the group as it was before; 0 = it had no id. Its nodes are refused
    from_incarnation: int  # the hard state still has it: the change is not finished
    term: int  # of the hard state that finishes the change
    last_index: int  # the log that every first member begins with ends here
    last_crc: int
    counted: bool = False  # this node became a voter once: its folder must not be copied any more
    promoted: bool = False  # the new group is one with a master, this node: it votes at once


@dataclass(frozen=True, slots=True, kw_only=True)
class Identity:
    """The identity record of a data folder."""

    cluster_id: str
    group: str
    node_id: NodeId
    incarnation: int  # 63 random bits, new whenever the folder starts with an empty log
    segment_size: int
    feature_level: int = 1
    # Incarnation of each member as last seen; 0 = never
    members: dict[NodeId, int] = field(default_factory=dict)
    group_id: int = 0  # tells this group from others with the same names; 0 = not known yet (bootstrap.py)
    complete: bool = True  # False while the folder is being made: nothing was promised from it yet
    recovery: Recovery | None = None  # None: the group was never recovered, or this folder was made later
    reign: Reign | None = None  # of a group with a master; None: a majority decides
    successor: Reign | None = None  # left this folder behind: it is moved aside before anything else is done
    claims: tuple[
        Claim, ...
    ] = ()  # of other nodes, the last one of each: whatever begins here leaves them behind

    @property
    def former_group_ids(self) -> tuple[int, ...]:
        """Ids that the group had before it was recovered, or before a master was promoted."""
        former = self.reign.former_group_ids if self.reign is not None else ()
        replaced = self.recovery.replaced_group_id if self.recovery is not None else 0
        return former if replaced in (0, *former) else (*former, replaced)


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    """The base point of a log (raft.md §1.3): what stands before its first entry."""

    first_index: LogIndex = _FIRST_INDEX
    first_offset: int = 0  # start of its first segment
    prev_term: Term = _NO_TERM  # of first_index - 1
    prev_crc: int = 0  # that the first entry chains to
    prev_timestamp: int = 0  # log time (ms) of first_index - 1


def is_new(identity: Identity, hard: HardState, last_index: LogIndex) -> bool:
    """Tell whether this is the folder of a FRESH member (P19), which gave no vote and no acknowledgement that counts.

    A new folder has its own incarnation in its member record, term 0 and an empty log. Between the creation of a
    folder for a rejoin and its mark a crash leaves one that counts as new: then the peers refuse it, because they
    know another incarnation. A first member of a recovered group begins with a log, and is new until it votes, or
    until it lost a part of that log: then it has another incarnation, and comes back as a learner like everybody.
    """
    marked = identity.members.get(identity.node_id) in (LEARNER_MARK, REJOINED_MARK)
    if hard.is_voter or marked:
        return False
    if identity.recovery is not None and not identity.recovery.counted:
        return True
    return hard.term == 0 and last_index == 0


def write_identity(files: FileSystem, path: Path, identity: Identity) -> None:
    """Replace the record durably. Raises: OSError."""
    fields: dict[str, Any] = {
        "cluster_id": identity.cluster_id,
        "group": identity.group,
        "node_id": identity.node_id,
        "incarnation": identity.incarnation,
        "segment_size": identity.segment_size,
        "feature_level": identity.feature_level,
        "members": dict(identity.members),
        "complete": identity.complete,
    }
    if identity.group_id:  # stands only in records of nodes that know it
        fields["group_id"] = identity.group_id
    if identity.recovery is not None:
        recovery = fields["recovery"] = asdict(identity.recovery)
        if not identity.recovery.promoted:  # so it stands only beside a reign
            del recovery["promoted"]
    if identity.reign is not None:
        fields["reign"] = asdict(identity.reign)
    if identity.successor is not None:
        fields["successor"] = asdict(identity.successor)
    if identity.claims:
        fields["claims"] = [asdict(claim) for claim in identity.claims]
    write_record(files, path, "identity", _version_of(identity), fields)


def _version_of(identity: Identity) -> int:
    if identity.claims:
        return IDENTITY_VERSION
    has_master = identity.reign is not None or identity.successor is not None
    return _MASTER_VERSION if has_master else _QUORUM_VERSION


def read_identity(files: FileSystem, path: Path, node: str) -> Identity:
    """Read the record; `node` is for the messages. Raises: DamagedFolderError, NewerFolderError.

    A record of version 1 may have the fields of version 2, too: the first builds with a master wrote it so.
    """
    fields = _read(files, path, "identity", IDENTITY_VERSION, node)
    return _build(path, node, lambda: _identity(fields))


def _identity(fields: dict[str, Any]) -> Identity:
    recovery = fields.pop("recovery", None)
    claims = [(claim["group_id"], reign_of(claim["reign"])) for claim in fields.pop("claims", ())]
    return Identity(
        claims=tuple(Claim(group_id=number, reign=reign) for number, reign in claims if reign is not None),
        recovery=Recovery(**recovery) if recovery else None,
        reign=reign_of(fields.pop("reign", None)),
        successor=reign_of(fields.pop("successor", None)),
        **fields,
    )


def reign_of(fields: dict[str, Any] | None) -> Reign | None:
    """Return a reign as it stands in a record."""
    if fields is None:
        return None
    return Reign(**{**fields, "former_group_ids": tuple(fields["former_group_ids"])})


def write_manifest(files: FileSystem, path: Path, manifest: Manifest) -> None:
    """Replace the record durably. Raises: OSError."""
    fields = {
        "first_index": manifest.first_index,
        "first_offset": manifest.first_offset,
        "prev_term": manifest.prev_term,
        "prev_crc": manifest.prev_crc,
        "prev_timestamp": manifest.prev_timestamp,
    }
    write_record(files, path, "manifest", MANIFEST_VERSION, fields)


def read_manifest(files: FileSystem, path: Path, node: str) -> Manifest:
    """Read the record; `node` is for the messages. Raises: DamagedFolderError, NewerFolderError."""
    fields = _read(files, path, "manifest", MANIFEST_VERSION, node)
    return _build(path, node, lambda: Manifest(**fields))


def check_identity(
    identity: Identity, *, cluster_id: str, group: str, node_id: NodeId, segment_size: int, folder: Path
) -> None:
    """Check that the folder is this node's and was made with these settings. Raises: ForeignFolderError."""
    keep = "Point --data elsewhere; nothing was changed."
    if identity.cluster_id != cluster_id:
        raise ForeignFolderError(
            f"{node_id} will not start: its data folder {folder} belongs to cluster {identity.cluster_id}, not to"
            f" {cluster_id}. {keep}"
        )
    if identity.group != group or identity.node_id != node_id:
        raise ForeignFolderError(
            f"{node_id} will not start: its data folder {folder} belongs to node {identity.node_id} of group"
            f" {identity.group}. {keep}"
        )
    if identity.segment_size != segment_size:
        raise ForeignFolderError(
            f"{node_id} will not start: group {group} was made with segments of {identity.segment_size} bytes"
            f" ({folder}), this start asks for {segment_size}. The size is fixed when a group is made: set"
            f" segment_size = {identity.segment_size}; nothing was changed."
        )


def _read(files: FileSystem, path: Path, kind: str, version: int, node: str) -> dict[str, Any]:
    try:
        return read_record(files, path, kind, version)
    except FileNotFoundError:
        raise damaged_folder(node, path, "is missing") from None
    except CorruptError as error:
        raise damaged_folder(node, path, f"is damaged ({error.reason})") from None
    except NewerFormatError as error:
        raise NewerFolderError(node, path, kind, error.found, error.supported) from None
    except OSError as error:
        raise damaged_folder(node, path, f"cannot be read ({error.strerror})") from None


def _build(path: Path, node: str, make: Callable[[], _T]) -> _T:
    try:
        return make()
    except TypeError:
        raise damaged_folder(node, path, "has other fields than this build knows") from None


def damaged_folder(node: str, path: Path, what: str) -> DamagedFolderError:
    """Return the error for a file without which the folder must not be used."""
    return DamagedFolderError(
        f"{node} will not start: {path} {what}, so what this node promised is not known. Fetch a clean copy from"
        f" the other nodes: ledgermq broker --rejoin; nothing was changed.",
        found=f"{path} {what}",
    )
