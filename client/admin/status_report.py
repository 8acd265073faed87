"""Status report: evaluates the answers of nodes for `ledgermq cluster status`.

Owns: the verdict and its exit code, which view wins when nodes differ, the cells of the table.
Must not: do I/O, read clocks, print.
Invariant: the leader with the highest term is believed about the broker group; each node about itself.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from enum import IntEnum
from typing import Any, Final

from ledgermq.proto import admin_pb2 as pb
from ledgermq.proto import route_pb2

from ..durations import duration
from .log_ends import master_notes

#: The disk step (GetStatusResponse.disk_step) from which on a leader refuses messages.
REFUSING_STEP: Final = 3
#: State of a node whose hello the leader refuses.
REFUSED: Final = "refused"
#: State of a node that does not answer us while others regard it as connected: frozen, or unreachable for us.
NO_ANSWER: Final = "no answer"
#: A node that the leader heard within this time is alive, even if it does not answer us.
_HEARD_MS: Final = 1500
#: A larger difference between wall clock and log time is reported.
_CLOCK_LEANS_MS: Final = 1000
_SLEW: Final = 100  # log time is corrected by one part in this many
#: A disk fuller than this is reported, even if max_store_bytes is far away.
_DISK_NEARLY_FULL: Final = 0.85
COLUMNS = ("NODE", "ROLE", "ADDRESS", "DURABLE>", "COMMIT>", "BEHIND>", "FSYNC p99>", "DISK>", "")


class BrokerGroupVerdict(IntEnum):
    """State of a broker group. `exit_code` makes one of all broker groups."""

    HEALTHY = 0
    DEGRADED = 1
    NO_QUORUM = 2
    NO_ANSWER = 3

    @property
    def text(self) -> str:
        return self.name.replace("_", " ")


@dataclass(frozen=True, slots=True)
class NodeRow:
    """One node, as shown and as in `--json`. Unknown numbers are None.

    Fields named as in NodeStatus, or as in GetStatusResponse for the node's own answer, are copied from
    there.
    """

    node_id: str
    role: str
    address: str = ""
    durable_index: int | None = None
    commit_index: int | None = None
    behind_bytes: int | None = None
    fsync_p99_ms: float | None = None
    disk_used_ratio: float | None = None
    store_used_ratio: float | None = None  # of max_store_bytes, where that is set
    max_store_bytes: int = 0
    clock_offset_ms: int = 0  # its wall clock minus log time
    # What was repeatedly late, and the longer wait for a silent leader that follows; 0: not late, or not
    # asked.
    timer_lateness_ms: int = 0
    heartbeat_lateness_ms: int = 0
    election_timeout_ms: int = 0
    election_timeout_added_ms: int = 0
    state: str = ""
    # The repeated reading of its whole log, as the node reports it since its start; None: it was not asked.
    checked_bytes: int | None = None
    checked_passes: int | None = None
    damage_found: int | None = None
    damage_repaired: int | None = None
    damage_last: str = ""
    version: str = ""  # of LedgerMQ, as the node reports it
    heard_by_leader: bool = False  # within _HEARD_MS

    @property
    def is_silent(self) -> bool:
        """Whether neither we nor its leader hear it."""
        return self.state == NO_ANSWER and not self.heard_by_leader

    @property
    def is_well(self) -> bool:
        well = not self.state or (self.state == NO_ANSWER and self.heard_by_leader)
        return well and self.role in ("leader", "follower", "master", "slave")


@dataclass(frozen=True, slots=True)
class BrokerGroupReport:
    """One broker group: verdict, headline, rows, and advice.

    Fields named as in GetStatusResponse are copied from the answer that is believed, unless `report` sets
    them.
    """

    group: str
    verdict: BrokerGroupVerdict
    leader_id: str = ""
    term: int = 0
    term_age_ms: int = 0
    voters: int = 0
    voters_in_contact: int = 0
    flush: str = ""
    replication: str = ""
    master_id: str = ""  # "" without a master
    generation: int = 0
    rows: tuple[NodeRow, ...] = ()
    notes: tuple[str, ...] = ()
    cluster: str = ""
    log_begin: str = ""
    log_start_ms: int = 0  # when the first entry of the log was stored, ms since 1970; 0: unknown
    mode: str = "active"  # draining: takes no new messages; removed: left the cluster
    mode_since_ms: int = 0  # ms since 1970; 0: active

    def headline(self) -> str:
        """Return `BROKER GROUP g0   HEALTHY   leader n2   term 7 (3 m 12 s)   quorum 3/3   flush sync`."""
        text = self.verdict.text
        if self.master_id and self.verdict is BrokerGroupVerdict.NO_QUORUM:
            text = "TOO FEW SLAVES" if self.leader_id else "NO MASTER"
        parts = [f"BROKER GROUP {self.group}", text]
        if self.master_id:
            parts.append(f"master {self.master_id}" if self.leader_id else f"master {self.master_id} (away)")
        else:
            parts.append(f"leader {self.leader_id or '-'}")
        parts.append(f"term {self.term:,} ({duration(self.term_age_ms)})")
        if self.master_id:
            parts.append(f"replication {self.replication}")
        else:
            parts.append(f"quorum {self.voters_in_contact}/{self.voters}")
        if self.flush:
            parts.append(f"flush {self.flush}")
        if self.mode != "active":
            parts.append(self.mode.upper())
        return "   ".join(parts)

    def as_json(self) -> dict[str, object]:
        """Return plain values for `--json`, named as the fields of this class and of NodeRow."""
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        for name in ("verdict", "rows", "notes"):
            del values[name]
        return values | {
            "verdict": self.verdict.name.lower(),
            "exit_code": int(self.verdict),
            "notes": list(self.notes),
            "nodes": [asdict(row) for row in self.rows],
        }


@dataclass(slots=True)
class BrokerGroupAnswers:
    """Answers of one broker group. `members`: nodes that should exist, id → address shown."""

    group: str
    members: dict[str, str] = field(default_factory=dict)
    answers: dict[str, pb.GetStatusResponse] = field(default_factory=dict)
    others_answer: bool = False  # nodes of other broker groups of the cluster answer
    #: Nodes of another broker group of the same name, refused by the nameserver: "n1 at host:port".
    strangers: tuple[str, ...] = ()


def report(asked: BrokerGroupAnswers) -> BrokerGroupReport:
    """Judge one broker group from all answers."""
    if not asked.answers:
        rows = tuple(NodeRow(name, "unreachable", address) for name, address in sorted(asked.members.items()))
        return BrokerGroupReport(
            asked.group,
            BrokerGroupVerdict.NO_ANSWER,
            rows=rows,
            voters=len(rows),
            notes=(_nothing_answers(asked),),
        )
    leader = _leader(asked.answers.values())
    view = leader or max(asked.answers.values(), key=lambda answer: answer.term)
    rows = _rows(asked, view)
    in_contact = view.voters_in_contact if leader else 0
    voters = view.voters or len(rows)
    verdict, notes = _judge(view, leader, rows, voters, in_contact, _held_back_notes(asked.answers, leader))
    is_off = bool(asked.strangers) or any(each.disk_step > 1 for each in asked.answers.values())
    if verdict is BrokerGroupVerdict.HEALTHY and is_off:
        verdict = BrokerGroupVerdict.DEGRADED
    if asked.strangers:
        notes += (_strangers_note(asked),)
    if view.master_id:
        notes += (*master_notes(asked.answers, view, leads=leader is not None),)
    notes += (
        *_retention_notes(asked.answers, rows, leader),
        *_lateness_notes(rows, voters, leader),
        *_clock_notes(rows, leader),
        *_mode_notes(view),
    )
    judged = {
        "group": view.group or asked.group,
        "verdict": verdict,
        "leader_id": leader.node_id if leader else "",
        "voters": voters,
        "voters_in_contact": in_contact,
        "rows": _as_master_and_slaves(rows, view.master_id),
        "notes": notes,
        "log_begin": _log_begin(view),
        "mode": _mode(view),
    }
    return BrokerGroupReport(**_told(view, BrokerGroupReport) | judged)


def _told(
    answer: pb.GetStatusResponse | pb.NodeStatus, shown: type[BrokerGroupReport | NodeRow]
) -> dict[str, Any]:
    """Return the fields of an answer that `shown` has by the same name."""
    known = answer.DESCRIPTOR.fields_by_name
    return {field.name: getattr(answer, field.name) for field in fields(shown) if field.name in known}


def _strangers_note(asked: BrokerGroupAnswers) -> str:
    return (
        f'the nameserver refuses nodes of another broker group that is called "{asked.group}", too: '
        f"{', '.join(asked.strangers)}. No client is sent to them. Stop those that are not wanted; "
        "two broker groups need two names. "
        "See: docs/runbook.md"
    )


def _as_master_and_slaves(rows: tuple[NodeRow, ...], master_id: str) -> tuple[NodeRow, ...]:
    """Rename roles for a broker group with a master, except for nodes that are away or without a role."""
    if not master_id:
        return rows
    names = {"leader": "master", "follower": "slave"}
    return tuple(
        replace(
            row, role="master, does not lead" if row.role == "follower" else names.get(row.role, row.role)
        )
        if row.node_id == master_id
        else replace(row, role=names.get(row.role, row.role))
        for row in rows
    )


def exit_code(reports: Sequence[BrokerGroupReport]) -> int:
    """Return 0 healthy, 1 degraded, 2 no quorum, 3 nothing answers; the worst broker group decides."""
    answering = [each for each in reports if each.verdict is not BrokerGroupVerdict.NO_ANSWER]
    if not answering:
        return int(BrokerGroupVerdict.NO_ANSWER)
    return max(min(int(each.verdict), int(BrokerGroupVerdict.NO_QUORUM)) for each in reports)


def cells(row: NodeRow) -> tuple[str, ...]:
    """Return the texts of one row, in the order of `COLUMNS`."""
    behind = "-" if row.role in ("leader", "master") or row.behind_bytes is None else size(row.behind_bytes)
    return (
        row.node_id,
        row.role,
        row.address or "-",
        _number(row.durable_index),
        _number(row.commit_index),
        behind,
        "-" if row.fsync_p99_ms is None else f"{row.fsync_p99_ms:.1f} ms",
        _disk(row),
        row.state,
    )


def _disk(row: NodeRow) -> str:
    """Return how full the disk and, if limited, the log are; the fuller one first."""
    disk = None if row.disk_used_ratio is None else (row.disk_used_ratio, f"{row.disk_used_ratio:.0%}")
    if row.store_used_ratio is None:
        return disk[1].replace("%", " %") if disk else "-"
    store = (row.store_used_ratio, f"{row.store_used_ratio:.0%} of {size(row.max_store_bytes)}")
    parts = sorted((store, *([(disk[0], f"disk {disk[1]}")] if disk else [])), reverse=True)
    return ", ".join(text for _, text in parts).replace("%", " %")


def size(count: int) -> str:
    """Format a number of bytes: `0 B`, `18 MiB`."""
    value = float(count)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if value < 1024:
            return f"{value:.0f} {unit}"
        value /= 1024
    return f"{value:.1f} TiB"


def _number(value: int | None) -> str:
    return "-" if value is None else f"{value:,}"


def _leader(answers: Iterable[pb.GetStatusResponse]) -> pb.GetStatusResponse | None:
    leaders = [answer for answer in answers if answer.role == "leader"]
    return max(leaders, key=lambda answer: answer.term, default=None)


def _rows(asked: BrokerGroupAnswers, view: pb.GetStatusResponse) -> tuple[NodeRow, ...]:
    rows: dict[str, NodeRow] = {
        name: NodeRow(name, "unreachable", address) for name, address in asked.members.items()
    }
    for node in view.nodes:
        rows[node.node_id] = _row(node, rows.get(node.node_id), by_leader=view.role == "leader")
    for name, answer in asked.answers.items():
        own = next((node for node in answer.nodes if node.node_id == name), None)
        if own is not None and (name not in rows or rows[name].role == "unreachable" or answer is not view):
            rows[name] = _join(rows.get(name), _row(own, rows.get(name), by_leader=False))
        if name in rows:
            rows[name] = replace(
                rows[name],
                store_used_ratio=answer.disk_used_bytes / answer.max_store_bytes
                if answer.max_store_bytes
                else None,
                **_of_itself(answer),
            )
    for name in rows.keys() - asked.answers.keys():
        rows[name] = _unanswered(rows[name], led=view.role == "leader")
    return tuple(rows[name] for name in sorted(rows))


def _unanswered(row: NodeRow, *, led: bool) -> NodeRow:
    """Mark a node that did not answer, unless its state is worse. Without a leader, drop its numbers."""
    if row.role in ("unreachable", "unknown") or row.state.startswith(("repairing", REFUSED)):
        return row
    if led:
        return replace(row, state=NO_ANSWER)
    return replace(row, role="unknown", state=NO_ANSWER, durable_index=None, commit_index=None)


def _of_itself(answer: pb.GetStatusResponse) -> dict[str, Any]:
    """Return what a node reports only about itself, as fields of its row."""
    of_any = pb.NodeStatus.DESCRIPTOR.fields_by_name
    return {name: value for name, value in _told(answer, NodeRow).items() if name not in of_any}


def _row(node: pb.NodeStatus, known: NodeRow | None, *, by_leader: bool) -> NodeRow:
    unreachable = node.role in ("unreachable", "unknown")  # zeros would look like an empty disk
    judged = {
        "address": node.addresses.messaging_address or (known.address if known else ""),
        "durable_index": node.durable_index or (None if unreachable else 0),
        "commit_index": node.commit_index or (None if unreachable else 0),
        "behind_bytes": node.behind_bytes if by_leader and not unreachable else None,  # only leaders know
        "fsync_p99_ms": node.fsync_p99_ms or None,
        "disk_used_ratio": node.disk_used_ratio or None,
        "heard_by_leader": by_leader and not unreachable and node.last_contact_ms < _HEARD_MS,
    }
    return NodeRow(**_told(node, NodeRow) | judged | _log_check(node))


def _log_check(node: pb.NodeStatus) -> dict[str, Any]:
    """Return a node's report on its own log, as fields of its row."""
    if not node.HasField("log_check"):
        return {}
    check = node.log_check
    return {
        "checked_bytes": check.read_bytes,
        "checked_passes": check.passes,
        "damage_found": check.found,
        "damage_repaired": check.repaired,
        "damage_last": check.last,
    }


def _join(by_leader: NodeRow | None, own: NodeRow) -> NodeRow:
    """Join two rows: the node knows its disk best, the leader how far it is behind."""
    if by_leader is None:
        return own
    reachable = by_leader.role != "unreachable"
    return replace(
        own,
        address=own.address or by_leader.address,
        behind_bytes=by_leader.behind_bytes if reachable else own.behind_bytes,
        state=by_leader.state or own.state,
    )


def _judge(
    view: pb.GetStatusResponse,
    leader: pb.GetStatusResponse | None,
    rows: tuple[NodeRow, ...],
    voters: int,
    in_contact: int,
    held_back: Sequence[str],
) -> tuple[BrokerGroupVerdict, tuple[str, ...]]:
    """Return the verdict and, for each problem, a sentence with the next step."""
    notes: list[str] = []
    repairing = [row for row in rows if row.state.startswith("repairing")]
    silent = [row.node_id for row in rows if row.state == NO_ANSWER]
    missing = [
        row.node_id
        for row in rows
        if (row.role in ("unreachable", "unknown") or row.is_silent)
        and not row.state.startswith(("repairing", REFUSED))
    ]
    refused = [row for row in rows if row.state == REFUSED]
    notes += [f"{row.node_id} is {row.state}; it does not count until then" for row in repairing]
    notes += [_damage_note(row) for row in rows if row.damage_found]
    notes += held_back
    if leader is None or in_contact * 2 <= voters:
        needed = voters // 2 + 1
        start = _start(missing, silent)
        if view.master_id and not held_back:
            notes.append(
                f"no leader: the master {view.master_id} leads alone, and does not now. {start}. If it does "
                "not come back: ledgermq cluster promote NODE. See: docs/runbook.md"
            )
        elif not held_back:  # otherwise the reason is known
            notes.append(
                f"no leader: {needed} of {voters} voters must reach each other. {start}. See: docs/runbook.md"
            )
        if view.master_id or not held_back:  # else it may be new, or not have these nodes
            notes.append(
                "meanwhile pull and push consumers of ledgermq.client read what is committed; sends, leases "
                "and official clients wait, and get NO_QUORUM or HA_NOT_AVAILABLE"
            )
        return BrokerGroupVerdict.NO_QUORUM, tuple(notes)
    notes += _slaves_notes(leader, rows)
    if frozen := [row.node_id for row in rows if row.is_silent]:
        notes.append(
            f"{', '.join(frozen)} did not answer, and the leader has not heard them for a while either: "
            "stopped, hanging or cut"
            " off. Look at their processes, and restart what hangs. See: docs/runbook.md"
        )
    if in_contact < voters and not missing and not refused:
        notes.append(
            f"the leader hears {in_contact} of {voters} voters; it lasts a moment after a start or an "
            "election"
        )
    if missing := [name for name in missing if name not in silent]:
        notes.append(f"{', '.join(missing)} not reached. Start what is down. See: docs/runbook.md")
    if view.produce_refused:
        notes.append(f"produce is refused: {view.produce_refused_reason or 'see the metrics'}")
    if leader.slaves_in_contact < leader.slaves_needed:
        return BrokerGroupVerdict.NO_QUORUM, tuple(notes)
    well = all(row.is_well for row in rows) and in_contact == voters and not view.produce_refused
    return (BrokerGroupVerdict.HEALTHY if well else BrokerGroupVerdict.DEGRADED), tuple(notes)


def _start(missing: Sequence[str], silent: Sequence[str]) -> str:
    """Return what to do about nodes that are needed for a leader."""
    if not missing:
        return "If it lasts, read the nodes' logs"
    text = f"Start {', '.join(missing)}"
    if silent:
        text += (
            f" ({', '.join(silent)} did not answer: if it runs, it hangs or was stopped; look at its process)"
        )
    return text


def _slaves_notes(leader: pb.GetStatusResponse, rows: Sequence[NodeRow]) -> list[str]:
    """Report that a master confirms nothing, because too few slaves are in contact."""
    if leader.slaves_in_contact >= leader.slaves_needed:
        return []
    away = [row.node_id for row in rows if row.node_id != leader.master_id and not row.is_well]
    named = ", ".join(away) or "the slaves"
    return [
        f"no message is confirmed: {leader.slaves_needed} slaves must have it, "
        f"and {leader.slaves_in_contact} are in contact."
        f" Start {named}, or look why the master does not hear them. See: docs/runbook.md"
    ]


def _held_back_notes(
    answers: Mapping[str, pb.GetStatusResponse], leader: pb.GetStatusResponse | None
) -> list[str]:
    """Report nodes refused by the leader, and what keeps others from a leader; equal texts only once."""
    by_leader = {node.node_id: node for node in leader.nodes if node.refused} if leader else {}
    notes = [_refused_note(node) for node in by_leader.values()]
    said: dict[str, list[str]] = {}
    for name, answer in sorted(answers.items()):
        if answer.held_back and name not in by_leader and answer is not leader:
            said.setdefault(answer.held_back, []).append(name)
    return notes + [f"{', '.join(names)}: {text}. See: docs/runbook.md" for text, names in said.items()]


def _refused_note(node: pb.NodeStatus) -> str:
    if node.role == "unreachable" and node.state != REFUSED:
        return f"{node.node_id} was refused by the leader when it was last there: {node.refused}"
    return f"{node.node_id} is refused by the leader: {node.refused}"


def _log_begin(view: pb.GetStatusResponse) -> str:
    """Return where the log of a node begins, as text."""
    if not view.first_index:
        return ""
    return (
        f"log from entry {view.first_index:,} (offset {view.log_start_offset:020d}), {size(view.log_bytes)}"
    )


def _clock_notes(rows: Sequence[NodeRow], leader: pb.GetStatusResponse | None) -> list[str]:
    """Report a difference between clocks and log time, by which messages are aged."""
    leaning = {row.node_id: row.clock_offset_ms for row in rows if abs(row.clock_offset_ms) > _CLOCK_LEANS_MS}
    if not leaning:
        return []
    shown = ", ".join(
        f"{name} is {duration(abs(ms))} {'behind' if ms < 0 else 'ahead of'}" for name, ms in leaning.items()
    )
    compare = "Compare them (date; chronyc tracking or timedatectl on every node)"
    if leader is None or leader.node_id not in leaning:
        return [f"clocks: {shown} log time. {compare}, and correct what is wrong. See: docs/runbook.md"]
    offset = leaning[leader.node_id]
    slowly = duration(abs(offset) * _SLEW)
    return [
        f"clocks: {shown} log time, which goes {'slower' if offset < 0 else 'faster'} by 1 % "
        f"until they agree (about {slowly}). "
        f"Ages, delays and --from TIME count by log time; nothing is lost. {compare}. See: docs/runbook.md"
    ]


def _lateness_notes(rows: Sequence[NodeRow], voters: int, leader: pb.GetStatusResponse | None) -> list[str]:
    """Report each node that waits longer for a silent leader, with the reason and where to look."""
    starved = {row.node_id for row in rows if _is_short_of_cpu(row)}
    leader_id = leader.node_id if leader is not None else ""
    notes = []
    for row in rows:
        if not row.election_timeout_added_ms:
            continue
        late = max(row.timer_lateness_ms, row.heartbeat_lateness_ms)
        usual = row.election_timeout_ms - row.election_timeout_added_ms
        effect = f"{late:,} ms late, more than once in the last half minute"
        if voters > 1:  # otherwise there are no elections
            effect += f", so it waits {row.election_timeout_ms:,} ms for a silent leader instead of {usual:,}"
        if row.node_id in starved:
            text = (
                f"is short of CPU: its timers came {effect}. Give it CPU and memory of its own, or move what "
                "runs beside it; vmstat 1 shows what it waits for"
            )
        elif row.node_id == leader_id:
            text = f"got answers to its heartbeats {effect}. {_who_is_late(starved, 'its followers')}"
        else:
            text = (
                f"heard heartbeats {effect}. {_who_is_late(starved & {leader_id}, leader_id or 'the leader')}"
            )
        notes.append(f"{row.node_id} {text}. See: docs/runbook.md, Elections again and again")
    return notes


def _is_short_of_cpu(row: NodeRow) -> bool:
    """Tell whether its own timers explain most of the lateness."""
    return bool(row.election_timeout_added_ms) and 2 * row.timer_lateness_ms >= row.heartbeat_lateness_ms


def _who_is_late(starved: Iterable[str], whom: str) -> str:
    if names := ", ".join(sorted(starved)):
        return f"That comes most likely from {names}, short of CPU"
    return (
        f"Its own timers are on time: look at {whom} (vmstat 1 there), and at the network between them (ping)"
    )


def _retention_notes(
    answers: Mapping[str, pb.GetStatusResponse],
    rows: Sequence[NodeRow],
    leader: pb.GetStatusResponse | None,
) -> list[str]:
    """Report the effects of full disks, and what is kept in spite of its age."""
    notes = []
    disks = {row.node_id: row.disk_used_ratio for row in rows if row.disk_used_ratio is not None}
    for name, answer in sorted(answers.items()):
        if answer.max_store_bytes and disks.get(name, 0.0) > _DISK_NEARLY_FULL:
            notes.append(
                f"{name}: its disk is {disks[name]:.0%} full, although its log has only "
                f"{answer.disk_used_bytes / answer.max_store_bytes:.0%} of max_store_bytes "
                f"({size(answer.max_store_bytes)}): something else fills it, and when it is full messages "
                "are refused. Make room there, or lower max_store_bytes. See: docs/runbook.md, Disk"
            )
        if answer.disk_step:
            used = answer.disk_used_bytes / answer.disk_limit_bytes if answer.disk_limit_bytes else 0
            text = answer.disk_step_text
            if answer.disk_step >= REFUSING_STEP and leader is not None and answer is not leader:
                text = "as leader it would refuse messages"
                if not leader.produce_refused:
                    text += (
                        f". {leader.node_id} leads and takes them, "
                        "until too few nodes have room to store them"
                    )
            notes.append(
                f"{name}: {used:.0%} of {size(answer.disk_limit_bytes)}"
                f"{' (max_store_bytes)' if answer.max_store_bytes else ''} used: {text}. "
                "See: docs/runbook.md, Disk"
            )
        if answer.protection:
            notes.append(f"{name}: {answer.protection}")
    return notes


def _mode(view: pb.GetStatusResponse) -> str:
    return route_pb2.BrokerGroupMode.Name(view.mode).removeprefix("MODE_").lower()


def _mode_notes(view: pb.GetStatusResponse) -> list[str]:
    """Report that a broker group is leaving the cluster, and the next step."""
    if view.mode == route_pb2.MODE_DRAINING:
        return [
            f"{view.group} is drained: it takes no new messages. What is left: ledgermq cluster drain "
            f"{view.group}. Then ledgermq cluster remove-group {view.group}, or take it back: ledgermq "
            f"cluster undrain {view.group}"
        ]
    if view.mode == route_pb2.MODE_REMOVED:
        return [f"{view.group} was removed from the cluster: no client is sent there. Stop its nodes"]
    return []


def _damage_note(row: NodeRow) -> str:
    return (
        f"{row.node_id}: damage found in its log at {row.damage_found} places since its start, "
        f"{row.damage_repaired} repaired (last: {row.damage_last}). Check its disk and memory. See: "
        "docs/runbook.md"
    )


def _nothing_answers(asked: BrokerGroupAnswers) -> str:
    names: Mapping[str, str] = asked.members
    where = ", ".join(f"{name} ({address})" for name, address in sorted(names.items()))
    if asked.others_answer:
        return (
            f"no node answers: {where}. Other broker groups do: start these where they ran, from their own "
            "folder (ledgermq up --data FOLDER, or their services), not a second cluster. Messages in "
            f"{asked.group} wait meanwhile. If they are gone for good: ledgermq cluster forget-group "
            f"{asked.group}"
        )
    return f"no node answers: {where}. Start them: ledgermq up"
