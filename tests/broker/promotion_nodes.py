"""A node whose promotion is played: what of it is real, and what stands in for the rest (promotion_world.py).

Real: its core, what greetings decide (hello.py, reign.py), and the whole of a promotion up to the stop of the
node (promotion.py, promotion_claims.py). Played: its disk, the process around it, calls to other nodes. A
call, a write and a stop wait for their turn (`World.hop`), which a seed draws, so that anything may happen
between any two steps.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, Final, cast

from ledgermq.broker.admin import promotion, promotion_claims
from ledgermq.broker.admin.promotion import Promotions
from ledgermq.broker.admin.promotion_claims import GenerationClaims, PromotionProgress
from ledgermq.broker.cluster.lane import ForwardError
from ledgermq.broker.refusals import RefusedError
from ledgermq.proto import admin_pb2 as pb
from ledgermq.raft.core.config import CoreConfig
from ledgermq.raft.core.reign import Claim, Reign, Replication, first_term_of, passed_over
from ledgermq.raft.log.identity import Identity
from ledgermq.raft.transport.hello import Hello, Standing, claim_beside, successor_of
from ledgermq.raft.types import NO_TERM
from tests.raft.core_cluster import Cluster, core_config

if TYPE_CHECKING:
    from .promotion_world import World

FIRST: Final = 0xA  # id of the group as it was configured; n1 is its master


@dataclass
class Folder:
    """What a node has on its disk besides log and hard state."""

    identity: Identity
    is_learner: bool = False
    copied_from: int = FIRST  # id of the group that its log is a copy of
    hands: list[Claim] = field(
        default_factory=list
    )  # generations that it began or was told of, in this order
    quarantines: list[set[int]] = field(default_factory=list)  # messages in each

    def takes_part_in(self, claim: Claim) -> None:
        """Check that this node has no part in two generations of which neither follows the other."""
        for known in self.hands:
            same = known.reign.master == claim.reign.master
            assert same or known.group_id in claim.reign.former_group_ids, f"{claim} beside {known}"
        # What the same node claimed before never began, or it is followed by this.
        self.hands = [known for known in self.hands if known.reign.master != claim.reign.master] + [claim]


class Cores(Cluster):
    """Cores of several generations: who is a voter says each folder."""

    def __init__(self, folders: dict[str, Folder]) -> None:
        self.folders = folders
        super().__init__(*folders)

    def _config(self, name: str) -> CoreConfig:
        reign = self.folders[name].identity.reign
        assert reign is not None
        others = [each for each in self.names if each != reign.master]
        return core_config(
            name, [reign.master], others, {"first_term": first_term_of(reign.generation, NO_TERM)}
        )


class Run:
    """A process from its start to its end: as much of a node as a promotion looks at."""

    def __init__(self, world: World, name: str) -> None:
        self.world, self.name = world, name
        self.is_up = True
        self.is_left_behind = self.stepped_aside = False
        self.acked_to = 0
        self.beside: dict[str, Claim] = {}
        self.lock = asyncio.Lock()  # one write of the folder at a time
        self.over = asyncio.Event()  # it is to start again from its folder
        self.tasks: set[asyncio.Task[Any]] = set()
        self.asking: list[asyncio.Task[str]] = []  # who waits for the answer to a promotion
        voters = dict.fromkeys(world.names, "")
        config: Any = SimpleNamespace(node_id=name, group="g0", data_dir=Path("/data"), voters=voters)
        part, replica = cast(Any, self), cast(Any, SimpleNamespace(rebuild=None))
        self.progress = PromotionProgress(decided=self.over)
        self.claims = GenerationClaims(config, part, part, self.progress)
        self.promotions = Promotions(config, part, replica, part, self.claims, self.progress)
        self.spawn(self._live())

    @property
    def core(self) -> Any:
        return self.world.cores[self.name]

    @property
    def folder(self) -> Folder:
        return self.world.folders[self.name]

    def spawn(self, what: Any) -> asyncio.Task[Any]:
        task = asyncio.get_running_loop().create_task(what)
        self.tasks.add(task)
        task.add_done_callback(self._ended)
        return task

    def _ended(self, task: asyncio.Task[Any]) -> None:
        self.tasks.discard(task)
        error = None if task.cancelled() else task.exception()
        if error is not None and not isinstance(error, RefusedError | ForwardError):
            self.world.failures.append(error)

    async def _live(self) -> None:
        """Do as broker/__main__.py does when a node is to be replaced by a new one on its folder."""
        world = self.world
        await self.over.wait()
        await world.hop()
        world.cores.release_disk(self.name)
        world.cores.crash(self.name)
        self.is_up = False
        world.connect()
        plan = None if self.is_left_behind else self.progress.plan
        await world.hop()
        if plan is not None:
            world.begin(self.name, plan)
            await world.hop()
        world.start(self.name)

    # --- what greetings do: voting_rights.py, succession.py -------------------------------------------------
    def hello(self) -> Hello:
        identity = self.folder.identity
        return Hello(
            cluster_id="c",
            group="g0",
            node_id=identity.node_id,
            incarnation=identity.incarnation,
            segment_size=identity.segment_size,
            standing=Standing.LEARNER if self.folder.is_learner else Standing.VOTER,
            term=self.core.term,
            group_id=identity.group_id,
            replication=Replication.ASYNC_MASTER,
            reign=identity.reign,
        )

    def hear(self, theirs: Hello) -> None:
        mine = self.hello()
        reign = successor_of(mine, theirs)
        claim = claim_beside(mine, theirs)
        if reign is not None:
            self._leave(reign)
        elif claim is not None:
            self.beside[theirs.node_id] = claim
        else:
            self.beside.pop(theirs.node_id, None)

    def _leave(self, reign: Reign) -> None:
        if self.is_left_behind or (self.core.is_silent and not self.stepped_aside):
            return
        self.is_left_behind = True
        self.core.leave()
        self.spawn(self._make_way(reign))

    async def _make_way(self, reign: Reign) -> None:
        await self.world.hop()
        if self.is_up:
            self.folder.identity = replace(self.folder.identity, successor=reign)
            self.over.set()

    def is_held(self) -> bool:
        """Tell whether this master heard of one beside it (VotingRights.explain_rivals)."""
        own = self.folder.identity.reign
        assert own is not None
        return any(claim.reign.generation >= own.generation for claim in self.beside.values())

    # --- RaftNode -------------------------------------------------------------------------------------------
    @property
    def config(self) -> Any:
        return SimpleNamespace(reign=self.folder.identity.reign)

    @property
    def storage(self) -> Any:
        return SimpleNamespace(identity=self.folder.identity)

    @property
    def care(self) -> Run:
        return self

    @property
    def role(self) -> str:
        return "learner" if self.folder.is_learner else "follower"

    def status(self) -> Any:
        peers = [
            SimpleNamespace(node_id=n, catching_up=False, last_contact_ms=None) for n in self.world.names
        ]
        core = self.core
        return SimpleNamespace(
            leader_id=core.leader_id,
            peers=peers,
            last_term=core.last_term,
            last_index=core.last_index,
            log_bytes=1,
        )

    async def verify(self, _progress: object) -> int:
        await self.world.hop()
        return len(self.world.cores.members[self.name].disk_terms)

    def generations_beside(self) -> frozenset[Claim]:
        return frozenset(self.beside.values())

    async def note_claim(self, claim: Claim) -> Claim | None:
        async with self.lock:
            if (known := passed_over(self.folder.identity.claims, claim)) is not None:
                return known
            await self.world.hop()
            if not self.is_up:
                raise OSError("stopping")
            self.folder.takes_part_in(claim)
            others = [
                known for known in self.folder.identity.claims if known.reign.master != claim.reign.master
            ]
            self.folder.identity = replace(self.folder.identity, claims=(*others, claim))
        return None

    def step_aside(self, *, though_leading: bool) -> str:
        leader = self.core.leader_id
        if self.core.is_silent:
            return "it is to start again"
        if leader is not None and not (though_leading and leader == self.name):
            return f"{leader} leads"
        self.stepped_aside = True
        self.core.leave()
        return ""

    # --- Forwarder ------------------------------------------------------------------------------------------
    async def unary(self, node: str, method: str, request: bytes, *_: object) -> bytes:
        world = self.world
        await world.hop()
        if not world.reaches(self.name, node):
            raise ForwardError(True, "away")
        raw = await world.runs[node].answer(method, request)
        await world.hop()
        if not world.reaches(self.name, node):
            raise ForwardError(False, "no answer")
        return raw

    async def answer(self, method: str, request: bytes) -> bytes:
        """Answer another node, which may be gone before that."""
        if method == promotion.STATUS:
            return self.tell_status().SerializeToString()
        told = pb.NoteClaimRequest.FromString(request)
        served, claim = (
            self.spawn(self.claims.note(told)),
            promotion_claims.from_proto(told.claim),
        )
        response = pb.NoteClaimResponse()
        try:
            await asyncio.shield(served)
            is_concerned = self.folder.identity.group_id in claim.reign.former_group_ids
            if self.is_up and is_concerned and claim not in self.folder.hands:
                self.folder.takes_part_in(claim)
        except RefusedError as error:
            response.refusal.CopyFrom(error.refusal)
        except asyncio.CancelledError:
            if served.cancelled():
                raise ForwardError(False, "gone") from None
            raise
        return response.SerializeToString()

    def tell_status(self) -> pb.GetStatusResponse:
        reign, core = self.config.reign, self.core
        return pb.GetStatusResponse(
            node_id=self.name,
            generation=reign.generation,
            master_id=reign.master,
            leader_id=core.leader_id or "",
            promoting=self.progress.doing,
            claims=[promotion_claims.to_proto(claim) for claim in self.folder.identity.claims],
        )
