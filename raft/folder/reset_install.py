"""Installation of a reset: the leader's state, and an empty log that begins where the leader's begins (D8).

Files in `reset/`: `state` (sent by the leader, written while the node runs) and `marker`. The marker is the
decision. It is written once the state is complete and durable and the core has fallen silent. From then on
every opening of the folder installs the reset, until the last step removes the marker. Without a marker
everything else in `reset/` is dropped. So after a crash at any point the folder is the old one or the new
one, never a mixture.

Owns: the order of the steps. Must not: decide to reset (the core does), interpret the state (`install_state`
does). Term, vote and incarnation stay. Blocking; the caller holds the folder's lock.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Final

from ledgermq.proto.errors import CorruptError, NewerFormatError

from ..disk.checked_file import read_record, write_record
from ..disk.files import File, FileSystem, is_full
from ..errors import DamagedFolderError, DiskFullError, NewerFolderError
from ..log.hard_state import DurableState, HardStateFile
from ..log.identity import Manifest, write_manifest
from ..log.segment import TRAILER_SIZE, create_segment
from ..log.segment_keeper import SPARE_SPACE, LogFolders, make_ballast
from ..types import HardState, LogIndex, Term

_log = logging.getLogger(__name__)
MARKER_VERSION: Final = 1
#: Free bytes that a reset needs besides the state itself: marker, manifest, some slack.
_SMALL_FILES: Final = SPARE_SPACE


@dataclass(frozen=True, slots=True, kw_only=True)
class ResetPlan:
    """Description of a reset to install. Sizes are in bytes."""

    term: Term  # of the leader that sent it
    base: Manifest
    state_index: LogIndex  # last entry in the state; invariant: at or above the base
    state_size: int

    @property
    def base_index(self) -> LogIndex:
        """Index of the committed entry just before the new log."""
        return LogIndex(self.base.first_index - 1)


InstallState = Callable[[Path, ResetPlan], None]
"""Durably replaces the state machine's files by the received state. Must be repeatable: a crash
repeats it.
"""


def _folder(folders: LogFolders) -> Path:
    return folders.data / "reset"


def _state_path(folders: LogFolders) -> Path:
    return _folder(folders) / "state"


def _marker_path(folders: LogFolders) -> Path:
    return _folder(folders) / "marker"


# --- while the node runs ------------------------------------------------------------------------------------
def check_space(files: FileSystem, folders: LogFolders, segment_size: int, plan: ResetPlan) -> None:
    """Check that there is room for the state, and for the new log in place of the old one.

    Raises: DiskFullError.
    """
    available = files.disk_use(folders.data).available
    old_segments = len([name for name in files.list_directory(folders.segments) if name.isdecimal()])
    file_size = segment_size + TRAILER_SIZE
    # The state is on disk twice for a moment. By the second time the old log is gone.
    after = available + old_segments * file_size - 2 * plan.state_size
    if min(available - plan.state_size, after - file_size) < _SMALL_FILES:
        needed = (
            max(plan.state_size, 2 * plan.state_size + file_size - old_segments * file_size) + _SMALL_FILES
        )
        raise DiskFullError(
            f"{folders.data} has {available:,} bytes free, but fetching the leader's state needs {needed:,}: "
            "this node cannot catch up. Free space on that disk; it is tried again by itself"
        )


def open_staging(files: FileSystem, folders: LogFolders) -> File:
    """Return a new file for the incoming state. Drops the file of an earlier attempt. Raises: OSError."""
    discard_staging(files, folders)
    files.make_directory(_folder(folders))
    return files.open(_state_path(folders), create=True)


def discard_staging(files: FileSystem, folders: LogFolders) -> None:
    """Drop an incoming state that is unwanted or incomplete. Raises: OSError."""
    assert not files.exists(_marker_path(folders)), "a decision is never dropped"
    for name in files.list_directory(_folder(folders)):
        files.unlink(_folder(folders) / name)


def decide(files: FileSystem, folders: LogFolders, plan: ResetPlan) -> None:
    """Durably decide that the next opening installs the staged, durable state. Raises: OSError."""
    files.sync_directory(_folder(folders))
    files.sync_directory(folders.data)
    fields = asdict(plan)
    fields |= fields.pop("base")  # a flat record
    write_record(files, _marker_path(folders), "reset", MARKER_VERSION, fields)


# --- at the opening of the folder ---------------------------------------------------------------------------
def pending_reset(files: FileSystem, folders: LogFolders, node: str) -> ResetPlan | None:
    """Return the reset that is still to be installed, or None.

    Raises: DamagedFolderError, NewerFolderError, OSError.
    """
    path = _marker_path(folders)
    try:
        fields: dict[str, Any] = read_record(files, path, "reset", MARKER_VERSION)
        return ResetPlan(
            term=fields.pop("term"),
            state_index=fields.pop("state_index"),
            state_size=fields.pop("state_size"),
            base=Manifest(**fields),
        )
    except FileNotFoundError:
        return None
    except NewerFormatError as error:
        raise NewerFolderError(node, path, error) from None
    except (CorruptError, KeyError, TypeError):
        raise DamagedFolderError(
            f"{node} will not start: {path} is damaged, so whether its log was being replaced is not known. "
            "Fetch a clean copy from the other nodes: ledgermq broker --rejoin; nothing was changed."
        ) from None


def settle_reset(
    files: FileSystem,
    folders: LogFolders,
    node: str,
    segment_size: int,
    hard: HardStateFile,
    install_state: InstallState | None,
) -> None:
    """Finish a decided reset, or drop the remains of an undecided one. Call it before opening anything else.

    Raises: DamagedFolderError, NewerFolderError, DiskFullError, OSError, and what `install_state` raises.
    """
    if files.exists(_folder(folders)):
        # A killed process may have made or removed the marker only in the page cache. What this run sees
        # decides whether the old log is deleted or the new one grows. A power cut must not bring the other
        # answer back (P17).
        files.sync_directory(_folder(folders))
    plan = pending_reset(files, folders, node)
    if plan is None:
        discard_staging(files, folders)
        return
    if install_state is None:
        raise DamagedFolderError(
            f"{node} will not start: its log is being replaced by the leader's ({_marker_path(folders)}), "
            "which only a broker node can finish. Start it with: ledgermq broker; nothing was changed."
        )
    try:
        _install(files, folders, node, segment_size, plan, hard, install_state)
    except OSError as error:
        if not is_full(error):
            raise
        raise DiskFullError(
            f"{node} will not start: its disk is full, and the state of {plan.state_size:,} bytes that the "
            f"leader sent is not installed yet ({folders.data}). Free space, then start it again; nothing is "
            "lost."
        ) from None


def _install(
    files: FileSystem,
    folders: LogFolders,
    node: str,
    segment_size: int,
    plan: ResetPlan,
    hard: HardStateFile,
    install_state: InstallState,
) -> None:
    _log.warning(
        "reset: installing the leader's state node=%s base_index=%d state_index=%d bytes=%d",
        node, plan.base_index, plan.state_index, plan.state_size,
    )  # fmt: skip
    for name in files.list_directory(folders.digests):
        files.unlink(folders.digests / name)
    for folder in (folders.indexes, folders.segments):
        for name in files.list_directory(folder):
            files.unlink(folder / name)
        # An old segment that reappears after a power cut would look like one of the new log.
        files.sync_directory(folder)
    install_state(_state_path(folders), plan)
    create_segment(files, folders.segments, plan.base.first_offset, segment_size)
    write_manifest(files, folders.manifest, plan.base)
    hard.write(_after(hard.state, plan))
    make_ballast(files, folders.ballast)
    files.unlink(_marker_path(folders))
    # From here on the new log may grow: the reset must never be installed again.
    files.sync_directory(_folder(folders))
    discard_staging(files, folders)


def _after(state: DurableState, plan: ResetPlan) -> DurableState:
    """Return the hard state after the reset.

    Promises stay; what it says about the log now describes the new log.
    """
    hard = state.hard
    if hard.term < plan.term:
        # The node knew of the term but has sent nothing in it yet: its messages wait for this record (P2).
        hard = HardState(plan.term, None, hard.commit_hint, hard.is_voter)
    return replace(
        state,
        hard=replace(hard, commit_hint=plan.base_index),
        floor_index=plan.base_index,
        floor_term=plan.base.prev_term,
        clean_stop=False,
        cut_turn=0,
        cut_offset=0,
    )
