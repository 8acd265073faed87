"""What a person is told before a slave becomes the master."""

from __future__ import annotations

from ledgermq.client.cli_promote import consequences
from ledgermq.proto import admin_pb2 as pb


def answer(name: str, last_index: int, *, heard_ms: int = 0, generation: int = 0) -> pb.GetStatusResponse:
    nodes = [pb.NodeStatus(node_id="n1", last_contact_ms=heard_ms)]
    return pb.GetStatusResponse(
        group="g0", node_id=name, master_id="n1", last_index=last_index, generation=generation, nodes=nodes,
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


def test_a_slave_that_has_more_is_named() -> None:
    text = told("n2", answer("n2", 100), answer("n3", 103))
    assert "n3 has 3 entries more than n2: promote n3 instead" in text
    assert "promote n2 instead" not in told("n3", answer("n2", 100), answer("n3", 103))
    other_generation = answer("n3", 103, generation=1)
    assert "promote n3" not in told("n2", answer("n2", 100), other_generation)


def test_it_says_what_becomes_of_the_former_master_and_what_may_be_delivered_after_all() -> None:
    text = told("n2", answer("n2", 100))
    assert "n1 never leads again" in text
    assert "never confirmed to anybody" in text
    assert "start it instead: then nothing is lost" in text
