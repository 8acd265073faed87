"""`ledgermq cluster promote NODE`: makes a slave the master when the master does not return.

Owns: the warnings and the confirmation, and the wait for the new master. Must not: decide whether the node
may be promoted (it does that itself, broker/admin/promotion.py), or assume that a silent node is dead.
"""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Collection, Mapping, Sequence
from typing import Annotated

import grpc.aio
import typer
from rich.markup import escape

from ledgermq.proto import admin_pb2 as pb
from ledgermq.proto.admin_pb2_grpc import AdminServiceStub

from ..admin.cluster_status import ask, groups_asked, log_address_of
from ..admin.log_ends import LogEnd, log_end
from ..admin.status_report import BrokerGroupAnswers, size
from ..cluster.channels import Channels
from ..durations import duration
from ..errors import BrokerUnreachableError, LedgerMQError, UsageError, error_of
from .output import DEFAULT_NAMESERVER, JsonOption, NameserverOption, NodeOption, err, out, print_done, run

_WAIT_SECONDS = 120.0
_POLL_SECONDS = 0.25


def promote(
    name: Annotated[str, typer.Argument(metavar="NODE", help="Slave that shall be the master, e.g. n2.")],
    nameserver: NameserverOption = DEFAULT_NAMESERVER,
    node: NodeOption = None,
    incomplete: Annotated[
        bool, typer.Option("--incomplete", help="Also a node that was still catching up.")
    ] = False,
    yes_lose_data: Annotated[
        str,
        typer.Option(
            "--yes-lose-data", metavar="GROUP", help="The broker group's name, instead of the question."
        ),
    ] = "",
    instead_of: Annotated[
        list[str] | None,
        typer.Option("--instead-of", metavar="OTHER", help="Node that was promoted too, and is given up."),
    ] = None,
    as_json: JsonOption = False,
) -> int:
    """Make a slave the master of its broker group, for good.

    What only the former master had is lost to the broker group. Only for broker groups with replication
    async_master or sync_master; a quorum elects by itself. The former master must be stopped. When it comes
    back it is a slave; its old log is kept in its data folder. The runbook has the steps. With --instead-of:
    of two nodes that were both promoted, NODE stays the master, and the other becomes its slave.
    """
    group = run(_group_of(name, nameserver, node or []))
    answer = group.answers.get(name)
    if answer is None:
        raise BrokerUnreachableError(name, "it must run to be promoted. Start it, and run this again")
    if not answer.master_id:
        raise UsageError(
            f"broker group {group.group} has replication quorum: its nodes elect their leader",
            "Nothing was changed",
            f"Move the lead: ledgermq cluster transfer {name}",
        )
    check_no_master(name, group.answers, instead_of or ())  # the node would refuse it anyway: do not ask
    shown = err if as_json else out
    shown.print(escape("\n".join(consequences(name, group.answers, instead_of or ()))))
    _confirm(group.group, yes_lose_data)
    address = log_address_of(answer)
    request = pb.PromoteRequest(
        node_id=name, generation=answer.generation, incomplete=incomplete, instead_of=instead_of
    )
    shown.print(
        f"{name} goes on as it is, and reads and verifies its log ({size(answer.log_bytes)}). How far it is: "
        "ledgermq cluster status; Ctrl-C gives it up ..."
    )
    generation = run(_promote(address, request))
    shown.print(f"{name} stops, and starts again as the master ...")
    term = run(_until_it_leads(address, name, generation))
    print_done(
        f"{name} is the master of broker group {group.group}: generation {generation}, term {term:,}. The "
        "other nodes fetch its log by themselves, as soon as they hear it; each keeps its old log in its "
        "data folder (quarantine-N).",
        {"group": group.group, "master_id": name, "generation": generation, "term": term},
        as_json=as_json,
    )
    return 0


def check_no_master(
    name: str, answers: Mapping[str, pb.GetStatusResponse], instead_of: Collection[str] = ()
) -> None:
    """Raises: UsageError, when a master is alive (or is that node), or another node was promoted already.

    Masters that are given up are no obstacle; whether there is anything to give up the node knows.
    """
    own = answers[name]
    newest = all(other.generation <= own.generation for other in answers.values())
    beside = [
        node
        for node, other in answers.items()
        if node == other.master_id == other.leader_id != own.master_id and other.generation == own.generation
    ]
    if newest and own.master_id == name and own.leader_id == name and not (instead_of or beside):
        raise UsageError(
            f"{name} is the master already", "Nothing was changed", "Look at it: ledgermq cluster status"
        )
    for node, other in sorted(answers.items(), key=lambda item: (item[0] != name, item[0])):
        if other.master_id in instead_of:
            continue
        if node in beside:
            raise UsageError(
                f"{node} is a master of generation {own.generation}, too: "
                f"it was promoted beside {own.master_id}",
                "Nothing was changed",
                f"To go on with {name}, and give up what the broker group has from there since then: "
                f"ledgermq cluster promote {name} "
                + " ".join(f"--instead-of {each}" for each in sorted({*beside, *instead_of})),
            )
        if other.generation > own.generation:
            raise UsageError(
                f"{node} is of generation {other.generation} with the master {other.master_id}, and {name} "
                "has not heard of that promotion yet",
                "It follows by itself as soon as they reach each other. Nothing was changed",
                "See: ledgermq cluster status",
            )
        if other.generation == own.generation and other.leader_id not in ("", name):
            heard = "it answers" if node == other.leader_id else f"{node} hears it"
            raise UsageError(
                f"the master {other.leader_id} is alive: {heard}",
                "Nothing was changed",
                f"To change the master without a loss, stop {other.leader_id} first (SIGTERM), "
                "and run this again",
            )
    _check_none_is_starting(name, answers, instead_of)


def _check_none_is_starting(
    name: str, answers: Mapping[str, pb.GetStatusResponse], instead_of: Collection[str]
) -> None:
    """Raises: UsageError, when another node told one that answers that it is to become the master,
    and is not heard since.
    """
    own = answers[name]
    for told, other in sorted(answers.items()):
        for claim in other.claims:
            is_known = claim.master in (name, *instead_of, *answers)
            if not is_known and claim.generation > own.generation:
                raise UsageError(
                    f"{claim.master} is to become the master (generation {claim.generation}), as {told} was "
                    "told, and does not answer",
                    "It may be starting. Nothing was changed",
                    "Wait for it: ledgermq cluster status. If it does not come back: ledgermq cluster "
                    f"promote {name} --instead-of {claim.master}",
                )


def consequences(
    name: str, answers: Mapping[str, pb.GetStatusResponse], instead_of: Collection[str] = ()
) -> list[str]:
    """Return what becomes of the broker group, what is lost, and whether another slave has more."""
    own = answers[name]
    master = own.master_id
    lines = [f"PROMOTING {name} TO THE MASTER OF BROKER GROUP {own.group}"]
    for given_up in sorted(instead_of):
        lines += [
            f"* {given_up} is given up: what it has stored as the master since it was promoted, "
            "and confirmed, is lost to the",
            f"  broker group. {given_up} and its slaves stop as soon as they hear {name} or a node that "
            "follows it, and keep it in",
            "  their data folders (quarantine-N), where it can be read.",
        ]
    if master == name and instead_of:
        return [
            *lines,
            f"* {name} starts again, with all that it has; its own slaves fetch its log anew.",
            "",
        ]
    lines += [f"* {text}" for text in (_what_is_lost(name, master, answers), *_others(name, answers))]
    lines += [
        f"* Made valid: every entry of {name}'s log, up to {own.last_index:,}, "
        "also those that were never confirmed.",
        f"* {master} never leads again with the folder that it has. Be sure that it is stopped, "
        "or cut off from all clients:",
        "  until it hears of this it would go on confirming messages, and those would be lost. When it "
        f"hears {name} or another node,",
        "  it stops at once, moves its folder aside, whole, and starts over as a slave. "
        "What is lost can be read there.",
        f"* {_instead(master, own.flush)}",
        "",
    ]
    return lines


def _instead(master: str, flush: str) -> str:
    text = f"If {master} can come back soon with its disk, start it instead: then nothing is lost"
    if flush in ("", "sync"):
        return f"{text}."
    return f"{text}, unless its machine lost power (flush {flush})."


def _what_is_lost(name: str, master: str, answers: Mapping[str, pb.GetStatusResponse]) -> str:
    own, other = answers[name], answers.get(master)
    if name == master:
        return f"Lost: what {name} itself has lost; other slaves may have it."
    if other is None:
        heard = next((node.last_contact_ms for node in own.nodes if node.node_id == master), 0)
        since = f", which {name} last heard {duration(heard)} ago," if heard else ""
        return (
            f"Lost: what {master}{since} confirmed and {name} had not received. {master} does not answer, so "
            "how much that is is not known."
        )
    if other.generation != own.generation:
        return f"What is lost is not known: {master} answers, but is of generation {other.generation} still."
    mine, theirs = log_end(own), log_end(other)
    if mine is None or theirs is None:
        return f"What is lost is not known: {_does_not_tell(name if mine is None else master)}"
    if mine.term == theirs.term:
        if (lacking := theirs.index - mine.index) > 0:
            return f"Lost: {lacking:,} entries that {master} has (it answers) and {name} has not."
        return f"Nothing is lost: {name} has all {theirs.index:,} entries that {master} has, which answers."
    if mine < theirs:
        return (
            f"Lost: what {master} has (it answers) and {name} has not: the log of {master} ends at {theirs}, "
            f"that of {name} at {mine}. How many entries that are is not known."
        )
    return (
        f"What is lost is not known: the log of {master}, which answers, ends at {theirs}, before that of "
        f"{name} ({mine}): {master} has lost the end of it."
    )


def _others(name: str, answers: Mapping[str, pb.GetStatusResponse]) -> list[str]:
    """Say of each other slave that it has more, or that it may have."""
    own = answers[name]
    mine = log_end(own)
    if mine is None:
        return [f"Whether another slave has more is not known: {_does_not_tell(name)}"]
    nodes = {node.node_id for node in own.nodes} | answers.keys()
    return [
        text
        for node in sorted(nodes - {name, own.master_id})
        if (text := _other(name, mine, own.generation, node, answers.get(node)))
    ]


def _other(name: str, mine: LogEnd, generation: int, node: str, answer: pb.GetStatusResponse | None) -> str:
    if answer is None:
        return (
            f"{node} does not answer: whether it has more than {name} is not known. "
            "If it can be started, do that first."
        )
    if answer.generation != generation:
        return ""  # it starts over from the master of this generation, whichever that is
    theirs = log_end(answer)
    if theirs is None:
        return f"Whether {node} has more than {name} is not known: {_does_not_tell(node)}"
    if theirs <= mine:
        return ""
    if theirs.term == mine.term:
        return f"{node} has {theirs.index - mine.index:,} entries more than {name}: promote {node} instead."
    shorter = (
        f", though it is {mine.index - theirs.index:,} entries shorter" if theirs.index < mine.index else ""
    )
    ends = f"it ends at {theirs}, that of {name} at {mine}"
    return f"{node} has the newer log{shorter}: {ends}: promote {node} instead."


def _does_not_tell(node: str) -> str:
    return (
        f"{node} is of an older version and does not tell the term of its last entry, without which the logs "
        "cannot be compared. Upgrade it first (it may be restarted), and run this again."
    )


def _confirm(group: str, name_given: str) -> None:
    """Ask for the broker group's name. Raises: UsageError."""
    if name_given:
        answer = name_given
    elif sys.stdin.isatty():
        answer = input(f"Type the broker group's name to go on ({group}): ").strip()
    else:
        raise UsageError(
            "it was not confirmed: there is no terminal to ask at",
            "Nothing was changed",
            f"For scripts: --yes-lose-data {group}",
        )
    if answer != group:
        raise UsageError(
            f'"{answer}" is not the name of this broker group, which is {group}', "Nothing was changed", ""
        )


async def _group_of(name: str, nameserver: str, nodes: list[str]) -> BrokerGroupAnswers:
    groups = await groups_asked(nameserver, nodes)
    meant = [each for each in groups if name in each.members]
    if not meant:
        raise not_there(name, groups)
    if len(meant) != 1:
        known = ", ".join(member for each in groups for member in each.members)
        raise UsageError(
            f'there is a node "{name}" in {len(meant)} broker groups',
            f"The nodes are {known}. Nothing was changed",
            "Name the broker group's nodes: --node HOST:8082",
        )
    return meant[0]


def not_there(name: str, groups: Sequence[BrokerGroupAnswers]) -> UsageError:
    """Return the error for a node that no answer names.
    After a promotion nodes start over, and are registered a little later.
    """
    known = {told.node_id for each in groups for answer in each.answers.values() for told in answer.nodes}
    there = sorted({member for each in groups for member in each.members})
    if name in known:
        what = f"{name} is a node of this cluster, but does not answer or is not registered right now"
    else:
        what = f'no node "{name}" answers or is registered right now'
    return UsageError(
        what,
        f"Those that are: {', '.join(there)}. Nothing was changed",
        "After a promotion or a start a node takes a while to be there: try again in a few seconds; "
        "or name it: --node HOST:8082",
    )


async def _promote(address: str, request: pb.PromoteRequest) -> int:
    """Return the generation that begins. It takes as long as the node reads its log;
    who goes away before ends that.
    """
    channels = Channels()
    try:
        stub = AdminServiceStub(channels.get(address))
        answer: pb.PromoteResponse = await stub.Promote(request)
    except grpc.aio.AioRpcError as error:
        raise LedgerMQError(
            f"{request.node_id} has not answered: {error.details() or error.code().name}",
            "Whether it becomes the master is not known",
            "See: ledgermq cluster status",
        ) from error
    finally:
        await channels.close()
    if answer.refusal.code:
        raise error_of(answer.refusal)
    return answer.generation


async def _until_it_leads(address: str, name: str, generation: int) -> int:
    """Return the term in which it leads. Raises: LedgerMQError, when that takes too long."""
    end = time.monotonic() + _WAIT_SECONDS
    while time.monotonic() < end:
        answer = await ask(address)
        if answer is not None and answer.generation >= generation and answer.leader_id == name:
            return answer.term
        await asyncio.sleep(_POLL_SECONDS)
    raise LedgerMQError(
        f"{name} does not lead after {_WAIT_SECONDS:g} s",
        "It is still starting; or it could not be promoted, and its log says why",
        "See: ledgermq cluster status",
    )
