"""What older builds cannot apply is proposed when every node of the group knows it, and not before (D23)."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any, cast

import pytest

from ledgermq.broker.cluster.known_leader import Leadership
from ledgermq.broker.config import BrokerConfig
from ledgermq.broker.refusals import RefusedError
from ledgermq.broker.service.features import SUPPORTED, Features
from ledgermq.proto import route_pb2
from ledgermq.raft.errors import BusyError

from ..fake_raft import FakeRaft, lead_twice, settle


class Rig:
    """The node n1 of a group, which leads; `levels`: what the nodes said, None: not met."""

    def __init__(self, **levels: int | None) -> None:
        self.raft = FakeRaft()
        self.levels = levels
        self.leadership = Leadership("n1")
        config, raft = BrokerConfig(group="g0", node_id="n1"), SimpleNamespace(status=self._status)
        replica: Any = SimpleNamespace(state=self.raft.state)
        self.features = Features(config, cast(Any, raft), replica, self.raft.pipeline, self.leadership)
        self.leadership.add_listener(self.features.remember)

    def _status(self) -> Any:
        peers = [SimpleNamespace(node_id=name, feature_level=level) for name, level in self.levels.items()]
        return SimpleNamespace(peers=[SimpleNamespace(node_id="n1", feature_level=SUPPORTED), *peers])

    async def require(self) -> None:
        """Ask for what needs this build, and decide what is proposed."""
        asking = asyncio.ensure_future(self.features.require(SUPPORTED, "drain a broker group"))
        await settle()
        if not asking.done():
            await self.raft.decide(len(self.raft.proposals) - 1)
        await asking


async def test_a_group_with_an_older_node_refuses_and_names_it() -> None:
    rig = Rig(n2=1, n3=SUPPORTED)
    with pytest.raises(
        RefusedError, match=r"does not know how to drain a broker group.*: n2. Nothing"
    ) as refused:
        await rig.require()
    assert refused.value.refusal.code == route_pb2.NOT_SUPPORTED
    assert not refused.value.refusal.retryable
    assert not rig.raft.proposals


async def test_a_node_that_was_not_met_may_be_older_until_the_group_remembers_that_it_is_not() -> None:
    rig = Rig(n2=SUPPORTED, n3=None)
    with pytest.raises(RefusedError, match=r"n3 has not been met since n1 started. Nothing") as refused:
        await rig.require()
    assert refused.value.refusal.retryable
    rig.levels["n3"] = SUPPORTED
    await rig.require()
    assert rig.raft.state.feature_level == SUPPORTED
    rig.levels["n3"] = None
    await rig.require()
    assert len(rig.raft.proposals) == 1, "it is asked once"


async def test_a_node_that_came_back_with_an_older_build_is_an_older_node_whatever_is_stored() -> None:
    rig = Rig(n2=SUPPORTED)
    await rig.require()
    rig.levels["n2"] = 1
    with pytest.raises(RefusedError, match="older version"):
        await rig.require()


@pytest.mark.parametrize("levels", [{"n2": 1}, {"n2": None}])
async def test_a_leader_remembers_nothing_before_it_has_met_all_nodes_with_this_build(
    levels: dict[str, int | None],
) -> None:
    rig = Rig(**levels)
    rig.leadership.on_ready(1)
    await settle()
    assert not rig.raft.proposals


async def test_the_first_leader_that_has_met_all_remembers_it_once() -> None:
    rig = Rig(n2=SUPPORTED, n3=SUPPORTED)
    await lead_twice(rig.raft, rig.leadership)
    assert rig.raft.state.feature_level == SUPPORTED


async def test_what_is_not_remembered_now_is_when_it_is_needed() -> None:
    rig = Rig()
    rig.raft.pipeline.on_leader(None)
    rig.leadership.on_ready(1)
    rig.raft.pipeline.on_leader(rig.raft.view)
    rig.raft.error = BusyError("full")
    rig.leadership.on_ready(2)
    await settle()
    assert rig.raft.state.feature_level == 0
    rig.raft.error = None
    await rig.require()
    assert rig.raft.state.feature_level == SUPPORTED
