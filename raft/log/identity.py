"""Identity of a data folder and base point of its log.

Owns: the files `identity` and `manifest`, and the refusal of a folder that does not match. The error text
says what to do. Nothing on disk is changed before all checks have passed.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Final, TypeVar

from ledgermq.proto.errors import CorruptError, NewerFormatError

from ..core.reign import Claim, Reign
from ..damage import Before
from ..disk.checked_file import keep_record, read_record, write_record
from ..disk.files import FileSystem
from ..errors import DamagedFolderError, ForeignFolderError, NewerFolderError
from ..types import FIRST_INDEX, NO_TERM, HardState, LogIndex, NodeId, Term

#: Stored in a learner's own entry of its member record, where a new node has its (odd) incarnation.
#: LEARNER_MARK: the node lost data. REJOINED_MARK: it began with an empty folder for `--rejoin`.
LEARNER_MARK: Final = 0
REJOINED_MARK: Final = 2
#: Since these versions each file holds its record twice. Earlier builds would report the second copy as
#: damage, so the version makes them refuse the file.
IDENTITY_VERSION: Final = 4
MANIFEST_VERSION: Final = 2
#: Number of replaced incarnations to remember per node.
MAX_FORMER: Final = 16

_T = TypeVar("_T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Recovery:
    """How a folder joined a broker group that was recovered after losing its majority (group_recovery.py)."""

    replaced_group_id: int  # id before the recovery; its nodes are refused; 0: it had none
    from_incarnation: int  # while the hard state still holds this one, the change is not finished
    term: int  # term of the hard state that finishes the change
    last_index: int  # end of the log that every first member begins with
    last_crc: int
    counted: bool = False  # this node has been a voter: its folder must not be copied any more
    promoted: bool = False  # the new broker group has a master, this node, which votes at once


@dataclass(frozen=True, slots=True, kw_only=True)
class Identity:
    """The identity record of a data folder."""

    cluster_id: str
    group: str
    node_id: NodeId
    incarnation: int  # 63 random bits; new whenever the folder starts with an empty log
    segment_size: int  # log bytes per segment file; fixed when the folder is created
    feature_level: int = 1
    # incarnation of each member as last seen; 0: never
    members: dict[NodeId, int] = field(default_factory=dict)
    group_id: int = 0  # tells broker groups of the same name apart; 0: not known yet (bootstrap.py)
    complete: bool = True  # False while the folder is being created; nothing has been promised from it yet
    recovery: Recovery | None = None  # None: never recovered, or the folder was created later
    reign: Reign | None = None  # of a broker group with a master; None: a majority decides
    # set when this folder is superseded: it is moved aside before anything else
    successor: Reign | None = None
    # Latest claim of each other node. Whatever begins here supersedes them.
    claims: tuple[Claim, ...] = ()
    # earlier incarnations of each member and of this node; a node that still uses one has an old folder
    former: dict[NodeId, tuple[int, ...]] = field(default_factory=dict)

    def with_former(self, node: NodeId, incarnation: int) -> Identity:
        """Return a copy that also remembers `incarnation`, which another one has replaced."""
        if not incarnation or incarnation in self.former.get(node, ()):
            return self
        former = (*self.former.get(node, ()), incarnation)[-MAX_FORMER:]
        return replace(self, former={**self.former, node: former})

    @property
    def former_group_ids(self) -> tuple[int, ...]:
        """Ids of this broker group before it was recovered or before a master was promoted."""
        former = self.reign.former_group_ids if self.reign is not None else ()
        replaced = self.recovery.replaced_group_id if self.recovery is not None else 0
        return former if replaced in (0, *former) else (*former, replaced)


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    """Base point of a log (D8): the state just before its first entry."""

    first_index: LogIndex = FIRST_INDEX
    first_offset: int = 0  # start of its first segment
    prev_term: Term = NO_TERM  # of first_index - 1
    prev_crc: int = 0  # checksum that the first entry chains to
    prev_timestamp: int = 0  # log time (ms) of first_index - 1

    @property
    def before(self) -> Before:
        """What the first entry must continue."""
        return Before(LogIndex(self.first_index - 1), self.prev_term, self.prev_crc, self.prev_timestamp)


def is_new(identity: Identity, hard: HardState, last_index: LogIndex) -> bool:
    """Return whether this is the folder of a FRESH member (P19): it gave no vote and no acknowledgement that
    counts.

    A new folder has its own incarnation in its member record, term 0 and an empty log. A crash between
    creating a folder for a rejoin and marking it leaves a folder that looks new. The peers then refuse it,
    because they know another incarnation. A first member of a recovered broker group begins with a log. It is
    new until it votes, or until it loses part of that log: it then gets another incarnation and comes back as
    a learner, like any other node.
    """
    marked = identity.members.get(identity.node_id) in (LEARNER_MARK, REJOINED_MARK)
    if hard.is_voter or marked:
        return False
    if identity.recovery is not None and not identity.recovery.counted:
        return True
    return hard.term == 0 and last_index == 0


def write_identity(files: FileSystem, path: Path, identity: Identity) -> None:
    """Replace the record durably. Raises: OSError."""
    write_record(files, path, "identity", IDENTITY_VERSION, _identity_fields(identity), twice=True)


def keep_records(files: FileSystem, paths: tuple[Path, Path], identity: Identity, manifest: Manifest) -> None:
    """Rewrite both records as they were read, so that each file holds two copies. Raises: OSError.

    `paths` are those of the identity and the manifest.
    """
    keep_record(files, paths[0], "identity", IDENTITY_VERSION, _identity_fields(identity))
    keep_record(files, paths[1], "manifest", MANIFEST_VERSION, asdict(manifest))


def _identity_fields(identity: Identity) -> dict[str, Any]:
    fields = asdict(identity)
    for name in ("group_id", "recovery", "reign", "successor", "claims", "former"):
        if not fields[name]:  # present only in records of nodes that know it
            del fields[name]
    if identity.recovery is not None and not identity.recovery.promoted:  # True only together with a reign
        del fields["recovery"]["promoted"]
    return fields


def read_identity(files: FileSystem, path: Path, node: str) -> Identity:
    """Read the record. `node` is used in error texts. Raises: DamagedFolderError, NewerFolderError."""
    fields = _read(files, path, "identity", IDENTITY_VERSION, node)
    return _build(path, node, lambda: _identity(fields))


def _identity(fields: dict[str, Any]) -> Identity:
    recovery = fields.pop("recovery", None)
    claims = [(claim["group_id"], reign_of(claim["reign"])) for claim in fields.pop("claims", ())]
    former = {NodeId(node): tuple(numbers) for node, numbers in fields.pop("former", {}).items()}
    return Identity(
        former=former,
        claims=tuple(Claim(group_id=number, reign=reign) for number, reign in claims if reign is not None),
        recovery=Recovery(**recovery) if recovery else None,
        reign=reign_of(fields.pop("reign", None)),
        successor=reign_of(fields.pop("successor", None)),
        **fields,
    )


def reign_of(fields: dict[str, Any] | None) -> Reign | None:
    """Decode a reign from a record."""
    if fields is None:
        return None
    return Reign(**{**fields, "former_group_ids": tuple(fields["former_group_ids"])})


def write_manifest(files: FileSystem, path: Path, manifest: Manifest) -> None:
    """Replace the record durably. Raises: OSError."""
    write_record(files, path, "manifest", MANIFEST_VERSION, asdict(manifest), twice=True)


def read_manifest(files: FileSystem, path: Path, node: str) -> Manifest:
    """Read the record. `node` is used in error texts. Raises: DamagedFolderError, NewerFolderError."""
    fields = _read(files, path, "manifest", MANIFEST_VERSION, node)
    return _build(path, node, lambda: Manifest(**fields))


def check_identity(
    identity: Identity,
    *,
    cluster_id: str,
    broker_group: str,
    node_id: NodeId,
    segment_size: int,
    folder: Path,
) -> None:
    """Check that the folder belongs to this node and matches the settings. Raises: ForeignFolderError."""
    keep = "Point --data elsewhere; nothing was changed."
    if identity.cluster_id != cluster_id:
        raise ForeignFolderError(
            f"{node_id} will not start: its data folder {folder} belongs to cluster {identity.cluster_id}, "
            f"not to {cluster_id}. {keep}"
        )
    if identity.group != broker_group or identity.node_id != node_id:
        raise ForeignFolderError(
            f"{node_id} will not start: its data folder {folder} belongs to node {identity.node_id} of "
            f"broker group {identity.group}, as the file {folder / 'identity'} says. {keep} If only that "
            f"file was put there, put back the one of {node_id}; without it move the folder away, and start "
            "with: ledgermq broker --rejoin"
        )
    if identity.segment_size != segment_size:
        raise ForeignFolderError(
            f"{node_id} will not start: broker group {broker_group} was made with segments of "
            f"{identity.segment_size} bytes ({folder}), this start asks for {segment_size}. The size is "
            f"fixed when a broker group is made: set segment_size = {identity.segment_size}; nothing was "
            "changed."
        )


def _read(files: FileSystem, path: Path, kind: str, version: int, node: str) -> dict[str, Any]:
    try:
        return read_record(files, path, kind, version)
    except FileNotFoundError:
        raise damaged_folder(node, path, "is missing") from None
    except CorruptError as error:
        raise damaged_folder(node, path, f"is damaged ({error.reason})") from None
    except NewerFormatError as error:
        raise NewerFolderError(node, path, error) from None
    except OSError as error:
        raise damaged_folder(node, path, f"cannot be read ({error.strerror})") from None


def _build(path: Path, node: str, make: Callable[[], _T]) -> _T:
    try:
        return make()
    except (TypeError, KeyError, AttributeError, ValueError):
        raise damaged_folder(node, path, "has other fields than this build knows") from None


def damaged_folder(node: str, path: Path, what: str) -> DamagedFolderError:
    """Return the error for a damaged file without which the folder must not be used."""
    return DamagedFolderError(
        f"{node} will not start: {path} {what}, so what this node promised is not known. Fetch a clean copy "
        "from the other nodes: ledgermq broker --rejoin; nothing was changed.",
        found=f"{path} {what}",
    )
