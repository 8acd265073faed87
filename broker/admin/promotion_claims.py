"""Claims: what nodes tell each other about generations that are about to begin (D24, raft/core/reign.py).

Before a node steps aside for its promotion, every node that answers stores its claim. From then on it may be
away for any time. A node that is to be promoted meanwhile knows of the claim, and is refused until an
operator gives the claim up. Its own generation is then later, and leaves the claimed one behind.

Owns: the call between the nodes, and the decision which claims prevent a promotion. Must not: give up a claim
by itself.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field
from typing import Final

from ledgermq.proto import admin_pb2, route_pb2
from ledgermq.raft.core.reign import Claim, Reign
from ledgermq.raft.folder.group_recovery import PromotionPlan
from ledgermq.raft.node.raft_node import RaftNode
from ledgermq.raft.types import LogIndex, NodeId

from ..cluster.forwarding import Forwarder, answer_of
from ..cluster.lane import ForwardError
from ..config import BrokerConfig
from ..refusals import RefusedError

NOTE: Final = "/ledgermq.v1.AdminService/NoteClaim"
#: How long another node may take to store a claim, s.
NOTE_TIMEOUT_S: Final = 5.0


def to_proto(claim: Claim) -> admin_pb2.GenerationClaim:
    """Encode a claim."""
    reign = claim.reign
    return admin_pb2.GenerationClaim(
        master=reign.master,
        generation=reign.generation,
        group_id=claim.group_id,
        began_after=reign.began_after,
        former_group_ids=reign.former_group_ids,
    )


def from_proto(message: admin_pb2.GenerationClaim) -> Claim:
    """Decode a claim."""
    reign = Reign(
        master=NodeId(message.master),
        generation=message.generation,
        began_after=LogIndex(message.began_after),
        former_group_ids=tuple(message.former_group_ids),
    )
    return Claim(group_id=message.group_id, reign=reign)


def in_promotion(node: str, doing: str) -> str:
    """Return the text that a node is being promoted already; `doing`: its current step."""
    return (
        f"{node} is being promoted just now (it {doing}): of two masters one would lose everything. "
        "Wait for it: ledgermq cluster status; nothing was changed"
    )


@dataclass(slots=True)
class PromotionProgress:
    """Progress of this node's promotion."""

    doing: str = ""  # current step, for people; "": it is not being promoted
    plan: PromotionPlan | None = None  # what its folder begins after the stop; set before `decided`

    decided: asyncio.Event = field(default_factory=asyncio.Event)  # set: the node is to stop for it


@dataclass(eq=False, repr=False)
class GenerationClaims:
    """Claims that other nodes have made, and the claim that this node makes."""

    _config: BrokerConfig
    _raft: RaftNode
    _forwarder: Forwarder
    _promotion: PromotionProgress

    async def note(self, request: admin_pb2.NoteClaimRequest) -> admin_pb2.NoteClaimResponse:
        """Store the claim of another node, if this node's generation is one that the claim leaves behind.

        Raises: RefusedError: this node knows a competing claim, or cannot store this one.
        """
        claim, node = from_proto(request.claim), self._config.node_id
        identity, master = self._raft.storage.identity, claim.reign.master
        if self._raft.config.reign is None or identity.group_id not in claim.reign.former_group_ids:
            return (
                admin_pb2.NoteClaimResponse()
            )  # a generation that begins here would not be mistaken for the claimed one
        if master == node or master not in self._config.voters:
            raise RefusedError(
                route_pb2.INVALID_ARGUMENT,
                f'{node} knows no other node "{master}" in broker group {self._config.group}: check the '
                "addresses of the nodes; nothing was changed",
            )
        if self._promotion.doing:
            raise RefusedError(
                route_pb2.CATCHING_UP, in_promotion(node, self._promotion.doing), retryable=True
            )
        try:
            known = await self._raft.note_claim(claim)
        except OSError as error:
            raise RefusedError(
                route_pb2.INTERNAL,
                f"{node} cannot store that {master} is to become the master ({error}): check its disk, or "
                "stop it, and repeat this; nothing was changed",
                retryable=True,
            ) from None
        if known is not None:
            raise RefusedError(
                route_pb2.CATCHING_UP,
                f"{node} was told just now that {known.reign.master} is to become the master. Look again: "
                "ledgermq cluster status; nothing was changed",
                retryable=True,
            )
        return admin_pb2.NoteClaimResponse()

    async def tell(self, claim: Claim, nodes: Collection[str]) -> None:
        """Return when all of `nodes` have stored the claim, except nodes of an older version.

        Raises: RefusedError.
        """
        request = admin_pb2.NoteClaimRequest(claim=to_proto(claim)).SerializeToString()

        async def one(node: str) -> route_pb2.Refusal | None:
            try:
                raw = await self._forwarder.unary(node, NOTE, request, (), NOTE_TIMEOUT_S)
                refusal: route_pb2.Refusal = answer_of(node, admin_pb2.NoteClaimResponse, raw).refusal
            except ForwardError as error:
                return None if error.unknown_there else self._not_told(node, error)
            return refusal if refusal.code else None

        for refusal in await asyncio.gather(*map(one, sorted(nodes))):
            if refusal is not None:
                raise RefusedError(refusal.code, refusal.message, retryable=refusal.retryable)

    def _not_told(self, node: str, error: ForwardError) -> route_pb2.Refusal:
        return route_pb2.Refusal(
            code=route_pb2.CATCHING_UP,
            message=f"{node} answers, but could not be told that {self._config.node_id} is to become the "
            f"master ({error}): it must not be promoted without knowing that. Repeat this; if it stays so, "
            "stop that node first; nothing was changed",
            retryable=True,
        )

    def known(self, answers: Iterable[admin_pb2.GetStatusResponse]) -> frozenset[Claim]:
        """Return the claims that this folder does not follow, stored here or by the nodes that answered."""
        identity = self._raft.storage.identity
        told = [from_proto(claim) for answer in answers for claim in answer.claims]
        own = identity.reign.former_group_ids if identity.reign is not None else ()
        return frozenset(
            claim
            for claim in (*identity.claims, *told)
            if claim.reign.master != identity.node_id and claim.group_id not in (identity.group_id, *own)
        )

    def given_up(self, instead_of: Collection[str], claims: frozenset[Claim]) -> frozenset[Claim]:
        """Return what the promotion leaves behind: all claims, and the named generations beside this one."""
        beside = self._raft.generations_beside()
        return claims | {claim for claim in beside if claim.reign.master in instead_of}

    def refusal(
        self,
        reign: Reign,
        instead_of: Collection[str],
        answers: Collection[admin_pb2.GetStatusResponse],
        claims: frozenset[Claim],
    ) -> RefusedError | None:
        """Return the refusal that generations claimed or begun by others demand.

        The operator has to name each of them.
        """
        node = self._config.node_id
        beside = {claim.reign.master: claim.reign for claim in self._raft.generations_beside()}
        claimed = {claim.reign.master: claim.reign for claim in claims}
        if unnamed := sorted(beside.keys() - set(instead_of)):
            of_each = [
                f"{n} (generation {beside[n].generation}, from entry {beside[n].began_after + 1:,} on)"
                for n in unnamed
            ]
            names = " ".join(f"--instead-of {n}" for n in sorted({*unnamed, *instead_of}))
            return RefusedError(
                route_pb2.INVALID_ARGUMENT,
                f"promoted beside {reign.master}: {', '.join(of_each)}. To give up what the broker group has "
                f"from there since then: ledgermq cluster promote {node} {names}; nothing was changed",
            )
        if unknown := sorted(set(instead_of) - beside.keys() - claimed.keys()):
            return RefusedError(
                route_pb2.INVALID_ARGUMENT,
                f"{node} knows of no promotion of {', '.join(unknown)} that it could take the place of: "
                f"leave out --instead-of {unknown[0]}, or start that node, so that {node} hears it; nothing "
                "was changed",
            )
        there = {answer.node_id: answer for answer in answers}
        for master, claim in sorted(claimed.items()):
            answer = there.get(master)
            if master in instead_of or (answer is not None and answer.generation < claim.generation):
                continue  # it was named, or it answers and has not become the master
            return RefusedError(
                route_pb2.CATCHING_UP,
                f"{master} is to become the master (generation {claim.generation}) and does not answer: it "
                "may be starting. Wait for it: ledgermq cluster status. If it does not come back: ledgermq "
                f"cluster promote {node} --instead-of {master}; nothing was changed",
                retryable=True,
            )
        return None
