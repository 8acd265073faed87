"""Standing of this node: its greeting, the peers it accepts, its right to vote (shell of bootstrap.py).

Owns: the member record (durable through the storage), the latest greeting of each peer, the standing of this
node. Must not: answer a greeting before the sender's incarnation is stored.
"""

from __future__ import annotations

import asyncio
import errno
import logging
from collections.abc import Awaitable, Callable

from ..config import RaftConfig
from ..core.machine import RaftCore
from ..core.reign import Claim, Reign, passed_over
from ..disk.threads import in_thread
from ..errors import NotLeaderError
from ..folder.bootstrap import (
    MemberRecord,
    Refusers,
    Rejoin,
    find_group_id,
    is_vouched_for,
    known_group_ids,
    may_become_voter,
)
from ..folder.opening import is_learner
from ..folder.storage import RaftStorage
from ..transport.hello import Hello, Refusal, RefusalKind, Standing, claim_beside, refusal_of, successor_of
from ..types import LogIndex, NodeId

logger = logging.getLogger(__name__)


class VotingRights:
    """Callbacks: `announce` sends a new greeting to all peers, `read_index` asks the leader.

    `promote` makes the core a voter and returns the number of the persist operation that makes it durable.
    """

    def __init__(
        self,
        config: RaftConfig,
        storage: RaftStorage,
        core: RaftCore,
        *,
        promote: Callable[[], int],
        announce: Callable[[], None],
        read_index: Callable[[], Awaitable[LogIndex]],
        on_new_incarnation: Callable[[NodeId, int], None],
        on_learner: Callable[[NodeId], None],
        on_left_behind: Callable[[Reign], None],
        on_outdated: Callable[[str], None],
    ) -> None:
        """`on_outdated` receives the reason why this node's folder is an old copy. The node must stop."""
        # latest greeting of each admitted peer; its incarnation is durable here
        self.hellos: dict[NodeId, Hello] = {}
        # peers in a generation that began beside this node's, and which one
        self.beside: dict[NodeId, Claim] = {}
        self._config = config
        self._storage = storage
        self._core = core
        self._promote_core = promote
        self._announce = announce
        self._read_index = read_index
        self._on_new_incarnation = on_new_incarnation
        self._on_learner = on_learner
        self._on_left_behind = on_left_behind
        self._on_outdated = on_outdated
        self._accepted_by: set[NodeId] = set()  # peers that accepted this run's greeting
        self._members = frozenset(member.node_id for member in config.members)
        # Members that must know this node before it is a full member. A slave never votes: the master's
        # answer is enough.
        others = config.voters if config.is_slave else [peer.node_id for peer in config.peers]
        self._others = frozenset(others)
        known = {node: number for node, number in storage.identity.members.items() if number}
        known.pop(config.node_id, None)
        # With a reign, `refusal_of` tells a node that a promotion superseded it.
        recovery = storage.identity.recovery if config.reign is None else None
        self._record = MemberRecord(config.group, known, recovery, not_judged=config.not_judged)
        self._is_learner = is_learner(storage)
        # A slave never votes: the master's answer is enough.
        needed = 1 if config.is_slave else len(self._members) // 2 + 1
        former = storage.identity.former.get(config.node_id, ())
        self._refusers = Refusers(config.node_id, former, needed)
        self._lock = asyncio.Lock()  # one change of the record at a time
        self._rejoin = Rejoin(config.node_id, storage.incarnation, self._others)
        self._aiming: asyncio.Task[None] | None = None
        self._identifying: asyncio.Task[None] | None = None
        self._mixed_up = False  # so that it is logged once
        self._closed = False
        self._promotion_seq: int | None = None
        self._was_voter = core.is_voter

    @property
    def standing(self) -> Standing:
        """This node's standing as a voter. A promotion shows once it is durable."""
        if self._was_voter:
            return Standing.VOTER
        return Standing.LEARNER if self._is_learner else Standing.FRESH

    @property
    def group_id(self) -> int:
        """Durable id of this broker group; 0: not known yet."""
        return self._storage.identity.group_id

    @property
    def former_group_ids(self) -> tuple[int, ...]:
        """Ids of this broker group before it was recovered, or before a master was promoted."""
        return self._storage.identity.former_group_ids

    def unmet(self) -> tuple[str, list[NodeId]]:
        """Return what a FRESH node waits for, in words, and the members not met yet; or "" and none."""
        if self.standing is not Standing.FRESH or self._promotion_seq is not None:
            return "", []
        kind = "recovered broker group" if self._record.recovery is not None else "new broker group"
        return kind, sorted(self._others - self.hellos.keys())

    def was_met(self, peer: NodeId) -> bool:
        """Return whether this data folder ever accepted a greeting of `peer`."""
        return peer in self._record.known

    def hello(self, to: NodeId | None, fsync_p99_ms: float, disk_used_ratio: float) -> Hello:
        """Return this node's greeting."""
        return Hello(
            cluster_id=self._config.cluster_id,
            group=self._config.group,
            node_id=self._config.node_id,
            incarnation=self._storage.incarnation,
            segment_size=self._config.segment_size,
            standing=self.standing,
            term=self._core.term,
            group_id=self.group_id,
            to_node_id=to or "",
            known_incarnations=dict(self._record.known),
            feature_level=self._config.feature_level,
            fsync_p99_ms=fsync_p99_ms,
            disk_used_ratio=disk_used_ratio,
            replication=self._config.replication,
            reign=self._config.reign,
        )

    async def admit(self, hello: Hello) -> Refusal | None:
        """Judge a greeting. If it is accepted, its incarnation is durable here on return.

        Raises: OSError (it cannot be stored, or not any more).
        """
        mine = self.hello(None, 0.0, 0.0)
        self.look_at_generation(hello)
        refusal = refusal_of(mine, hello, self._members)
        if refusal is None or refusal.kind is RefusalKind.OTHER_GROUP:
            refusal = self._record.refusal_of_lost(hello) or refusal
        if refusal is None:
            refusal = self._refusal_of_term(hello)
        if refusal is not None:
            return refusal
        async with self._lock:
            vouched = is_vouched_for(hello, self.hellos, len(self._members))
            refusal = self._record.refusal_of(hello, vouched=vouched and mine.standing is Standing.LEARNER)
            if refusal is not None:
                if vouched:
                    self._look_at_own_folder(hello)
                return refusal
            if self._record.would_change(hello):
                await self._store(hello)
        if hello.standing is Standing.LEARNER:
            # Also under a known incarnation: what it acknowledged before may be lost (D7).
            self._on_learner(hello.node_id)
        self.learn(hello)
        return None

    def _refusal_of_term(self, hello: Hello) -> Refusal | None:
        core = self._core
        if hello.term <= core.term or core.may_be_reached(hello.term):
            return None
        text = (
            f"{hello.node_id} is in term {hello.term}, and no number of elections leads there from term "
            f"{core.term} of {core.node_id}: a damaged or forged message put one of the two there. Start the "
            "node with the odd term with an empty folder: ledgermq broker --rejoin. If that is a majority: "
            "ledgermq cluster recover"
        )
        return Refusal(RefusalKind.TERM, text)

    def _look_at_own_folder(self, hello: Hello) -> None:
        """Stop if this folder is an old copy: a majority knows a voter by an incarnation unknown here."""
        known_before = hello.incarnation in self._storage.identity.former.get(hello.node_id, ())
        if self.standing is Standing.VOTER and self._config.reign is None and not known_before:
            self._on_outdated(
                f"the data folder of {self._config.node_id} is an old copy (perhaps only its file identity): "
                f"most members know {hello.node_id} by incarnation {hello.incarnation:016x}, which "
                f"{self._config.node_id} had stored before that folder could vote, and it is not here. Let "
                "this node fetch everything from the others: ledgermq broker --rejoin"
            )

    def weigh_refusal(self, peer: NodeId, refusal: Refusal, hello: Hello) -> None:
        """Handle a peer that does not know this node's data folder: the node may have to stop."""
        known = hello.node_id in self._refusers.known
        # A node without a broker group id has promised little, so one refusal is enough. If its broker group
        # was recovered, the first member that it meets tells it so.
        if self._refusers.are_right(hello) or not self.group_id:
            self._on_outdated(refusal.text)
        elif self._refusers.is_outdated(hello.node_id) and not known:
            logger.error(
                "refused by a node with an old data folder node=%s: it knows this one by incarnation %016x, "
                "which was replaced. This node goes on. Let the other one fetch everything: on %s: ledgermq "
                "broker --rejoin",
                peer, self._refusers.known[hello.node_id], peer,
            )  # fmt: skip
        elif not known:
            logger.error(
                "refused by one node, which does not stop this one node=%s reason=%r. Who of the two has "
                "the old folder the "
                "other members tell: ledgermq cluster status", peer, refusal.text,
            )  # fmt: skip

    async def store_successor(self, reign: Reign) -> None:
        """Store durably that this folder was superseded. Raises: OSError."""
        async with self._lock:
            self._check_open()
            await in_thread(lambda: self._storage.learn_successor(reign))

    async def store_claim(self, claim: Claim) -> Claim | None:
        """Store durably that another node is about to begin a generation, or return a claim that it does not
        supersede.

        Check and write are atomic: of two concurrent claims the second one meets the first. Raises: OSError.
        """
        async with self._lock:
            self._check_open()
            if (known := passed_over(self._storage.identity.claims, claim)) is not None:
                return known
            await in_thread(lambda: self._storage.learn_claim(claim))
        return None

    def _check_open(self) -> None:
        if self._closed:
            raise OSError(errno.ESHUTDOWN, "this node is stopping")

    def look_at_generation(self, hello: Hello) -> None:
        """Stop if the broker group goes on without this folder. Remember a rival (D24)."""
        config = self._config
        if hello.node_id not in self._members or (hello.cluster_id, hello.group) != (
            config.cluster_id,
            config.group,
        ):
            return
        mine = self.hello(None, 0.0, 0.0)
        reign = successor_of(mine, hello)
        if reign is not None:
            self._on_left_behind(reign)
        elif (claim := claim_beside(mine, hello)) is not None:
            self.beside[hello.node_id] = claim
        else:
            self.beside.pop(hello.node_id, None)

    def explain_rivals(self) -> str:
        """Return why a master that knows of a rival does not lead, and what to do; "" if it knows of none."""
        mine, me = self._config.reign, self._config.node_id
        if mine is None or self._config.is_slave:
            return ""
        reigns = {node: claim.reign for node, claim in self.beside.items()}
        rivals = {node: reign for node, reign in reigns.items() if reign.generation >= mine.generation}
        if not rivals:
            return ""
        other = max(rivals.values(), key=lambda reign: reign.generation)
        return (
            f"{me} does not lead: {other.master} was promoted beside it, as {', '.join(sorted(rivals))} says "
            f"(generation {other.generation}, which took over the entries up to {other.began_after}; "
            f"generation {mine.generation} of {me} those up to {mine.began_after}). One of the two must be "
            f"given up. To go on with {me}: ledgermq cluster promote {me} --instead-of {other.master}. To go "
            f"on with {other.master}: ledgermq cluster promote {other.master} --instead-of {me}; or, if it "
            f"leads, stop {me}, and start it with --rejoin; nothing was changed"
        )

    async def _store(self, hello: Hello) -> None:
        self._check_open()
        changed = {**self._record.known, hello.node_id: hello.incarnation}
        await in_thread(lambda: self._storage.learn_members(changed))
        replaced = self._record.known.get(hello.node_id)
        self._record.known = changed
        if replaced:
            logger.warning(
                "member came back with a new data folder node=%s old=%016x new=%016x",
                hello.node_id, replaced, hello.incarnation,
            )  # fmt: skip
            self._on_new_incarnation(hello.node_id, hello.incarnation)
        self._announce()

    def learn(self, hello: Hello) -> None:
        """Record a greeting of an admitted peer."""
        if self._record.known.get(hello.node_id) == hello.incarnation:
            self.hellos[hello.node_id] = hello
            self._identify()
            self.advance()

    def note_accepted(self, peer: NodeId) -> None:
        """Record that `peer` accepted this run's greeting, so it knows this node's standing."""
        self._accepted_by.add(peer)
        self._refusers.known.pop(peer, None)
        self.advance()

    def advance(self) -> None:
        """Check whether this node may vote now. Call it when greetings, log, term or leader changed."""
        if self._was_voter or self._promotion_seq is not None or self._core.is_silent:
            return
        if len(known_group_ids(self.hellos.values())) > 1:
            return  # two broker groups answer at the members' addresses; `_identify` has logged it
        if self.standing is Standing.FRESH:
            me, incarnation = self._config.node_id, self._storage.incarnation
            if may_become_voter(me, incarnation, self._others, self.hellos, self.group_id):
                self._promote("every other member is new too, or knows this node")
            return
        core, rejoin = self._core, self._rejoin
        if rejoin.target is None:
            known = self._others <= self._accepted_by and rejoin.is_known_to_all(self.hellos)
            if known and self._aiming is None and core.leader_id is not None:
                self._begin_to_aim()
        elif rejoin.is_done(
            durable=core.stable_index,
            commit=core.commit_index,
            term=core.term,
            leader=core.leader_id,
            voted_for=core.leader_id,  # the promotion binds the vote to this leader (promote_to_voter)
        ):
            self._promote(f"everything up to entry {rejoin.target} is here again")

    def note_durable(self, seq: int) -> None:
        """Record that persist operations up to `seq` are durable, possibly including a pending promotion."""
        if self._promotion_seq is not None and not self._was_voter and seq >= self._promotion_seq:
            self._was_voter = True
            self._identify()  # a single node hears no greetings
            self._announce()

    async def close(self) -> None:
        """Stop asking and writing: the storage closes next."""
        self._closed = True
        if self._aiming is not None:
            self._aiming.cancel()
            await asyncio.wait([self._aiming])
        if self._identifying is not None:
            await asyncio.wait([self._identifying])  # its thread writes to the folder
        async with self._lock:  # a greeting may be being stored
            pass

    def _begin_to_aim(self) -> None:
        self._aiming = asyncio.get_running_loop().create_task(self._aim())

    async def _aim(self) -> None:
        try:
            target = await self._read_index()
            self._rejoin.aim(target, self.hellos)
            logger.info("rejoin: fetching everything up to the leader's commit point target=%d", target)
        except NotLeaderError:
            return  # asked again once the leader is known
        finally:
            self._aiming = None
        self.advance()

    def _identify(self) -> None:
        """Determine the id of this broker group if that is possible by now."""
        if self.group_id or self._identifying is not None or self._closed:
            return
        if len(known_group_ids(self.hellos.values())) > 1 and not self._mixed_up:
            self._mixed_up = True
            logger.error(
                "two broker groups with the same names (cluster %s, broker group %s) answer at the members' "
                "addresses, so this node cannot tell which is its own node=%s group_ids=%s; check the "
                "addresses and ports of the members",
                self._config.cluster_id, self._config.group, self._config.node_id,
                {node: f"{hello.group_id:016x}" for node, hello in sorted(self.hellos.items())},
            )  # fmt: skip
        if self._find_group_id():
            self._identifying = asyncio.get_running_loop().create_task(self._store_group_id())

    def _find_group_id(self) -> int:
        mine, makes = self.hello(None, 0.0, 0.0), not self._config.is_slave
        return find_group_id(mine, self._others, self.hellos, may_make=makes)

    async def _store_group_id(self) -> None:
        try:
            async with self._lock:  # also keeps the record that the id is computed from unchanged
                group_id = self._find_group_id()
                if not group_id:
                    return
                await in_thread(lambda: self._storage.learn_group_id(group_id))
        except OSError as error:
            logger.warning("broker group id not stored, trying again at the next greeting error=%s", error)
            return
        finally:
            self._identifying = None
        logger.info("broker group id known node=%s group_id=%016x", self._config.node_id, group_id)
        self._announce()

    def _promote(self, why: str) -> None:
        logger.info("this node votes from now on node=%s reason=%r", self._config.node_id, why)
        self._promotion_seq = self._promote_core()
