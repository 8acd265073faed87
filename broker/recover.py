"""`python -m ledgermq.broker.recover`: recovers a broker group without a majority from a survivor's folder.

Owns: the dialogue with the operator.   Must not: change the folder before the operator typed the name of the
broker group; know its file formats (raft/folder/group_recovery.py does).
Exit codes: 0 done or shown · 1 refused, with one sentence on stderr · 2 wrong flags.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Sequence
from datetime import datetime, timedelta
from pathlib import Path
from typing import Final

from ledgermq.proto.foreign_text import safe_json
from ledgermq.raft.disk.files import RealFileSystem
from ledgermq.raft.errors import RaftError
from ledgermq.raft.folder.group_recovery import (
    StoppedFolder,
    Survivor,
    check_cloneable,
    check_recoverable,
    clone_folder,
    inspect,
    recover_folder,
    stopped_folder,
)
from ledgermq.raft.types import NodeId

EXIT_REFUSED: Final = 1
_MIB: Final = 1 << 20


class NotConfirmedError(Exception):
    """The operator did not confirm the loss of data. Nothing was changed."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Show, recover or make a clone; return the exit code."""
    parser = argparse.ArgumentParser(prog="ledgermq cluster recover", allow_abbrev=False)
    parser.add_argument("--data", type=Path, required=True, help="data folder of a stopped node")
    parser.add_argument("--show", action="store_true", help="only show what the folder holds")
    parser.add_argument("--clone-for", default="", metavar="NODE", help="make this copy into NODE's folder")
    parser.add_argument(
        "--yes-lose-data", default="", metavar="GROUP", help="the broker group's name, for scripts"
    )
    parser.add_argument("--json", action="store_true", help="print JSON for programs")
    options = parser.parse_args(arguments)
    try:
        with stopped_folder(options.data, RealFileSystem()) as folder:
            if options.show:
                survivor = _inspect(folder)
                say(facts(survivor, folder) if options.json else describe(survivor, _now()))
            elif options.clone_for:
                _clone(folder, NodeId(options.clone_for), options.json)
            else:
                _recover(folder, options.yes_lose_data, options.json)
    except (RaftError, NotConfirmedError, OSError) as error:
        sys.stderr.write(f"error: {error}\n")
        return EXIT_REFUSED
    return 0


def _recover(folder: StoppedFolder, name_given: str, as_json: bool) -> None:
    check_recoverable(folder)
    survivor = _inspect(folder)
    identity = folder.identity
    if not as_json:
        say([*describe(survivor, _now()), "", *consequences(survivor), ""])
    confirm(identity.group, name_given)
    make_durable(folder.data)
    made = recover_folder(folder, survivor)
    others = [node for node in sorted(made.members) if node != made.node_id]
    say(
        {**facts(survivor, folder), "new_group_id": f"{made.group_id:016x}", "to_clone": others}
        if as_json
        else [
            f"broker group {made.group} begins anew in {folder.data}: broker group id {made.group_id:016x},"
            f" {_count(survivor.last_index, 'entry', 'entries')}.",
            f"Do not start {made.node_id} yet. Next, for each of {', '.join(others)}:",
            f"  1. copy {folder.data} to its machine, for example: rsync -a {folder.data}/ HOST:DATA/",
            "  2. there: ledgermq cluster recover --data DATA --clone-for NODE",
            "Then start all nodes with their usual flags: the broker group works when all of them have met.",
        ]
    )


def _clone(folder: StoppedFolder, node_id: NodeId, as_json: bool) -> None:
    check_cloneable(folder, node_id)
    survivor = _inspect(folder)
    make_durable(folder.data)  # a copy need not have reached the disk yet
    made = clone_folder(folder, node_id, survivor)
    say(
        {**facts(survivor, folder), "cloned_for": node_id}
        if as_json
        else [
            f"{folder.data} is the folder of {node_id} now: "
            f"{_count(survivor.last_index, 'entry', 'entries')}, equal to those of the recovered folder "
            f"(broker group id {made.group_id:016x}).",
            f"Next: start {node_id} with its usual flags when every node has its folder.",
        ]
    )


def _inspect(folder: StoppedFolder) -> Survivor:
    size = sum(entry.stat().st_size for entry in os.scandir(folder.folders.segments))
    if size > 256 * _MIB and sys.stderr.isatty():
        sys.stderr.write(f"reading and verifying {size // _MIB:,} MiB ...\n")
    return inspect(folder)


def describe(survivor: Survivor, now: datetime) -> list[str]:
    """Return lines that describe a folder, and how to choose between several. `now` has a time zone."""
    identity, first, last = survivor.identity, survivor.first_index, survivor.last_index
    behind = _count(last - survivor.commit_hint, "entry", "entries")
    nodes = [f"{node} (this one)" if node == identity.node_id else node for node in sorted(identity.members)]
    rows = [
        ("node", f"{identity.node_id} of broker group {identity.group}, cluster {identity.cluster_id}"),
        ("broker group id", f"{identity.group_id:016x}" if identity.group_id else "never known"),
        ("term", f"{survivor.term:,}"),
        ("last entry", _last_entry(survivor, now)),
        ("committed", f"at least to entry {survivor.commit_hint:,}; {behind} behind it"),
        ("log", f"entries {first:,} to {last:,}, {survivor.log_bytes:,} bytes, all verified"),
        ("nodes", ", ".join(nodes)),
    ]
    if survivor.torn_bytes:
        rows.append(
            ("torn write", f"{survivor.torn_bytes:,} bytes behind the last entry: never finished, cut off")
        )
    if not survivor.votes:
        rows.append(("warning", _why_no_vote(survivor)))
    if identity.recovery is not None:
        rows.append(("recovered", _how_recovered(survivor)))
    return [
        *(f"{name:<12} {text}" for name, text in rows),
        "",
        "Did several nodes survive? Stop them, run this with --show on each, and recover from the one with"
        " the highest",
        "term of its last entry; among equal ones from the one with the highest last entry. It has the most.",
    ]


def facts(survivor: Survivor, folder: StoppedFolder) -> dict[str, object]:
    """Return the same for programs. Times are ms since 1970."""
    identity, recovery = survivor.identity, survivor.identity.recovery
    return {
        "folder": str(folder.data),
        "cluster": identity.cluster_id,
        "broker_group": identity.group,
        "group_id": f"{identity.group_id:016x}",
        "node": identity.node_id,
        "members": sorted(identity.members),
        "term": survivor.term,
        "first_index": survivor.first_index,
        "last_index": survivor.last_index,
        "last_term": survivor.last_term,
        "last_time_ms": survivor.last_timestamp,
        "committed_at_least_to": survivor.commit_hint,
        "log_bytes": survivor.log_bytes,
        "torn_bytes": survivor.torn_bytes,
        "warning": "" if survivor.votes else _why_no_vote(survivor),
        "recovered_from_group_id": "" if recovery is None else f"{recovery.replaced_group_id:016x}",
    }


def _last_entry(survivor: Survivor, now: datetime) -> str:
    if not survivor.last_timestamp:
        return "none: the log is empty"
    written = datetime.fromtimestamp(survivor.last_timestamp / 1000, now.tzinfo)
    return (
        f"{survivor.last_index:,} of term {survivor.last_term:,}, written {written:%Y-%m-%d %H:%M:%S %Z}"
        f" ({_age(now - written)})"
    )


def _age(age: timedelta) -> str:
    seconds = int(age.total_seconds())
    if seconds < 0:
        return "in the future: a clock is or was wrong"
    days, rest = divmod(seconds, 86_400)
    hours, rest = divmod(rest, 3600)
    parts = [(days, "d"), (hours, "h"), (rest // 60, "min"), (rest % 60, "s")]
    shown = [f"{number} {unit}" for number, unit in parts if number][:2]
    return f"{' '.join(shown) or '0 s'} ago"


def _why_no_vote(survivor: Survivor) -> str:
    if survivor.identity.recovery is not None and not survivor.identity.recovery.counted:
        return "this folder has not taken part in the recovered broker group yet"
    return (
        "this node was catching up, or lost what was not flushed, when it stopped: much may be missing here."
        " Prefer another survivor without this warning"
    )


def _how_recovered(survivor: Survivor) -> str:
    recovery = survivor.identity.recovery
    assert recovery is not None
    state = "it works as such" if recovery.counted else "its folder may be copied for the other nodes"
    replaced = f"from broker group id {recovery.replaced_group_id:016x}"
    return f"{replaced}, up to entry {recovery.last_index:,}; {state}"


def consequences(survivor: Survivor) -> list[str]:
    """Return in plain words what is lost and what changes when the broker group goes on from this folder."""
    node, members = survivor.identity.node_id, survivor.identity.members
    behind = _count(survivor.last_index - survivor.commit_hint, "entry", "entries")
    others = ", ".join(other for other in sorted(members) if other != node)
    text = f"""\
WHAT RECOVERING MEANS
* Lost for ever: messages, acknowledgements and offsets that were confirmed to clients by the other nodes
  and never reached {node}. This folder cannot tell whether there are any, or how many. Everything
  written after its last entry is gone.
* Made valid: {behind} at the end of this log may never have been confirmed to a client. They count from
  now on: a message whose sending failed may be delivered after all, an offset may be further than
  its client knew.
* The data folders of {others} as they are now can never be used with this broker group again: such a node is
  refused until it starts with a copy of this folder, or empty with --rejoin.
* Be sure that a majority of the broker group cannot come back. If it can, bring it back instead: then nothing
  is lost."""
    return text.splitlines()


def confirm(broker_group: str, name_given: str) -> None:
    """Ask for the broker group's name. Raises: NotConfirmedError."""
    if name_given:
        answer = name_given
    elif sys.stdin.isatty():
        sys.stdout.write(f"Type the broker group's name to go on ({broker_group}): ")
        sys.stdout.flush()
        answer = sys.stdin.readline().strip()
    else:
        raise NotConfirmedError(
            "it is not confirmed: there is no terminal to ask at. For scripts: --yes-lose-data "
            f"{broker_group}; nothing was changed."
        )
    if answer != broker_group:
        raise NotConfirmedError(
            f'"{answer}" is not the name of this broker group, which is {broker_group}; nothing was changed.'
        )


def make_durable(data: Path) -> None:
    """Flush every file of a folder and every name in it. Raises: OSError."""
    for folder, _, names in os.walk(data):
        for name in names:
            _fsync(Path(folder, name), os.O_RDONLY)
        _fsync(Path(folder), os.O_RDONLY | os.O_DIRECTORY)
    _fsync(data.resolve().parent, os.O_RDONLY | os.O_DIRECTORY)


def _fsync(path: Path, flags: int) -> None:
    fd = os.open(path, flags)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def _count(number: int, one: str, many: str) -> str:
    return f"{number:,} {one if number == 1 else many}"


def _now() -> datetime:
    return datetime.now().astimezone()


def say(found: list[str] | dict[str, object]) -> None:
    """Print lines for people, or facts for programs."""
    as_text = "\n".join(found) if isinstance(found, list) else safe_json(json.dumps(found, indent=2))
    sys.stdout.write(as_text + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
