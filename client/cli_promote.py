"""`ledgermq cluster promote NODE`: a slave becomes the master, because the master does not come back.

Owns: what a person is told and asked before, and the wait for the new master. Must not: decide whether the node may (it
does that itself, broker/promotion.py), or believe that a node is dead because it does not answer.
"""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Mapping
from typing import Annotated

import grpc.aio
import typer
from rich.markup import escape

from ledgermq.proto import admin_pb2 as pb
from ledgermq.proto.admin_pb2_grpc import AdminServiceStub

from .cli_cluster import NodeOption, ask, groups_asked
from .cli_output import DEFAULT_NAMESERVER, NameserverOption, out, run
from .errors import BrokerUnreachableError, LedgerMQError, UsageError, error_of
from .status_report import GroupAnswers, duration

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
        typer.Option("--yes-lose-data", metavar="GROUP", help="The group's name, instead of the question."),
    ] = "",
) -> int:
    """Make a slave the master of its group, for good. What only the former master had is lost to the group.

    Only for groups with replication async_master or sync_master; a quorum group elects by itself. The former master
    must be stopped. When it comes back it is a slave; its old log is kept in its data folder. The runbook has the steps.
    """
    group = run(_group_of(name, nameserver, node or []))
    answer = group.answers.get(name)
    if answer is None:
        raise BrokerUnreachableError(name, "it must run to be promoted. Start it, and run this again")
    if not answer.master_id:
        raise UsageError(
            f"group {group.group} has replication quorum: its nodes elect their leader",
            "Nothing was changed",
            f"Move the lead: ledgermq cluster transfer {name}",
        )
    if answer.leader_id not in ("", name):  # the node would refuse it, too: do not ask before
        raise UsageError(
            f"the master {answer.leader_id} is alive: {name} hears it",
            "Nothing was changed",
            f"To change the master without a loss, stop {answer.leader_id} first (SIGTERM), and run this again",
        )
    out.print(escape("\n".join(consequences(name, group.answers))))
    _confirm(group.group, yes_lose_data)
    address = _own_address(answer)
    request = pb.PromoteRequest(node_id=name, generation=answer.generation, incomplete=incomplete)
    generation = run(_promote(address, request))
    out.print(f"{name} stops, checks its log and starts again as the master ...")
    term = run(_until_it_leads(address, name, generation))
    out.print(
        escape(
            f"{name} is the master of group {group.group}: generation {generation}, term {term:,}. The other nodes fetch its"
            " log by themselves, as soon as they hear it; each keeps its old log in its data folder (quarantine-N)."
        )
    )
    return 0


def consequences(name: str, answers: Mapping[str, pb.GetStatusResponse]) -> list[str]:
    """Return in plain words what becomes of the group, what is lost, and whether another slave has more."""
    own = answers[name]
    master = own.master_id
    lines = [f"PROMOTING {name} TO THE MASTER OF GROUP {own.group}"]
    lines += [f"* {text}" for text in (_what_is_lost(name, master, answers), *_better(name, answers))]
    lines += [
        f"* Made valid: every entry of {name}'s log, up to {own.last_index:,}, also those that were never confirmed to anybody.",
        f"* {master} never leads again with the folder that it has. Be sure that it is stopped, or cut off from all clients:",
        f"  until it hears of this it would go on confirming messages, and those would be lost. When it hears {name} or"
        " another node,",
        "  it stops at once, moves its folder aside, whole, and starts over as a slave. What is lost can be read there.",
        f"* If {master} can come back soon, start it instead: then nothing is lost.",
        "",
    ]
    return lines


def _what_is_lost(name: str, master: str, answers: Mapping[str, pb.GetStatusResponse]) -> str:
    own, other = answers[name], answers.get(master)
    if name == master:
        return f"Lost: what {name} itself has lost; other slaves may have it."
    if other is not None:
        lacking = max(other.last_index - own.last_index, 0)
        if not lacking:
            return f"Nothing is lost: {name} has all {own.last_index:,} entries that {master} has, which answers."
        return f"Lost: {lacking:,} entries that {master} has (it answers) and {name} has not."
    heard = next((node.last_contact_ms for node in own.nodes if node.node_id == master), 0)
    since = f", which {name} last heard {duration(heard)} ago," if heard else ""
    return (
        f"Lost: what {master}{since} confirmed and {name} had not received. {master} does not answer, so how much that is is"
        " not known."
    )


def _better(name: str, answers: Mapping[str, pb.GetStatusResponse]) -> list[str]:
    """Name the slaves that have more of the log."""
    own = answers[name]
    more = {
        node: answer.last_index - own.last_index
        for node, answer in sorted(answers.items())
        if node not in (name, own.master_id)
        and answer.generation == own.generation
        and answer.last_index > own.last_index
    }
    return [
        f"{node} has {count:,} entries more than {name}: promote {node} instead."
        for node, count in more.items()
    ]


def _confirm(group: str, name_given: str) -> None:
    """Ask for the group's name. Raises: UsageError."""
    if name_given:
        answer = name_given
    elif sys.stdin.isatty():
        answer = input(f"Type the group's name to go on ({group}): ").strip()
    else:
        raise UsageError(
            "nobody confirmed it: there is no terminal to ask at",
            "Nothing was changed",
            f"For scripts: --yes-lose-data {group}",
        )
    if answer != group:
        raise UsageError(
            f'"{answer}" is not the name of this group, which is {group}', "Nothing was changed", ""
        )


async def _group_of(name: str, nameserver: str, nodes: list[str]) -> GroupAnswers:
    groups = await groups_asked(nameserver, nodes)
    meant = [each for each in groups if name in each.members]
    if len(meant) != 1:
        known = ", ".join(member for each in groups for member in each.members)
        where = f"in {len(meant)} groups" if meant else "in no group"
        raise UsageError(
            f'there is a node "{name}" {where}',
            f"The nodes are {known}. Nothing was changed",
            "Name the group's nodes: --node HOST:8082",
        )
    return meant[0]


def _own_address(answer: pb.GetStatusResponse) -> str:
    for node in answer.nodes:
        if node.node_id == answer.node_id and node.addresses.log_address:
            return node.addresses.log_address
    raise BrokerUnreachableError(answer.node_id, "it does not tell its address")


async def _promote(address: str, request: pb.PromoteRequest) -> int:
    async with grpc.aio.insecure_channel(address) as channel:
        try:
            answer: pb.PromoteResponse = await AdminServiceStub(channel).Promote(request, timeout=10)
        except grpc.aio.AioRpcError as error:
            raise BrokerUnreachableError(address, error.details() or error.code().name) from error
    if answer.refusal.code:
        raise error_of(answer.refusal)
    return answer.generation


async def _until_it_leads(address: str, name: str, generation: int) -> int:
    """Return the term in which it leads. Raises: LedgerMQError, when that takes too long."""
    end = time.monotonic() + _WAIT_SECONDS
    while time.monotonic() < end:
        answer = await ask(address)
        if answer is not None and answer.generation == generation and answer.leader_id == name:
            return answer.term
        await asyncio.sleep(_POLL_SECONDS)
    raise LedgerMQError(
        f"{name} does not lead after {_WAIT_SECONDS:g} s",
        "It reads its whole log before; or it could not be promoted, and its log says why",
        "See: ledgermq cluster status",
    )
