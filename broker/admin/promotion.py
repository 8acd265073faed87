"""Promotion of a slave to master on an operator's request (D24).

All steps that take long or may be refused come first, while the node still serves as a slave. It checks
whether it may be promoted, asks the other nodes what they know, and reads and verifies its whole log. Then it
checks once more and, in the same turn, goes silent (RaftNode.step_aside). It stops, begins a new generation
with its folder (raft/folder/group_recovery.py, as `ledgermq cluster recover`), and starts again as the
master. A former master learns of it from the first greeting, by this node or by one that follows it. Before
the last check, every node that answers stores the claim to the new generation (promotion_claims.py), so that
no other node is promoted while this one restarts.
Must not: promote by itself, or conclude that a silent master is dead: the operator has to know that.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Collection
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final, cast

from ledgermq.proto import admin_pb2, route_pb2
from ledgermq.raft.core.reign import Claim, Reign
from ledgermq.raft.disk.files import FileSystem
from ledgermq.raft.errors import DamagedLogError, RaftError, StorageError
from ledgermq.raft.folder.group_recovery import (
    PromotionPlan,
    claim_of,
    inspect,
    promote_folder,
    stopped_folder,
)
from ledgermq.raft.node.raft_node import RaftNode
from ledgermq.raft.types import NodeId

from ..cluster.forwarding import Forwarder, answer_of
from ..cluster.lane import ForwardError
from ..config import BrokerConfig
from ..refusals import RefusedError
from ..replica import Replica
from .promotion_claims import GenerationClaims, PromotionProgress, in_promotion

logger = logging.getLogger(__name__)

STATUS: Final = "/ledgermq.v1.AdminService/GetStatus"
#: How long to wait for another node's answer, s.
ASK_TIMEOUT_S: Final = 1.0
#: How long another node may believe in a master that just went away (s), and the pause between requests (s).
BELIEF_S: Final = 2.0
_ASK_AGAIN_S: Final = 0.2
#: A slave last heard within this time (ms) that does not answer may be restarting after its own promotion.
JUST_GONE_MS: Final = 10_000


@dataclass(eq=False, repr=False)
class Promotions:
    """Checks and prepares the promotion of this node."""

    _config: BrokerConfig
    _raft: RaftNode
    _replica: Replica
    _forwarder: Forwarder
    _claims: GenerationClaims
    _progress: PromotionProgress

    async def accept(self, request: admin_pb2.PromoteRequest) -> admin_pb2.PromoteResponse:
        """Verify that the node may be promoted, and decide that it stops for the promotion.

        Cancelling this before the decision ends the promotion. Raises: RefusedError: nothing was
        changed.
        """
        self._judge(request)
        if self._progress.doing:
            raise RefusedError(
                route_pb2.ALREADY_EXISTS,
                f"{self._config.node_id} is to become the master already: it {self._progress.doing}. Wait "
                "for it: ledgermq cluster status; nothing was changed",
            )
        # Set before asking: of two nodes promoted at once, one then sees the other, unless that one is
        # restarting at the moment.
        self._progress.doing = "asks the other nodes"
        try:
            plan = await self._prepare(request)
            self._judge(request)
            generation = self._claim(plan).reign.generation
            if refusal := self._raft.step_aside(though_leading=bool(request.instead_of)):
                raise RefusedError(
                    route_pb2.INVALID_ARGUMENT,
                    f"{refusal}, as {self._config.node_id} has heard just now. Look again: ledgermq cluster "
                    "status; nothing was changed",
                )
        except BaseException:
            self._progress.doing = ""
            raise
        self._progress.doing = "stops, and starts again as the master"
        logger.warning(
            "to be promoted: this node stops, and starts again as the master node=%s", self._config.node_id
        )
        self._progress.plan = plan
        self._progress.decided.set()
        return admin_pb2.PromoteResponse(generation=generation)

    async def _prepare(self, request: admin_pb2.PromoteRequest) -> PromotionPlan:
        """Return when the whole log is verified and all nodes that answer store the claim and know no master.

        A master that comes and goes meanwhile may bring entries; then the log is read again. A node that
        answers later is told later. Raises: RefusedError.
        """
        plan, told = PromotionPlan(), set[str]()
        verified: tuple[int, int] | None = None
        while True:
            answers = await self._judge_others(self._judge(request), request)
            status = self._raft.status()
            end = (status.last_term, status.last_index)
            # A leader keeps storing. What it writes now needs no check: it has just been written.
            leads = status.leader_id == self._config.node_id
            if verified is None or (verified != end and not leads):
                index = await self._verify()
                # Otherwise its last entries were not on disk yet.
                verified = end if leads or index == status.last_index else None
                continue
            claims = self._claims.given_up(request.instead_of, self._claims.known(answers))
            if claims != plan.claims:
                plan, told = replace(plan, claims=claims), set()
            there = {each.node_id for each in answers}
            if there <= told:
                return plan
            self._progress.doing = "tells the other nodes"
            await self._claims.tell(self._claim(plan), there - told)
            told |= there

    def _claim(self, plan: PromotionPlan) -> Claim:
        return claim_of(self._raft.storage.identity, plan, self._raft.status().last_index)

    async def _verify(self) -> int:
        """Read the whole log; return the index of the last entry read. Raises: RefusedError."""
        size, done = max(self._raft.status().log_bytes, 1), 0

        def on_read(count: int) -> None:
            nonlocal done
            done += count
            self._progress.doing = f"reads and verifies its log ({min(done / size, 1):.0%})"

        on_read(0)
        try:
            return await self._raft.care.verify(on_read)
        except (StorageError, OSError) as error:
            found = (
                f"its log is damaged: {error.path} at byte {error.position}, {error.reason}"
                if isinstance(error, DamagedLogError)
                else f"its log cannot be read: {error}"
            )
            raise RefusedError(
                route_pb2.INTERNAL,
                f"{self._config.node_id} cannot be promoted, {found}. Promote another slave; what can still "
                f"be read here: ledgermq dump --data {self._config.data_dir} DIR, when it is stopped; "
                "nothing was changed",
            ) from None

    def _judge(self, request: admin_pb2.PromoteRequest) -> Reign:
        """Check what this node itself knows; return the current reign. Raises: RefusedError."""
        node, status = self._config.node_id, self._raft.status()
        reign = self._raft.config.reign
        if reign is None:
            raise RefusedError(
                route_pb2.NOT_SUPPORTED,
                f"broker group {self._config.group} has replication quorum: its nodes elect their leader by "
                f"themselves. To move the lead: ledgermq cluster transfer {node}; nothing was changed",
            )
        if request.node_id != node:
            raise RefusedError(
                route_pb2.INVALID_ARGUMENT,
                f"this is {node}, not {request.node_id}: check the addresses of the nodes; nothing was "
                f"changed",
            )
        if request.generation != reign.generation:
            raise RefusedError(
                route_pb2.INVALID_ARGUMENT,
                f"broker group {self._config.group} is in generation {reign.generation} with the master "
                f"{reign.master}, not in generation {request.generation}: a node was promoted "
                "meanwhile. Look again: ledgermq cluster status; nothing was changed",
            )
        if status.leader_id == node and not self._raft.generations_beside():
            raise RefusedError(
                route_pb2.ALREADY_EXISTS, f"{node} is the master already, and leads; nothing was changed"
            )
        if status.leader_id not in (None, node):
            raise _master_is_alive(reign, node, node)
        if self._is_rebuilding():
            raise RefusedError(
                route_pb2.CATCHING_UP,
                f"{node} was still being rebuilt from the master's state, whose entries it does not have "
                "all: it could never lead with that folder. Promote another slave; nothing was changed",
            )
        if problem := self._incomplete() if not request.incomplete else "":
            raise RefusedError(
                route_pb2.CATCHING_UP,
                f"{node} {problem}, so it lacks more than its last entries. Promote another slave, or accept "
                "that: --incomplete; nothing was changed",
            )
        if not self._raft.storage.identity.group_id:
            raise RefusedError(
                route_pb2.CATCHING_UP,
                f"{node} was never, since its folder was made, in contact with a master for more than a "
                "moment: it has nothing to go on with. Promote another slave; nothing was changed",
            )
        return reign

    def _named_rivals(self, request: admin_pb2.PromoteRequest) -> set[NodeId]:
        """Return the masters of generations beside this one that the operator has given up."""
        beside = {claim.reign.master for claim in self._raft.generations_beside()}
        return {master for master in beside if master in request.instead_of}

    async def _judge_others(
        self, reign: Reign, request: admin_pb2.PromoteRequest
    ) -> list[admin_pb2.GetStatusResponse]:
        """Check what the other nodes know; return the answers of those that answer. Raises: RefusedError."""
        loop = asyncio.get_running_loop()
        end = loop.time() + BELIEF_S
        node = self._config.node_id
        while True:
            answers = await self._ask_others()
            claims = self._claims.known(answers)
            refusal = self._claims.refusal(reign, request.instead_of, answers, claims)
            if refusal is None:
                refusal = refusal_by_others(node, reign, answers, self._named_rivals(request))
            if refusal is None:
                there = {each.node_id for each in answers}
                refusal = self._refusal_by_absence(reign, there | set(request.instead_of))
            if refusal is None:
                return answers
            believes = any(
                each.leader_id not in ("", node) and each.generation == reign.generation for each in answers
            )
            if not believes or loop.time() >= end:
                raise refusal
            await asyncio.sleep(_ASK_AGAIN_S)

    async def _ask_others(self) -> list[admin_pb2.GetStatusResponse]:
        """Return the other nodes' statuses, without nodes that are away or of an older version."""

        async def ask(node: str) -> admin_pb2.GetStatusResponse | None:
            try:
                raw = await self._forwarder.unary(node, STATUS, b"", (), ASK_TIMEOUT_S)
                return cast(admin_pb2.GetStatusResponse, answer_of(node, admin_pb2.GetStatusResponse, raw))
            except ForwardError:
                return None

        others = [node for node in self._config.voters if node != self._config.node_id]
        return [each for each in await asyncio.gather(*map(ask, others)) if each is not None]

    def _refusal_by_absence(self, reign: Reign, answered: set[str]) -> RefusedError | None:
        """Return the refusal because of a slave that stopped answering just now, if there is one."""
        node, last = self._config.node_id, JUST_GONE_MS
        gone = [
            peer
            for peer in self._raft.status().peers
            if peer.node_id not in (node, reign.master, *answered)
            and peer.last_contact_ms is not None
            and peer.last_contact_ms < last
        ]
        if not gone:
            return None
        latest = min(gone, key=lambda peer: peer.last_contact_ms or 0)
        return RefusedError(
            route_pb2.CATCHING_UP,
            f"{latest.node_id} was there {(latest.last_contact_ms or 0) / 1000:.0f} s ago, and does not "
            "answer now: it may be starting again as the master. Wait until it answers, or has been away for "
            f"{last // 1000} s, look again (ledgermq cluster status), and repeat this; nothing was changed",
            retryable=True,
        )

    def _incomplete(self) -> str:
        if self._raft.role == "learner":
            return "was still catching up after it had lost its log, or a part of it"
        return ""

    def _is_rebuilding(self) -> bool:
        return self._replica.rebuild is not None or any(
            peer.catching_up for peer in self._raft.status().peers if peer.node_id == self._config.node_id
        )


def refusal_by_others(
    node: str,
    reign: Reign,
    answers: list[admin_pb2.GetStatusResponse],
    given_up: Collection[str] = (),
) -> RefusedError | None:
    """Return the refusal that other nodes' statuses demand, if any.

    `given_up`: masters of generations beside this one that the operator has given up.
    """
    for other in answers:
        if other.generation > reign.generation and other.master_id not in given_up:
            return RefusedError(
                route_pb2.INVALID_ARGUMENT,
                f"{other.node_id} is of generation {other.generation} with the master {other.master_id}, and "
                f"{node} has not heard of that promotion yet: it follows as soon as they reach each other. "
                "Look again: ledgermq cluster status; nothing was changed",
            )
        if other.promoting and other.generation >= reign.generation:
            return RefusedError(
                route_pb2.INVALID_ARGUMENT,
                in_promotion(other.node_id, other.promoting),
            )
        if other.generation != reign.generation or other.master_id in given_up:
            continue
        if other.leader_id not in ("", node):
            is_beside = other.master_id not in ("", reign.master)
            return (_is_beside if is_beside else _master_is_alive)(reign, node, other.node_id)
    return None


def _is_beside(reign: Reign, node: str, told_by: str) -> RefusedError:
    return RefusedError(
        route_pb2.CATCHING_UP,
        f"{told_by} is of generation {reign.generation}, too, with another master than {reign.master}, and "
        f"{node} has not heard that from it yet. Repeat this in a few seconds; nothing was changed",
        retryable=True,
    )


def _master_is_alive(reign: Reign, node: str, heard_by: str) -> RefusedError:
    heard = f"{heard_by} hears it" if heard_by != reign.master else "it says so itself"
    unheard = f", though {node} does not" if heard_by != node else ""
    return RefusedError(
        route_pb2.INVALID_ARGUMENT,
        f"the master {reign.master} is alive: {heard}{unheard}. To change the master without a loss, stop "
        f"{reign.master} first (SIGTERM), and then promote {node}; nothing was changed",
    )


def promote(data: Path, files: FileSystem, plan: PromotionPlan) -> bool:
    """Begin a new generation with the folder of this node, which is stopped and has verified its log. Blocks.

    It takes as long as opening the folder. Returns whether it succeeded; the reason for a failure is logged.
    After a failure the folder is unchanged and the node still a slave.
    """
    try:
        with stopped_folder(data, files) as folder:
            survivor = inspect(folder, verified=True)
            identity = promote_folder(folder, survivor, plan)
    except (RaftError, OSError) as error:
        logger.error("not promoted: %s", error)
        return False
    assert identity.reign is not None
    logger.warning(
        "promoted: master node=%s generation=%d group_id=%016x last_index=%d",
        identity.node_id, identity.reign.generation, identity.group_id, identity.reign.began_after,
    )  # fmt: skip
    return True
