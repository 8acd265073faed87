"""Bugs of retention and resets: in the core, the transfer, the installation.

Test-only. R1: what a reset decides; R2: what it transfers; R3: how it is installed; R4: what may be deleted.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import Any

from ledgermq.raft.core.machine import RaftCore
from ledgermq.raft.core.messages import AppendEntriesReply, Message
from ledgermq.raft.core.outputs import Role
from ledgermq.raft.core.progress import ProgressState
from ledgermq.raft.disk.files import File, FileSystem
from ledgermq.raft.folder import reset_install
from ledgermq.raft.folder.reset_install import ResetPlan
from ledgermq.raft.log.hard_state import DurableState
from ledgermq.raft.log.segment_keeper import LogFolders
from ledgermq.raft.reset import sender as reset_sender
from ledgermq.raft.reset.receiver import ResetReceiver

from .mutant_list import core_mutant, patch_mutant
from .retention import Retention

_install, _after = reset_install._install, reset_install._after


@core_mutant("R1, I14")
class SpeaksInTheMiddleOfAReset(RaftCore):
    """A follower that decided to give up its log goes on to vote and to acknowledge until it is started
    again.
    """

    def fall_silent(self, role: Role) -> None:
        if role is not Role.RESETTING:
            super().fall_silent(role)


@core_mutant("R1, C11")
class CountsAFollowerThatIsBeingReset(RaftCore):
    """The base that a follower refuses counts as acknowledged: it is going to have it in a moment."""

    def step(self, message: Message) -> None:
        super().step(message)
        leading = self.leading
        if leading is None or not isinstance(message, AppendEntriesReply) or message.term != self.term:
            return
        follower = leading.followers.get(message.from_)
        if follower is not None and follower.state is ProgressState.RESET and not message.success:
            follower.match_index = max(follower.match_index, message.reject_index)


async def _whatever_came(self: ResetReceiver, call: Any, plan: ResetPlan, file: File) -> None:
    """Accept any frame that is not a chunk as the end of the state."""
    done = 0
    while (frame := await _next_frame(call)).WhichOneof("body") == "chunk" and done < plan.state_size // 2:
        await self._on_disk(partial(file.pwritev, [frame.chunk.data], done))
        done += len(frame.chunk.data)
    await self._on_disk(file.fdatasync)


async def _next_frame(call: Any) -> Any:
    from ledgermq.raft.reset import receiver as reset_receiver

    return await reset_receiver._next(call, reset_receiver.CHUNK_TIMEOUT_S)


patch_mutant(
    "TakesAPartForTheState",
    "R2, I14",
    "A transfer that ended early counts as whole.",
    (ResetReceiver, "_receive", _whatever_came),
)


def _forget_the_note_first(files: FileSystem, folders: LogFolders, *others: Any) -> None:
    files.unlink(folders.data / "reset" / "marker")
    files.sync_directory(folders.data / "reset")
    with _skipping(files, folders.data / "reset" / "marker"):
        _install(files, folders, *others)


@contextmanager
def _skipping(files: Any, path: Any) -> Iterator[None]:
    """Unlink everything but one path, which is gone already."""
    real = files.unlink

    def unlink(other: Any) -> None:
        if other != path:
            real(other)

    files.unlink = unlink
    try:
        yield
    finally:
        del files.unlink


patch_mutant(
    "ForgetsTheNoteBeforeTheLogIsCut",
    "R3, I14",
    "The note of a reset is removed before the log is replaced: a crash leaves a mixture.",
    (reset_install, "_install", _forget_the_note_first),
)


def _forget_the_term(state: DurableState, plan: ResetPlan) -> DurableState:
    after = _after(state, plan)
    return replace(after, hard=replace(after.hard, term=plan.base.prev_term, voted_for=None))


patch_mutant(
    "TakesTheTermOfTheBase",
    "R3, P1",
    "After a reset the node is in the term of the entry before its log, not in its own.",
    (reset_install, "_after", _forget_the_term),
)


def _below_what_was_agreed(self: Retention) -> int:
    return self._life.state.log_start


def _below_what_is_covered(self: Retention) -> int:
    return min(self._life.state.log_start, self._life.checkpoints.floor)


patch_mutant(
    "DeletesAboveItsCheckpoint",
    "R4, I13",
    "Segments go as soon as the broker group agreed, whether or not this node's checkpoint covers them.",
    (Retention, "deletable_below", _below_what_was_agreed),
)
patch_mutant(
    "DeletesBeforeItsCheckpointKnows",
    "R4, I13",
    "Segments go when the checkpoint covers them, though it does not know yet that the log begins later "
    "(our own bug).",
    (Retention, "deletable_below", _below_what_is_covered),
)


def _offer_what_was_there(self: Any, state: Any) -> Any:
    head = _head(self, state)
    head.base_index -= 1
    return head


_head = reset_sender.ResetSender._head
patch_mutant(
    "OffersAnotherBaseThanItsLogHas",
    "R2, D8",
    "The base that is sent is one entry off from where the leader's log begins.",
    (reset_sender.ResetSender, "_head", _offer_what_was_there),
)
