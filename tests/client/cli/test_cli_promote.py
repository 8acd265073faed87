"""What a person is told before a slave becomes the master."""

from __future__ import annotations

import pytest

from ledgermq.client.admin.status_report import BrokerGroupAnswers
from ledgermq.client.cli.promote import check_no_master, consequences, not_there
from ledgermq.client.errors import UsageError
from ledgermq.proto import admin_pb2 as pb


def answer(
    name: str,
    last_index: int,
    last_term: int | None = 3,
    *,
    heard_ms: int = 0,
    generation: int = 0,
    leader: str = "",
    others: tuple[str, ...] = (),
    flush: str = "sync",
) -> pb.GetStatusResponse:
    """`last_term` None: a node of an older version, which does not tell."""
    nodes = [
        pb.NodeStatus(node_id="n1", last_contact_ms=heard_ms),
        *[pb.NodeStatus(node_id=n) for n in others],
    ]
    return pb.GetStatusResponse(
        group="g0", node_id=name, master_id="n1", last_index=last_index, last_term=last_term,
        generation=generation,
        nodes=nodes, leader_id=leader, flush=flush,
    )  # fmt: skip


def told(name: str, *answers: pb.GetStatusResponse) -> str:
    return "\n".join(consequences(name, {each.node_id: each for each in answers}))


def test_what_is_lost_is_not_known_when_the_master_does_not_answer() -> None:
    text = told("n2", answer("n2", 100, heard_ms=65_000))
    assert "what n1, which n2 last heard 1 m 5 s ago, confirmed and n2 had not received" in text
    assert "how much that is is not known" in text


def test_what_is_lost_is_counted_when_the_master_answers() -> None:
    assert "Lost: 42 entries that n1 has" in told("n2", answer("n2", 100), answer("n1", 142))
    assert "Nothing is lost: n2 has all 100 entries" in told("n2", answer("n2", 100), answer("n1", 100))


def test_a_log_as_long_as_the_masters_is_no_copy_of_it_when_its_last_entry_is_older() -> None:
    text = told("n2", answer("n2", 150, 3), answer("n1", 142, 4))
    assert "Nothing is lost" not in text
    assert "the log of n1 ends at entry 142 of term 4, that of n2 at entry 150 of term 3" in text


def test_a_master_that_lost_the_end_of_its_log_is_no_measure() -> None:
    text = told("n2", answer("n2", 100, 4), answer("n1", 142, 3))
    assert "Nothing is lost" not in text and "n1 has lost the end of it" in text


def test_logs_of_different_generations_are_not_compared() -> None:
    text = told("n2", answer("n2", 100, generation=1), answer("n1", 100))
    assert "What is lost is not known: n1 answers, but is of generation 0 still" in text


@pytest.mark.parametrize("older", ["n1", "n2"])
def test_a_node_of_an_older_version_cannot_be_compared(older: str) -> None:
    answers = [answer(name, 100, None if name == older else 3) for name in ("n1", "n2")]
    text = told("n2", *answers)
    assert "Nothing is lost" not in text
    assert f"{older} is of an older version and does not tell the term of its last entry" in text


def test_a_slave_that_has_more_is_named() -> None:
    text = told("n2", answer("n2", 100), answer("n3", 103))
    assert "n3 has 3 entries more than n2: promote n3 instead" in text
    assert "promote n2 instead" not in told("n3", answer("n2", 100), answer("n3", 103))
    other_generation = answer("n3", 103, generation=1)
    assert "promote n3" not in told("n2", answer("n2", 100), other_generation)


def test_a_shorter_log_has_more_when_its_last_entry_is_newer() -> None:
    shorter, longer = answer("n3", 90, 5), answer("n2", 100, 4)
    text = told("n2", shorter, longer)
    assert "n3 has the newer log, though it is 10 entries shorter" in text and "promote n3 instead" in text
    assert "instead: then" in told("n3", shorter, longer) and "promote n2" not in told("n3", shorter, longer)


def test_a_slave_that_may_have_more_is_named_with_the_reason() -> None:
    text = told("n2", answer("n2", 100, others=("n2", "n3", "n4")), answer("n3", 90, None))
    assert "Whether n3 has more than n2 is not known: n3 is of an older version" in text
    assert "n4 does not answer: whether it has more than n2 is not known" in text


def test_it_says_what_becomes_of_the_former_master_and_what_may_be_delivered_after_all() -> None:
    text = told("n2", answer("n2", 100))
    assert "n1 never leads again" in text
    assert "never confirmed" in text
    assert "start it instead: then nothing is lost." in text
    assert "unless its machine lost power" in told("n2", answer("n2", 100, flush="async_timed"))


def refused(name: str, *answers: pb.GetStatusResponse) -> str:
    with pytest.raises(UsageError) as error:
        check_no_master(name, {each.node_id: each for each in answers})
    assert "Nothing was changed" in str(error.value)
    return str(error.value)


def test_a_master_that_anybody_hears_is_alive() -> None:
    assert "n1 is alive: n2 hears it" in refused(
        "n2", answer("n2", 1, leader="n1"), answer("n3", 1, leader="n1")
    )
    assert "n1 is alive: n3 hears it" in refused("n2", answer("n2", 1), answer("n3", 1, leader="n1"))
    assert "n1 is alive: it answers" in refused("n2", answer("n2", 1), answer("n1", 1, leader="n1"))


def test_a_node_that_has_not_heard_of_a_promotion_is_not_promoted_beside_it() -> None:
    text = refused("n2", answer("n2", 1), answer("n3", 1, generation=1, leader="n4"))
    assert "n3 is of generation 1" in text


def test_a_node_that_is_to_become_the_master_and_may_be_starting_is_waited_for() -> None:
    told = answer("n3", 1)
    told.claims.add(master="n4", generation=1, group_id=7)
    text = refused("n2", answer("n2", 1), told)
    assert "n4 is to become the master (generation 1), as n3 was told" in text and "--instead-of n4" in text
    answers = {"n2": answer("n2", 1), "n3": told}
    check_no_master("n2", answers, ["n4"])
    check_no_master("n2", {**answers, "n4": answer("n4", 1)})  # it is there, and did not become it


def masters() -> dict[str, pb.GetStatusResponse]:
    """n2 and n3 were promoted beside each other; n4 follows n3."""
    answers = [
        answer(name, 9, generation=1, leader=master)
        for name, master in (("n2", "n2"), ("n3", "n3"), ("n4", "n3"))
    ]
    for each in answers:
        each.master_id = each.leader_id
    return {each.node_id: each for each in answers}


def test_of_two_masters_one_is_promoted_again_when_the_other_is_named() -> None:
    for name, other in (("n2", "n3"), ("n3", "n2")):
        text = refused(name, *masters().values())
        assert (
            f"{other} is a master of generation 1, too" in text
            and f"promote {name} --instead-of {other}" in text
        )
        check_no_master(name, masters(), [other])
    lines = "\n".join(consequences("n2", masters(), ["n3"]))
    assert (
        "n3 is given up: what it has stored as the master since it was promoted, and confirmed, is lost"
        in lines
    )
    assert "If n2 can come back" not in lines


def test_nobody_leads() -> None:
    check_no_master("n2", {"n2": answer("n2", 1), "n1": answer("n1", 9), "n3": answer("n3", 1)})
    old = answer("n3", 1, leader="n1")  # of the generation before
    check_no_master("n2", {"n2": answer("n2", 1, generation=1), "n3": old})


def test_the_living_master_is_not_promoted() -> None:
    assert "n1 is the master already" in refused("n1", answer("n1", 9, leader="n1"), answer("n2", 9))


def test_a_master_of_an_older_generation_is_told_of_the_promotion_and_not_that_it_is_the_master() -> None:
    assert "has not heard of that promotion" in refused(
        "n1", answer("n1", 9, leader="n1"), answer("n2", 9, generation=1)
    )


def test_a_node_that_is_not_registered_right_now_is_not_said_to_be_of_no_group() -> None:
    group = BrokerGroupAnswers("g0", {"n3": ""}, {"n3": answer("n3", 1, others=("n2", "n3"))})
    text = str(not_there("n2", [group]))
    assert "n2 is a node of this cluster, but does not answer or is not registered right now" in text
    assert "try again in a few seconds" in text
    text = str(not_there("n9", [group]))
    assert 'no node "n9" answers or is registered right now. Those that are: n3. Nothing was changed' in text
