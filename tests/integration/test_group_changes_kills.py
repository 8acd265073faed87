"""A broker group comes and another one goes under load, and in each step a node is killed."""

from __future__ import annotations

import asyncio

import pytest

from ledgermq.client import BrokerGroupAdmin

from .cluster import Cluster
from .group_load import Load, command, run, traffic

pytestmark = pytest.mark.usefixtures("command_line")


async def kill_leader(cluster: Cluster, group: str) -> str:
    leader = await asyncio.to_thread(cluster.wait_leader, group=group)
    await asyncio.to_thread(cluster.kill, leader)
    return leader


def test_with_a_node_killed_in_each_step_nothing_acknowledged_is_lost_and_repeats_end_what_was_broken_off(
    cluster: Cluster,
) -> None:
    async def scenario() -> None:
        async with traffic(cluster.nameserver, 60_000) as each:
            assert await asyncio.to_thread(cluster.add_group, 3) == "g1"
            await add(cluster)
            await each.consumers.saw("g1")
            await drain(cluster, each.load)
            await remove(cluster, each.admin)
            await each.load.more(20)

    run(scenario(), 240)


async def add(cluster: Cluster) -> None:
    """Fill g1 while its leader dies. A person repeats what was broken off, and lets it take messages then."""
    adding = asyncio.create_task(command("cluster", "add-group", "g1"))
    killed = await kill_leader(cluster, "g1")
    broken_off = await adding != 0
    assert await command("cluster", "add-group", "g1") == 0
    if broken_off:
        assert await command("cluster", "undrain", "g1") == 0
    await asyncio.to_thread(cluster.restart, killed)
    assert await command("cluster", "status", "--wait", "30s") == 0


async def drain(cluster: Cluster, load: Load) -> None:
    """Drain g0 while its leader dies, twice: the wait ends with the truth."""
    draining = asyncio.create_task(command("cluster", "drain", "g0", "--wait", "--timeout", "90s"))
    killed = await kill_leader(cluster, "g0")
    assert await draining == 0
    first = load.sent
    await load.more(40)
    assert {group for number, group in load.groups.items() if number >= first} == {"g1"}
    assert await command("cluster", "drain", "g0", "--wait", "--timeout", "30s") == 0
    assert await command("cluster", "drain", "g1") == 1, "it would be the last that takes messages"
    await asyncio.to_thread(cluster.restart, killed)


async def remove(cluster: Cluster, admin: BrokerGroupAdmin) -> None:
    """Remove g0 while one of its nodes is down; that one hears of it when it comes back."""
    leader = await asyncio.to_thread(cluster.wait_leader, group="g0")
    follower = cluster.others(leader)[0]
    await asyncio.to_thread(cluster.kill, follower)
    assert await command("cluster", "remove-group", "g0") == 0
    assert [group.name for group in await admin.groups()] == ["g1"]
    assert await command("cluster", "remove-group", "g0") == 1, "it is not there any more"
    await asyncio.to_thread(cluster.restart, follower)
    while len(await admin.groups()) > 1:  # noqa: ASYNC110 (it is listed until it has heard of it)
        await asyncio.sleep(0.05)
