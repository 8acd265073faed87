"""Changes of all broker groups: all of them or none, as far as that can be known before."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from ledgermq.client import BrokerGroupAdmin
from ledgermq.client.cluster.every_group import (
    BrokerGroupsSilentError,
    PartlyChangedError,
    PartlyRefusedError,
    ask_all,
    change_each,
    check_that_all_answer,
)
from ledgermq.client.cluster.topic_route import BrokerGroup
from ledgermq.client.errors import (
    AlreadyExistsError,
    BrokerUnreachableError,
    ConsumerGroupNotFoundError,
    LedgerMQError,
    OutcomeUnknownError,
    TopicNotFoundError,
)

from ..fakes import FakeCluster, FakeGroup

GROUPS = [BrokerGroup("local", name, 1, "n1", (), True) for name in ("g0", "g1", "g2", "g3")]
REFUSED = AlreadyExistsError("ALREADY_EXISTS", "it exists already")
NOTHING = object()


def silence(*, perhaps_done: bool = False) -> LedgerMQError:
    error = BrokerUnreachableError("n1:8082", "Nothing listens there")
    error.perhaps_done = perhaps_done
    return error


def answering(**outcomes: object) -> Callable[[BrokerGroup], Awaitable[str | None]]:
    """Return a call that returns the name of its broker group, fails or returns None as `outcomes` says."""

    async def call(group: BrokerGroup) -> str | None:
        outcome = outcomes.get(group.name)
        if isinstance(outcome, LedgerMQError):
            raise outcome
        return None if outcome is NOTHING else group.name

    return call


def partly(**outcomes: object) -> PartlyChangedError:
    with pytest.raises(PartlyChangedError) as caught:
        asyncio.run(change_each(GROUPS, answering(**outcomes), "It may be repeated"))
    assert isinstance(caught.value.__cause__, LedgerMQError)
    return caught.value


def test_a_change_is_made_in_every_group_that_has_something_to_change() -> None:
    changed = asyncio.run(change_each(GROUPS, answering(g1=NOTHING), ""))
    assert [(group.name, answer) for group, answer in changed] == [("g0", "g0"), ("g2", "g2"), ("g3", "g3")]


def test_a_change_that_stops_half_way_says_of_each_group_whether_it_has_it() -> None:
    error = partly(g1=NOTHING, g2=silence())
    assert (error.changed, error.perhaps, error.unchanged) == (("g0",), (), ("g2", "g3"))
    assert error.retryable
    assert str(error) == (
        'the change stopped half way, at broker group "g2": the broker node at n1:8082 does not answer. '
        "Changed: g0. Not changed: g2, g3. It may be repeated."
    )


def test_a_group_that_may_have_the_change_without_an_answer_is_in_a_list_of_its_own() -> None:
    error = partly(g2=silence(perhaps_done=True))
    assert (error.changed, error.perhaps, error.unchanged) == (("g0", "g1"), ("g2",), ("g3",))
    first = partly(g0=silence(perhaps_done=True))
    assert (first.changed, first.perhaps, first.unchanged) == ((), ("g0",), ("g1", "g2", "g3"))
    assert "Perhaps changed: g0. Not changed: g1, g2, g3" in str(first)


def test_a_change_that_one_group_refuses_for_good_does_not_ask_to_be_retried() -> None:
    error = partly(g1=REFUSED)
    assert isinstance(error, PartlyRefusedError)
    assert not error.retryable
    assert (error.changed, error.unchanged) == (("g0",), ("g1", "g2", "g3"))


@pytest.mark.parametrize("error", [silence(), REFUSED], ids=["silent", "refused"])
def test_what_fails_before_anything_is_changed_fails_as_it_does_with_one_group(error: LedgerMQError) -> None:
    with pytest.raises(type(error)) as caught:
        asyncio.run(change_each(GROUPS, answering(g0=error), ""))
    assert caught.value is error
    lone = silence(perhaps_done=True)
    with pytest.raises(BrokerUnreachableError) as caught_alone:
        asyncio.run(change_each(GROUPS[:1], answering(g0=lone), ""))
    assert caught_alone.value is lone


def test_a_refusal_is_an_answer_and_silence_is_none() -> None:
    asyncio.run(check_that_all_answer(GROUPS, answering(g1=REFUSED)))
    with pytest.raises(BrokerGroupsSilentError) as caught:
        asyncio.run(check_that_all_answer(GROUPS, answering(g3=silence(), g2=OutcomeUnknownError("unknown"))))
    assert caught.value.silent.keys() == {"g2", "g3"}
    assert 'broker groups "g2", "g3" cannot be changed now: unknown' in str(caught.value)
    asyncio.run(check_that_all_answer(GROUPS[:1], answering(g0=silence())))


def test_what_is_no_silence_is_raised() -> None:
    with pytest.raises(AlreadyExistsError):
        asyncio.run(ask_all(GROUPS, answering(g1=silence(), g2=REFUSED)))


# --- by the admin client ------------------------------------------------------------------------------------


def two_groups() -> FakeCluster:
    return FakeCluster(FakeGroup("g0", {"orders": 1}), FakeGroup("g1", {"orders": 1}))


CHANGES: dict[str, Callable[[BrokerGroupAdmin], Awaitable[object]]] = {
    "create topic": lambda admin: admin.create_topic("new", 4),
    "update topic": lambda admin: admin.update_topic("orders", retention_ms=5),
    "delete topic": lambda admin: admin.delete_topic("orders"),
    "create group": lambda admin: admin.create_group("audit"),
    "delete group": lambda admin: admin.delete_group("billing"),
    "reset": lambda admin: admin.reset_offsets("billing", "orders", "latest"),
    "release": lambda admin: admin.release_parked("billing"),
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
@pytest.mark.usefixtures("few_rounds")
async def test_nothing_is_changed_while_a_group_that_the_nameserver_still_lists_does_not_answer(
    change: Callable[[BrokerGroupAdmin], Awaitable[object]],
) -> None:
    async with two_groups() as cluster, BrokerGroupAdmin(cluster.address) as admin:
        left, dead = cluster.groups
        await admin.create_group("billing")
        left.queues[1, 0].end, left.committed["billing", "orders", 0] = 9, 7
        await cluster.node(group="g1").stop()
        before = (dict(left.topics), dict(left.groups), dict(left.retention_ms), dict(left.committed))
        with pytest.raises(
            BrokerGroupsSilentError, match=r'"g1" cannot be changed now.*Nothing was changed'
        ) as caught:
            await change(admin)
        assert caught.value.retryable
        assert (left.topics, left.groups, left.retention_ms, left.committed) == before
        await cluster.revive(dead)
        await change(admin)


@pytest.mark.usefixtures("few_rounds")
async def test_a_deletion_that_stops_half_way_may_be_repeated() -> None:
    async with two_groups() as cluster, BrokerGroupAdmin(cluster.address) as admin:
        node = cluster.node(group="g1")
        node.drop_answers = 1 << 20
        with pytest.raises(PartlyChangedError, match=r"Changed: g0\. Perhaps changed: g1") as caught:
            await admin.delete_topic("orders")
        assert (caught.value.changed, caught.value.perhaps) == (("g0",), ("g1",))
        node.drop_answers = 0
        with pytest.raises(TopicNotFoundError):
            await admin.delete_topic("orders")
        assert [group.topics for group in cluster.groups] == [{}, {}]


@pytest.mark.usefixtures("few_rounds")
async def test_cleaning_goes_on_in_the_groups_before_one_that_does_not_answer_and_says_so() -> None:
    async with two_groups() as cluster, BrokerGroupAdmin(cluster.address) as admin:
        await cluster.node(group="g1").stop()
        with pytest.raises(PartlyChangedError, match='at broker group "g1"'):
            await admin.clean()
        assert cluster.node(group="g0").cleaned is not None


async def test_a_topic_that_only_some_groups_have_is_reset_and_described_there() -> None:
    async with two_groups() as cluster, BrokerGroupAdmin(cluster.address) as admin:
        await admin.create_group("billing")
        first = cluster.groups[0]
        first.create_topic("news", 1)
        first.queues[2, 0].end = 4
        await admin.reset_offsets("billing", "news", "latest")
        assert first.committed["billing", "news", 0] == 4
        assert [where for where, _ in (await admin.describe_group("billing", "news"))[1]] == ["g0"]
        assert [(row.group, row.behind) for _, row in (await admin.lag("billing", "news")).rows] == [
            ("billing", 0)
        ]
        for call in (
            admin.reset_offsets("billing", "new", "latest"),
            admin.describe_group("billing", "new"),
            admin.lag("billing", "new"),
        ):
            with pytest.raises(TopicNotFoundError, match='Did you mean "news"'):
                await call
        del first.groups["billing"]
        with pytest.raises(
            ConsumerGroupNotFoundError, match='"billing" does not exist where topic "news" is'
        ):
            await admin.reset_offsets("billing", "news", "latest")
