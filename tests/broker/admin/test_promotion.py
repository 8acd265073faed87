"""Whether a node may be promoted, and what it says when it may not: nothing is changed then."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from ledgermq.broker.admin import promotion, promotion_claims
from ledgermq.broker.admin.promotion import Promotions
from ledgermq.broker.admin.promotion_claims import GenerationClaims, PromotionProgress
from ledgermq.broker.cluster.lane import ForwardError
from ledgermq.broker.node import BrokerNode
from ledgermq.broker.refusals import RefusedError
from ledgermq.proto import admin_pb2 as pb
from ledgermq.proto import route_pb2
from ledgermq.raft.core.reign import Claim, Reign, passed_over
from ledgermq.raft.disk.files import RealFileSystem
from ledgermq.raft.errors import DamagedLogError, StorageFailedError
from ledgermq.raft.folder.group_recovery import PromotionPlan
from ledgermq.raft.log.identity import Identity
from ledgermq.raft.types import LogIndex, NodeId

SECOND = Reign(master=NodeId("n1")).next(NodeId("n2"), 0xA, LogIndex(7))


@dataclass
class Slave:
    """n3, of generation 1 with the master n2: as much of a node as a promotion looks at."""

    reign: Reign | None = SECOND
    leader: str | None = None
    role: str = "follower"
    group_id: int = 0xB
    rebuild: object = None
    catching_up: bool = False
    others: dict[str, pb.GetStatusResponse] = field(default_factory=dict)  # who answers, and what
    heard_ms: dict[str, int | None] = field(default_factory=dict)  # how long ago, of the other nodes
    end: tuple[int, int] = (4, 100)  # of its log
    durable: int = 100
    on_read: list[Callable[[], None]] = field(
        default_factory=list
    )  # what happens while the log is read, each once
    log: list[str] = field(default_factory=list)  # what was done
    claims: tuple[Claim, ...] = ()  # that n3 was told
    beside: tuple[Claim, ...] = ()  # that it hears
    older: tuple[str, ...] = ()  # nodes that do not know claims
    told: dict[str, pb.GenerationClaim] = field(default_factory=dict)
    refuses: dict[str, route_pb2.Refusal] = field(default_factory=dict)  # to store a claim
    disk_error: OSError | None = None
    progress: PromotionProgress = field(default_factory=PromotionProgress)

    def parts(self, raft: Any = None, forwarder: Any = None) -> tuple[Promotions, GenerationClaims]:
        """Return what serves the calls of this node."""
        voters = dict.fromkeys(("n1", "n2", "n3"), "")
        config: Any = SimpleNamespace(node_id="n3", group="g0", data_dir=Path("/data"), voters=voters)
        raft, forwarder, replica = (
            raft or self,
            forwarder or self,
            cast(Any, SimpleNamespace(rebuild=self.rebuild)),
        )
        claims = GenerationClaims(config, raft, forwarder, self.progress)
        return Promotions(config, raft, replica, forwarder, claims, self.progress), claims

    # --- RaftNode -------------------------------------------------------------------------------------------
    @property
    def config(self) -> Any:
        return SimpleNamespace(reign=self.reign)

    @property
    def storage(self) -> Any:
        identity = Identity(
            cluster_id="c",
            group="g0",
            node_id=NodeId("n3"),
            incarnation=3,
            segment_size=1 << 20,
            group_id=self.group_id,
            reign=self.reign,
            claims=self.claims,
        )
        return SimpleNamespace(identity=identity)

    def generations_beside(self) -> frozenset[Claim]:
        return frozenset(self.beside)

    async def note_claim(self, claim: Claim) -> Claim | None:
        self.log.append(f"stores the claim of {claim.reign.master}")
        if self.disk_error is not None:
            raise self.disk_error
        if (known := passed_over(self.claims, claim)) is None:
            self.claims = (*self.claims, claim)
        return known

    @property
    def care(self) -> Slave:
        return self

    def status(self) -> Any:
        peers = [SimpleNamespace(node_id="n3", catching_up=self.catching_up, last_contact_ms=0)]
        for node in ("n1", "n2"):
            heard = self.heard_ms.get(node)
            peers.append(SimpleNamespace(node_id=node, catching_up=False, last_contact_ms=heard))
        term, index = self.end
        return SimpleNamespace(
            leader_id=self.leader, peers=peers, last_term=term, last_index=index, log_bytes=1000
        )

    async def verify(self, progress: Callable[[int], None]) -> int:
        assert self.progress.doing and not self.progress.decided.is_set()
        durable = self.durable
        progress(340)
        self.log.append(self.progress.doing)
        if self.on_read:
            self.on_read.pop(0)()
        return durable

    def step_aside(self, *, though_leading: bool) -> str:
        self.log.append("steps aside")
        return f"{self.leader} leads" if self.leader and not (though_leading and self.leader == "n3") else ""

    # --- Forwarder ------------------------------------------------------------------------------------------
    async def unary(self, node: str, method: str, request: bytes, _metadata: object, timeout: float) -> bytes:
        assert self.progress.doing, "another node that is promoted at the same time sees it"
        told = method == promotion_claims.NOTE
        self.log.append(f"{'tells' if told else 'asks'} {node}")
        if node not in self.others:
            raise ForwardError(True, "away")
        if not told:
            return self.others[node].SerializeToString()
        if node in self.older:
            raise ForwardError(True, "no such method", unknown_there=True)
        self.told[node] = pb.NoteClaimRequest.FromString(request).claim
        return pb.NoteClaimResponse(refusal=self.refuses.get(node)).SerializeToString()


def says(node: str, **fields: Any) -> pb.GetStatusResponse:
    return pb.GetStatusResponse(**{"node_id": node, "generation": 1, "master_id": "n2", **fields})


def ask(
    slave: Slave,
    *,
    node: str = "n3",
    generation: int = 1,
    raft: Any = None,
    forwarder: Any = None,
    **more: Any,
) -> int:
    request = pb.PromoteRequest(node_id=node, generation=generation, **more)
    promotions, _ = slave.parts(raft, forwarder)
    return asyncio.run(promotions.accept(request)).generation


def refused(slave: Slave, **request: Any) -> route_pb2.Refusal:
    with pytest.raises(RefusedError) as error:
        ask(slave, **request)
    assert "nothing was changed" in error.value.refusal.message
    assert not slave.progress.decided.is_set() and not slave.progress.doing
    return error.value.refusal


@pytest.fixture(autouse=True)
def _no_patience(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(promotion, "BELIEF_S", 0.0)


def test_a_slave_without_a_master_is_stopped_to_become_one() -> None:
    slave = Slave()
    assert ask(slave) == 2
    assert slave.progress.decided.is_set()


def test_the_log_is_verified_while_it_serves_and_everybody_is_asked_before_and_after() -> None:
    slave = Slave(others={"n1": says("n1"), "n2": says("n2")})
    ask(slave)
    asked = ["asks n1", "asks n2"]
    told = ["tells n1", "tells n2"]
    assert slave.log == [*asked, "reads and verifies its log (34%)", *asked, *told, *asked, "steps aside"]


@pytest.mark.parametrize(
    ("slave", "request_", "code", "words"),
    [
        (Slave(reign=None), {}, route_pb2.NOT_SUPPORTED, "elect their leader"),
        (Slave(), {"node": "n1"}, route_pb2.INVALID_ARGUMENT, "this is n3, not n1"),
        (Slave(), {"generation": 0}, route_pb2.INVALID_ARGUMENT, "in generation 1 with the master n2"),
        (Slave(leader="n3"), {}, route_pb2.ALREADY_EXISTS, "is the master already"),
        (Slave(leader="n2"), {}, route_pb2.INVALID_ARGUMENT, "n2 is alive: n3 hears it"),
        (Slave(role="learner"), {}, route_pb2.CATCHING_UP, "--incomplete"),
        (Slave(rebuild=object()), {}, route_pb2.CATCHING_UP, "being rebuilt"),
        (Slave(catching_up=True), {}, route_pb2.CATCHING_UP, "being rebuilt"),
        (Slave(rebuild=object()), {"incomplete": True}, route_pb2.CATCHING_UP, "could never lead"),
        (Slave(group_id=0), {}, route_pb2.CATCHING_UP, "nothing to go on with"),
        (Slave(group_id=0), {"incomplete": True}, route_pb2.CATCHING_UP, "nothing to go on with"),
    ],
)
def test_who_must_not_be_promoted_is_told_why(
    slave: Slave, request_: dict[str, Any], code: route_pb2.RefusalCode, words: str
) -> None:
    refusal = refused(slave, **request_)
    assert refusal.code == code
    assert words in refusal.message
    assert not slave.log, "no node was asked, nothing was read"


def test_a_node_that_was_catching_up_is_promoted_when_that_is_accepted() -> None:
    assert ask(Slave(role="learner"), incomplete=True) == 2


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (says("n1", leader_id="n2"), "n2 is alive: n1 hears it, though n3 does not"),
        (says("n2", leader_id="n2"), "n2 is alive: it says so itself"),
        (says("n1", promoting="reads and verifies its log (3%)"), "n1 is being promoted just now"),
        (says("n1", generation=2, master_id="n1"), "n1 is of generation 2 with the master n1"),
    ],
)
def test_what_other_nodes_know_counts_before_and_after_the_log_was_read(
    answer: pb.GetStatusResponse, words: str
) -> None:
    slave = Slave(others={answer.node_id: answer})
    assert words in refused(slave).message
    assert not [done for done in slave.log if "verifies" in done]
    slave = Slave()
    slave.on_read = [lambda: slave.others.update({answer.node_id: answer})]
    assert words in refused(slave).message
    assert "steps aside" not in slave.log


def test_a_slave_that_has_just_gone_may_be_the_one_that_is_promoted() -> None:
    """It is silent while it restarts: both would become the master of one generation."""
    refusal = refused(Slave(heard_ms={"n1": 4000}))
    assert refusal.retryable and "n1 was there 4 s ago, and does not answer now" in refusal.message
    slave = Slave(others={"n1": says("n1")}, heard_ms={"n1": 40})
    slave.on_read = [slave.others.clear]
    assert "n1 was there" in refused(slave).message and "steps aside" not in slave.log


@pytest.mark.parametrize("heard_ms", [{"n1": 10_000}, {"n1": None}, {"n2": 300}])
def test_who_has_been_away_for_long_and_the_master_that_is_gone_are_no_obstacle(
    heard_ms: dict[str, int | None],
) -> None:
    assert ask(Slave(heard_ms=heard_ms)) == 2


def test_a_promotion_is_given_up_when_another_node_was_promoted_before() -> None:
    """That may be heard while the node stops for its own."""
    plan_of = vars(BrokerNode)["promotion_plan"].fget
    slave = Slave()
    ask(slave)
    for left_behind in (False, True):
        node: Any = SimpleNamespace(
            _promotion=slave.progress, _raft=SimpleNamespace(is_left_behind=left_behind)
        )
        assert (plan_of(node) is None) is left_behind


def test_the_former_generation_of_another_node_is_no_obstacle() -> None:
    old = says("n1", generation=0, leader_id="n1", promoting="stops")
    assert ask(Slave(others={"n1": old})) == 2


def test_a_slave_that_still_believes_in_a_master_that_has_just_gone_is_asked_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(promotion, "BELIEF_S", 60.0)
    monkeypatch.setattr(promotion, "_ASK_AGAIN_S", 0.0)
    slave = Slave(others={"n1": says("n1", leader_id="n2")})
    asked = slave.unary

    async def unary(node: str, *call: Any) -> bytes:
        answer = await asked(node, *call)
        slave.others = {"n1": says("n1")}
        return answer

    assert ask(slave, forwarder=SimpleNamespace(unary=unary)) == 2


def test_a_master_that_comes_back_while_the_log_is_read_stays_the_master() -> None:
    slave = Slave()
    slave.on_read = [lambda: setattr(slave, "leader", "n2")]
    assert "n2 is alive: n3 hears it" in refused(slave).message
    assert "steps aside" not in slave.log


def test_a_later_generation_that_begins_while_the_log_is_read_is_not_passed_over() -> None:
    slave = Slave()
    slave.on_read = [lambda: setattr(slave, "reign", SECOND.next(NodeId("n1"), 0xB, LogIndex(9)))]
    assert "in generation 2 with the master n1" in refused(slave).message


def test_the_last_look_and_the_step_are_one() -> None:
    """What is heard in the very turn of the step is the Raft node's to say."""
    slave = Slave()
    raft = SimpleNamespace(
        config=slave.config, status=slave.status, role="follower", storage=slave.storage, care=slave,
        generations_beside=frozenset, step_aside=lambda though_leading: "n2 leads",
    )  # fmt: skip
    assert "n2 leads, as n3 has heard just now" in refused(slave, raft=raft).message


def test_what_came_while_the_log_was_read_is_read_too() -> None:
    slave = Slave()

    def more() -> None:
        slave.end, slave.durable = (4, 130), 130

    slave.on_read = [more]
    ask(slave)
    assert len([done for done in slave.log if "verifies" in done]) == 2


def test_what_is_not_on_the_disk_yet_is_not_verified() -> None:
    slave = Slave(durable=97)
    slave.on_read = [lambda: setattr(slave, "durable", 100)]
    ask(slave)
    assert len([done for done in slave.log if "verifies" in done]) == 2


@pytest.mark.parametrize(
    "error",
    [
        DamagedLogError("n3", Path("/data/commitlog/0"), 70, 70, "checksum mismatch"),
        StorageFailedError(Path("/data/commitlog/0"), OSError(5, "no")),
        OSError(5, "no"),
    ],
)
def test_a_node_whose_log_is_damaged_is_not_promoted(error: Exception) -> None:
    slave = Slave()

    def fail() -> None:
        raise error

    slave.on_read = [fail]
    message = refused(slave).message
    assert "Promote another slave" in message and "ledgermq dump" in message


def test_of_two_requests_at_once_one_is_refused() -> None:
    slave = Slave()
    slave.progress.doing = "reads and verifies its log (3%)"
    with pytest.raises(RefusedError, match="to become the master already"):
        ask(slave)
    assert slave.progress.doing, "the first one goes on"


async def test_who_hangs_up_while_the_log_is_read_ends_it() -> None:
    slave, reading = Slave(), asyncio.Event()

    async def verify(_progress: object) -> int:
        reading.set()
        await asyncio.Event().wait()
        return 0

    raft = SimpleNamespace(
        config=slave.config, status=slave.status, role="follower", storage=slave.storage,
        care=SimpleNamespace(verify=verify), generations_beside=frozenset,
    )  # fmt: skip
    request = pb.PromoteRequest(node_id="n3", generation=1)
    asking = asyncio.create_task(slave.parts(raft)[0].accept(request))
    await reading.wait()
    asking.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asking
    assert not slave.progress.decided.is_set() and not slave.progress.doing


def test_a_folder_that_cannot_be_promoted_is_left_as_it_is(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.ERROR):
        assert not promotion.promote(tmp_path, RealFileSystem(), PromotionPlan())
    assert "not promoted" in caplog.text
    assert not list(tmp_path.iterdir())
