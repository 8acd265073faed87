"""`python -m ledgermq.broker.restore`: creates the folders of a new broker group from dumps.

The dumps are read as one log (proto/dumped_log.py). Every entry is verified while it is copied, and again in
the new folders, as at a start. The result is like that of `ledgermq cluster recover`: first members of a new
broker group with the same log, which works once all of them have met.

Owns: the choice of the dump and of the last entry, and the output for the operator.
Must not: leave anything under the requested name before all of it is complete and durable (everything is
created in a folder beside it, and renamed).
Exit codes: 0 done or shown · 1 refused, with one sentence on stderr · 2 wrong flags.
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Final

from ledgermq.proto.dumped_log import DumpedLog, NodeLog, Position, UnusableDumpError, find_logs
from ledgermq.proto.entry import EntryHeader, EntryKind
from ledgermq.raft.disk.files import LockedError, RealFileSystem
from ledgermq.raft.errors import RaftError
from ledgermq.raft.folder.group_recovery import clone_folder, inspect, restore_folder, stopped_folder
from ledgermq.raft.folder.restored_folder import FolderPlan, FolderWriter, space_of_log
from ledgermq.raft.log.identity import Identity, Manifest
from ledgermq.raft.types import LogIndex, NodeId, Term

from .backup.history import LogHistory
from .checkpoint.layout import restore_state
from .checkpoint.store import CheckpointStore
from .checkpoint.transfer import install_state, staged_snapshot
from .config import check_name, split_address
from .errors import BrokerError
from .reading.consume_queue_files import ConsumeQueueFiles
from .recover import make_durable, say
from .state.consume_queue import UNIT_SIZE

EXIT_REFUSED: Final = 1
RECORD: Final = "restored.json"
_WORK: Final = ".restoring"
_MARK: Final = "restore.lock"
_SHOWN_EVENTS: Final = 20
_DEFAULT_RETENTION_MS: Final = 72 * 3_600_000


class RestoreError(BrokerError):
    """Nothing was restored, and no folder was created. The text says why, and names the remedy."""


@dataclass(frozen=True, slots=True)
class Limit:
    """Last entry to restore. Both None: restore all entries."""

    index: int | None = None  # of the last entry
    time_ms: int | None = None  # log time; the last entry written until then

    def is_passed(self, index: int, timestamp: int) -> bool:
        """Tell whether this entry, written at `timestamp`, and all behind it are left out."""
        if self.index is not None and index > self.index:
            return True
        return self.time_ms is not None and timestamp > self.time_ms


@dataclass(slots=True)
class Survey:
    """What was read."""

    history: LogHistory
    end: Position
    last: EntryHeader | None = None
    first_timestamp: int = 0
    limited: bool = False  # the limit was met; else the dumps ended
    problems: list[str] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Made:
    """What was restored, and as which broker group."""

    found: Survey
    identity: Identity


@dataclass(frozen=True, slots=True)
class Target:
    """What is to be made."""

    data: Path
    cluster: str
    broker_group: str
    nodes: dict[str, str]  # name -> host:port of its Raft port, "" when it was not told

    @property
    def work(self) -> Path:
        return self.data.with_name(self.data.name + _WORK)


def main(arguments: Sequence[str] | None = None) -> int:
    """Show dumps, or restore from them; return the exit code."""
    options = _parser().parse_args(arguments)
    limit = Limit(options.to_index, options.to_time)
    try:
        with DumpedLog(find_logs(options.dumps)) as dumped:
            if options.show:
                found = survey(dumped, choose_base(dumped, limit), limit)
                say(found_facts(dumped, found) if options.json else describe(dumped, found))
            else:
                target = _target(options, dumped)
                made = restore(dumped, limit, target)
                say(made_facts(dumped, target, made) if options.json else report(dumped, target, made))
    except (UnusableDumpError, BrokerError, RaftError, OSError, ValueError) as error:
        sys.stderr.write(f"error: {error}\n")
        return EXIT_REFUSED
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="ledgermq restore", allow_abbrev=False)
    parser.add_argument("dumps", type=Path, nargs="+", metavar="DUMPS", help="what ledgermq dump wrote")
    parser.add_argument("--data", type=Path, help="folder to make; one sub-folder per node")
    parser.add_argument("--to-index", type=int, help="the last entry to keep")
    parser.add_argument(
        "--to-time", type=int, metavar="MS", help="keep what was written until then, ms since 1970"
    )
    parser.add_argument("--nodes", default="", metavar="NAME[=HOST:PORT],...", help="default: as in the dump")
    parser.add_argument("--group", default="", help="name of the broker group; default: as in the dump")
    parser.add_argument("--cluster", default="", help="name of the cluster; default: as in the dump")
    parser.add_argument("--show", action="store_true", help="only show what the dumps hold")
    parser.add_argument("--json", action="store_true", help="print JSON for programs")
    return parser


def _target(options: argparse.Namespace, dumped: DumpedLog) -> Target:
    """Return what was asked for. Raises: RestoreError, ValueError."""
    if options.data is None:
        raise RestoreError("--data is missing. Name the folder to make: ledgermq restore DUMPS --data DIR")
    manifest = dumped.logs[0].manifest
    nodes: dict[str, str] = {}
    for part in options.nodes.split(",") if options.nodes else sorted(manifest.voters):
        name, _, address = part.strip().partition("=")
        check_name(name)
        if address:
            split_address(address)
        if name in nodes:
            raise RestoreError(f"--nodes names {name} twice; every node has a name of its own")
        nodes[name] = address
    cluster, broker_group = options.cluster or manifest.cluster, options.group or manifest.group
    return Target(options.data.absolute(), check_name(cluster), check_name(broker_group), nodes)


# --- reading --------------------------------------------------------------------------------------------
def choose_base(dumped: DumpedLog, limit: Limit) -> NodeLog:
    """Return the dump from which to start: of those that reach furthest, the one that begins earliest.

    Raises: RestoreError.
    """
    able = [log for log in dumped.logs if log.manifest.is_restorable]
    if not able:
        raise RestoreError(
            "retention had deleted the beginning of the log when it was dumped, and these dumps do not hold "
            "the state that stands for it: an older version made them, or the node could not write it (its "
            "log says why). Their messages can be read: ledgermq message export"
        )
    wanted = [log for log in able if not limit.is_passed(_begin_index(log), _begin_time(dumped, log, limit))]
    if not wanted:
        earliest = min(map(_begin_index, able))
        what = "entry" if limit.index is not None else "time"
        raise RestoreError(
            f"these dumps can be restored to entry {earliest:,} and later ones: their state is that after "
            f"it. Add an older dump of this broker group, or name a later {what}"
        )
    return max(wanted, key=lambda log: (_reach(dumped, log), -_begin_index(log)))


def _begin_index(log: NodeLog) -> int:
    state = log.manifest.state
    return state.index if state is not None and log.manifest.first_index > 1 else 0


def _begin_time(dumped: DumpedLog, log: NodeLog, limit: Limit) -> int:
    """Return the log time (ms) of the entry whose state a dump holds; 0: not needed, or unknown."""
    if limit.time_ms is None or not _begin_index(log):
        return 0
    if log.base.timestamp > limit.time_ms:
        return log.base.timestamp
    found = (header.timestamp for header, _ in dumped.entries(log.base) if header.index >= _begin_index(log))
    return next(found, 0)


def _reach(dumped: DumpedLog, base: NodeLog) -> int:
    """Return the physical offset up to which the dumps continue a dump without a gap."""
    end = base.manifest.end_offset
    for log in sorted(dumped.logs, key=lambda log: log.manifest.first_offset):
        if log.manifest.first_offset <= end:
            end = max(end, log.manifest.end_offset)
    return end


def survey(dumped: DumpedLog, base: NodeLog, limit: Limit, writer: FolderWriter | None = None) -> Survey:
    """Read and verify the log from a dump's start to the limit; copy it to `writer`. Raises: OSError."""
    history, begin = LogHistory(), base.base
    if _begin_index(base):
        state = restore_state(staged_snapshot(RealFileSystem(), _state_path(base)))
        history = LogHistory(state.topics, state.groups, state.applied_index)
    found = Survey(history, begin)
    for header, raw in dumped.entries(begin):
        if header.kind is not EntryKind.FILLER:
            if limit.is_passed(header.index, header.timestamp):
                found.limited = True
                break
            found.first_timestamp = found.first_timestamp or header.timestamp
            found.last = header
            history.take(header, raw)
        found.end = found.end.after(header)
        if writer is not None:
            writer.append(header, raw)
    found.limited = found.limited or (limit.index is not None and found.end.index >= limit.index)
    found.problems = _problems(dumped, found, limit, _begin_index(base))
    return found


def _problems(dumped: DumpedLog, found: Survey, limit: Limit, begin_index: int) -> list[str]:
    """Return the reasons why the surveyed log cannot be restored, one sentence each."""
    end, reading = found.end.index, dumped.reading
    disputed = {dispute.log.folder: (dispute.log, dispute.index) for dispute in reading.disputes}
    if found.last is not None:
        disputed = {log.folder: (log, end) for log in dumped.others_than(found.last)} | disputed
    problems = [_dispute(dumped.logs[0], log, index) for log, index in disputed.values()]
    if found.last is None:
        problems.append("there is no entry to restore: all were written later, or the dumps are empty")
    elif end < begin_index:
        problems.append(
            f"these dumps can be restored to entry {begin_index:,} and later ones, and the last one until "
            f"then is {end:,}. Add an older dump of this broker group, or name a later time"
        )
    elif not found.limited and reading.stopped:
        problems.append(
            f"{reading.stopped}. To restore what stands before it: --to-index {end}. A dump of another node"
            " may have it"
        )
    elif limit.index is not None and end < limit.index:
        problems.append(
            f"the dumps end at entry {end:,}, before entry {limit.index:,}. Leave --to-index out, or"
            " correct it"
        )
    return problems


def _dispute(first: NodeLog, other: NodeLog, index: int) -> str:
    """Return what two dumps that hold different logs have to do with each other, and which to name."""
    differ = (
        f"the dumps disagree: {other.folder} holds another entry {index:,}, or others before it, than"
        f" {first.folder}."
    )
    ids = {log.manifest.group_id for log in (first, other)}
    if len(ids) > 1 and 0 not in ids:
        return (
            f"{differ} One was made before this broker group was restored or recovered, the other one after "
            f"it (ids {first.manifest.group_id:016x} and {other.manifest.group_id:016x}): name only dumps of "
            "the same id"
        )
    return (
        f"{differ} That is never so in a broker group that is well: run ledgermq check on them, and then "
        "restore from the dump that is right by naming only its folder"
    )


# --- showing --------------------------------------------------------------------------------------------
def describe(dumped: DumpedLog, found: Survey) -> list[str]:
    """Return lines that describe the dumps, and the changes to topics and consumer groups."""
    lines = []
    for log in dumped.logs:
        m = log.manifest
        whole = "" if m.is_restorable else ", cannot be restored (no state)"
        lines.append(
            f"{m.node:<8} entries {m.first_index:,} to {log.last[1]:,}, committed to {m.commit_index:,}, "
            f"dumped at log time {_time(m.log_time_ms)}{whole}   {log.folder}"
        )
    lines += ["", f"verified: up to entry {found.end.index:,}{_written(found.last)}"]
    lines += [f"problem: {problem}" for problem in found.problems]
    if damaged := _damaged_nodes(dumped):
        places = len(dumped.reading.damage)
        lines.append(f"damaged in {places} places of {', '.join(damaged)}, whole in another dump")
    events = found.history.events[-_SHOWN_EVENTS:]
    lines += [
        "",
        "what people did (the newest last):" if events else "no topic or consumer group was changed",
    ]
    lines += [f"  entry {each.index:>12,}  {_time(each.timestamp)}  {each.what}" for each in events]
    if losses := [each for each in events if each.is_loss]:
        lines += ["", f"To restore what was before {losses[-1].what}: --to-index {losses[-1].index - 1}"]
    return lines


def found_facts(dumped: DumpedLog, found: Survey) -> dict[str, object]:
    """Return the same for programs. Times are ms since 1970."""
    events = found.history.events[-_SHOWN_EVENTS:]
    return {
        "dumps": [
            {
                **log.manifest.summary(),
                "folder": str(log.folder),
                "last_index": log.last[1],
                "log_time_ms": log.manifest.log_time_ms,
            }
            for log in dumped.logs
        ],
        **_verified(dumped, found),
        "problems": found.problems,
        "events": [
            {"index": each.index, "time_ms": each.timestamp, "what": each.what, "loss": each.is_loss}
            for each in events
        ],
    }


def _verified(dumped: DumpedLog, found: Survey) -> dict[str, object]:
    return {
        "last_index": found.end.index,
        "last_term": 0 if found.last is None else found.last.term,
        "last_time_ms": 0 if found.last is None else found.last.timestamp,
        "damaged_nodes": _damaged_nodes(dumped),
    }


def _damaged_nodes(dumped: DumpedLog) -> list[str]:
    """Return whose dumps are damaged in places where another one is whole."""
    return sorted({log.manifest.node for log, _ in dumped.reading.damage})


def _written(last: EntryHeader | None) -> str:
    return "" if last is None else f" of term {last.term:,}, written {_time(last.timestamp)}"


def _time(timestamp_ms: int) -> str:
    try:
        return f"{datetime.fromtimestamp(timestamp_ms / 1000).astimezone():%Y-%m-%d %H:%M:%S %Z}"
    except (OverflowError, ValueError, OSError):
        return f"{timestamp_ms} ms"


# --- making ---------------------------------------------------------------------------------------------
def restore(dumped: DumpedLog, limit: Limit, target: Target) -> Made:
    """Create the folders; return their contents.

    Raises: RestoreError, BrokerError, RaftError, OSError; then nothing is at `target.data`.
    """
    base = choose_base(dumped, limit)
    files = RealFileSystem()
    with _work_folder(target, files):
        _check_space(dumped, base, target, files)
        first, *others = target.nodes
        found = _make_first(dumped, base, limit, target, first, files)
        with stopped_folder(target.work / first, files) as folder:
            survivor = inspect(folder)
            if (survivor.last_index, survivor.last_crc) != (found.end.index, _crc(found)):
                raise RestoreError("what was written is not what was read. Check the disk, then run it again")
            made = restore_folder(folder, survivor)
        for name in others:
            shutil.copytree(target.work / first, target.work / name)
            make_durable(target.work / name)
            with stopped_folder(target.work / name, files) as folder:
                clone_folder(folder, NodeId(name), inspect(folder))
        _write_record(dumped, target, found, made)
        _give_name(target, files)
    return Made(found, made)


def _crc(found: Survey) -> int:
    return found.last.crc if found.last is not None else found.end.crc


@contextmanager
def _work_folder(target: Target, files: RealFileSystem) -> Iterator[None]:
    """Create the folder beside the target; remove it if the work does not finish. Raises: RestoreError."""
    data, work = target.data, target.work
    if data.exists() and (not data.is_dir() or any(data.iterdir())):
        raise RestoreError(f"{data} is there and not empty. Name another folder; nothing was changed.")
    if work.exists() and not (work / _MARK).exists():
        raise RestoreError(
            f"{work} is in the way, and no unfinished restore. Move it away; nothing was changed."
        )
    work.mkdir(parents=True, exist_ok=True)
    try:
        lock = files.lock(work / _MARK)
    except LockedError as error:
        raise RestoreError(f"another restore to {data} is under way ({error.strerror})") from None
    try:
        for path in work.iterdir():  # of one that was killed
            if path.name != _MARK:
                shutil.rmtree(path) if path.is_dir() else path.unlink()
        yield
    finally:
        lock.release()
        if work.exists():
            shutil.rmtree(work, ignore_errors=True)


def _check_space(dumped: DumpedLog, base: NodeLog, target: Target, files: RealFileSystem) -> None:
    """Raises: RestoreError."""
    m = base.manifest
    log = (
        space_of_log(_manifest(base), _reach(dumped, base), m.segment_size) + m.segment_size
    )  # one is prepared at the start
    state = 0 if m.state is None else m.file_sizes.get(m.state.path, 0)
    queues = max(sum(q.end - q.begin for q in each.manifest.queues) for each in dumped.logs) * UNIT_SIZE
    needed = len(target.nodes) * (log + state + queues)
    available = files.disk_use(target.work).available
    if available < needed:
        raise RestoreError(
            f"{target.work.parent} has {available:,} bytes free, {len(target.nodes)} nodes need up to "
            f"{needed:,}. Name a folder on a larger disk, or fewer nodes (--nodes n1; the others can start "
            "empty with --rejoin)"
        )


def _make_first(
    dumped: DumpedLog, base: NodeLog, limit: Limit, target: Target, name: str, files: RealFileSystem
) -> Survey:
    """Make the folder of a node of the dumped broker group. Raises: RestoreError, BrokerError, OSError."""
    data, m = target.work / name, base.manifest
    plan = FolderPlan(
        cluster_id=target.cluster,
        group=target.broker_group,
        node_id=NodeId(name),
        members=[NodeId(node) for node in target.nodes],
        segment_size=m.segment_size,
        base=_manifest(base),
        replaced_group_id=max(
            dumped.logs, key=lambda log: len(log.manifest.former_group_ids)
        ).manifest.group_id,
    )
    writer = FolderWriter(data, files, plan)
    try:
        writer.begin()
        found = survey(dumped, base, limit, writer)
        if found.problems:
            raise RestoreError(f"{found.problems[0]}; nothing was restored.")
        if state_index := _begin_index(base):
            store = CheckpointStore(
                files, data / "checkpoint", ConsumeQueueFiles(files, data / "consumequeue")
            )
            install_state(files, store, _state_path(base), state_index, m.first_index - 1)
        writer.finish()
    finally:
        writer.close()
    return found


def _state_path(log: NodeLog) -> Path:
    assert log.manifest.state is not None
    return log.folder / log.manifest.state.path


def _manifest(log: NodeLog) -> Manifest:
    base = log.base
    return Manifest(
        first_index=LogIndex(base.index + 1),
        first_offset=base.offset,
        prev_term=Term(base.term),
        prev_crc=base.crc,
        prev_timestamp=base.timestamp,
    )


def _write_record(dumped: DumpedLog, target: Target, found: Survey, made: Identity) -> None:
    """Say beside the folders where they come from."""
    (target.work / RECORD).write_text(json.dumps(_record(dumped, target, found, made), indent=1) + "\n")


def _record(dumped: DumpedLog, target: Target, found: Survey, made: Identity) -> dict[str, object]:
    return {
        "format": "ledgermq-restored",
        "format_version": 1,
        "cluster": target.cluster,
        "group": target.broker_group,
        "group_id": f"{made.group_id:016x}",
        "nodes": target.nodes,
        "segment_size": made.segment_size,
        "last_index": found.end.index,
        "log_time_ms": found.end.timestamp,
        "dumps": [str(log.folder) for log in dumped.logs],
    }


def _give_name(target: Target, files: RealFileSystem) -> None:
    """Rename the folders into place, all at once."""
    make_durable(target.work)
    files.unlink(target.work / _MARK)
    try:
        target.work.rename(target.data)
    except OSError as error:
        raise RestoreError(
            f"{target.work} cannot be renamed to {target.data} ({error.strerror}). Name a folder that is not "
            "there, on one file system with the folder that it is in"
        ) from None
    files.sync_directory(target.data.parent)


def report(dumped: DumpedLog, target: Target, made: Made) -> list[str]:
    """Return lines that describe the result, what is missing in it, and how to start it."""
    found, identity = made.found, made.identity
    left_out, unconfirmed = _left_out(dumped, found), _unconfirmed(dumped, found)
    lines = [
        f"broker group {target.broker_group} of cluster {target.cluster} is restored in {target.data}: up to "
        f"entry {found.end.index:,}{_written(found.last)}, broker group id {identity.group_id:016x}, all "
        "verified.",
    ]
    if left_out:
        lines.append(f"Left out: {left_out:,} entries behind it.")
    if unconfirmed:
        lines.append(
            f"{unconfirmed:,} entries at its end may never have been confirmed to a client; they count from"
            " now on."
        )
    if damaged := _damaged_nodes(dumped):
        lines.append(
            f"Damage in the dump of {', '.join(damaged)} was passed by; another dump was whole there."
        )
    now_ms = datetime.now().timestamp() * 1000
    if found.first_timestamp and now_ms - found.first_timestamp > _DEFAULT_RETENTION_MS:
        hours = int((now_ms - found.first_timestamp) / 3_600_000) + 24
        lines.append(
            f"RETENTION: its first message is of {_time(found.first_timestamp)}. Nodes delete what is older "
            f"than retention_hours (72): to keep it all, set retention_hours = {hours} before the first "
            "start."
        )
    return [*lines, *_next_steps(target, identity.segment_size)]


def made_facts(dumped: DumpedLog, target: Target, made: Made) -> dict[str, object]:
    """Return the same for programs. Times are ms since 1970."""
    return {
        **_record(dumped, target, made.found, made.identity),
        "data": str(target.data),
        **_verified(dumped, made.found),
        "first_time_ms": made.found.first_timestamp,
        "entries_left_out": _left_out(dumped, made.found),
        "entries_perhaps_never_confirmed": _unconfirmed(dumped, made.found),
    }


def _left_out(dumped: DumpedLog, found: Survey) -> int:
    return max(0, dumped.last_index - found.end.index)


def _unconfirmed(dumped: DumpedLog, found: Survey) -> int:
    """Return the number of entries at the end that no dump records as committed."""
    return max(0, found.end.index - max(dumped.commit_index, _begin_index(dumped.base)))


def _next_steps(target: Target, segment_size: int) -> list[str]:
    peers = ",".join(f"{name}={address or 'HOST:20911'}" for name, address in target.nodes.items())
    lines = ["Next: move each folder to its machine, and start every node once with all the others:"]
    for name in target.nodes:
        flags = f"--cluster {target.cluster} --group {target.broker_group} --node {name}"
        flags += f" --data {target.data / name}"
        many = f" --peers {peers}" if len(target.nodes) > 1 else ""
        lines.append(f"  ledgermq broker {flags} --segment-size {segment_size}{many} ...")
    lines.append(
        "It takes messages when all of its nodes have met once. Never run it beside the broker group that "
        "was dumped, under the same names and nameservers."
    )
    return lines


if __name__ == "__main__":
    sys.exit(main())
