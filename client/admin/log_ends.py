"""Log ends: which of several logs of a broker group has the most. Asked before a slave is promoted.

The term of the last entry decides first, and its index only for equal terms (Raft, 5.4.1): a node that was
away for long may have many entries that were replaced since. Logs of different generations are not compared.
Must not: guess. A node of an older version does not report the term of its last entry; then there is no
result.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from ledgermq.proto import admin_pb2 as pb


@dataclass(frozen=True, slots=True, order=True)
class LogEnd:
    """The last entry of a log. The greater log end has more."""

    term: int
    index: int

    def __str__(self) -> str:
        return f"entry {self.index:,} of term {self.term:,}"


def log_end(answer: pb.GetStatusResponse) -> LogEnd | None:
    """Return where a node's log ends; None: it does not tell."""
    return LogEnd(answer.last_term, answer.last_index) if answer.HasField("last_term") else None


def nodes_with_most(answers: Mapping[str, pb.GetStatusResponse]) -> tuple[list[str], LogEnd | None]:
    """Return the answering nodes of the latest generation with the most entries, and their log end.

    A master that answers and does not lead is included. Log end None: a node does not tell, so it is unknown.
    """
    generation = max((each.generation for each in answers.values()), default=0)
    nodes = {name: log_end(each) for name, each in sorted(answers.items()) if each.generation == generation}
    ends = [end for end in nodes.values() if end is not None]
    if not ends or len(ends) < len(nodes):
        return [], None
    return [name for name, end in nodes.items() if end == max(ends)], max(ends)


def master_notes(
    answers: Mapping[str, pb.GetStatusResponse], view: pb.GetStatusResponse, *, leads: bool
) -> Iterator[str]:
    """Yield notes on a broker group with a master: promotions, who has the most, the effect of flush."""
    for name, answer in sorted(answers.items()):
        if answer.promoting:
            yield f"{name} is being promoted to the master: it {answer.promoting}"
    if not leads:
        yield _most(answers, view)
    if view.replication == "sync_master" and view.flush not in ("", "sync"):
        yield (
            f"sync_master with flush {view.flush}: a slave confirms what is in its memory, not yet on its "
            "disk; with flush = sync it is on disk"
        )


def _most(answers: Mapping[str, pb.GetStatusResponse], view: pb.GetStatusResponse) -> str:
    names, end = nodes_with_most(answers)
    silent = sorted({node.node_id for node in view.nodes} - answers.keys() - {view.master_id})
    unheard = f" {', '.join(silent)} may have more: start what can be started first." if silent else ""
    if end is None:
        return (
            "Which node has the most is not known: one of them is of an older version, or none answers. "
            "Before you promote"
            f" one, compare the terms of the last entries, not the numbers of entries.{unheard}"
        )
    have = "has" if len(names) == 1 else "have"
    return f"Of the nodes that answer {', '.join(names)} {have} the most: up to {end}.{unheard}"
