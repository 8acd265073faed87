"""Whether a node may be promoted, and what it says when it may not: nothing is changed then."""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from ledgermq.broker import promotion
from ledgermq.broker.refusals import RefusedError
from ledgermq.proto import admin_pb2 as pb
from ledgermq.proto import route_pb2
from ledgermq.raft.files import RealFileSystem
from ledgermq.raft.reign import Reign
from ledgermq.raft.types import LogIndex, NodeId

SECOND = Reign(master=NodeId("n1")).next(NodeId("n2"), 0xA, LogIndex(7))


def slave(
    *,
    reign: Reign | None = SECOND,
    leader: str | None = None,
    role: str = "follower",
    group_id: int = 0xB,
    rebuild: object = None,
    catching_up: bool = False,
) -> Any:
    """n3, of generation 1 with the master n2."""
    peers = [SimpleNamespace(node_id="n3", catching_up=catching_up)]
    return SimpleNamespace(
        config=SimpleNamespace(node_id="n3", group="g0"),
        raft=SimpleNamespace(
            config=SimpleNamespace(reign=reign),
            status=lambda: SimpleNamespace(leader_id=leader, peers=peers),
            role=role,
            storage=SimpleNamespace(identity=SimpleNamespace(group_id=group_id)),
        ),
        replica=SimpleNamespace(rebuild=rebuild),
        promotion=asyncio.Event(),
    )


def ask(context: Any, *, node: str = "n3", generation: int = 1, incomplete: bool = False) -> int:
    request = pb.PromoteRequest(node_id=node, generation=generation, incomplete=incomplete)
    return promotion.accept(context, request).generation


def test_a_slave_without_a_master_is_stopped_to_become_one() -> None:
    context = slave()
    assert ask(context) == 2
    assert context.promotion.is_set()


@pytest.mark.parametrize(
    ("context", "request_", "code", "words"),
    [
        (slave(reign=None), {}, route_pb2.NOT_SUPPORTED, "elect their leader"),
        (slave(), {"node": "n1"}, route_pb2.INVALID_ARGUMENT, "this is n3, not n1"),
        (slave(), {"generation": 0}, route_pb2.INVALID_ARGUMENT, "in generation 1 with the master n2"),
        (slave(leader="n3"), {}, route_pb2.ALREADY_EXISTS, "is the master already"),
        (slave(leader="n2"), {}, route_pb2.INVALID_ARGUMENT, "n2 is alive: n3 hears it"),
        (slave(role="learner"), {}, route_pb2.CATCHING_UP, "--incomplete"),
        (slave(rebuild=object()), {}, route_pb2.CATCHING_UP, "being rebuilt"),
        (slave(catching_up=True), {}, route_pb2.CATCHING_UP, "being rebuilt"),
        (slave(rebuild=object()), {"incomplete": True}, route_pb2.CATCHING_UP, "could never lead"),
        (slave(group_id=0), {}, route_pb2.CATCHING_UP, "nothing to go on with"),
        (slave(group_id=0), {"incomplete": True}, route_pb2.CATCHING_UP, "nothing to go on with"),
    ],
)
def test_who_must_not_be_promoted_is_told_why(
    context: Any, request_: dict[str, Any], code: route_pb2.RefusalCode, words: str
) -> None:
    with pytest.raises(RefusedError) as refused:
        ask(context, **request_)
    assert refused.value.refusal.code == code
    assert words in refused.value.refusal.message
    assert "nothing was changed" in refused.value.refusal.message
    assert not context.promotion.is_set()


def test_a_node_that_was_catching_up_is_promoted_when_that_is_accepted() -> None:
    assert ask(slave(role="learner"), incomplete=True) == 2


def test_a_folder_that_cannot_be_promoted_is_left_as_it_is(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.ERROR):
        assert not promotion.promote(tmp_path, RealFileSystem())
    assert "not promoted" in caplog.text
    assert not list(tmp_path.iterdir())
