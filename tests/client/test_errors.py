"""Errors say what happened, why, and what to run next."""

from __future__ import annotations

import pkgutil
import re
from importlib import import_module

import pytest

from ledgermq import client
from ledgermq.client import errors
from ledgermq.client.errors import LedgerMQError
from ledgermq.proto import route_pb2 as pb


def test_an_unknown_topic_reads_as_promised() -> None:
    error = errors.TopicNotFoundError("order", cluster="local", asked="127.0.0.1:9876", similar=["orders"])
    assert str(error) == (
        'topic "order" does not exist in cluster "local" (asked 127.0.0.1:9876). Did you mean "orders"? '
        "Create it: ledgermq topic create order"
    )


def test_silent_nameservers_are_counted() -> None:
    text = str(errors.NameserversDownError(["a:1", "b:2", "c:3"]))
    assert text == "3 of 3 nameservers do not answer (a:1, b:2, c:3). Start one: ledgermq up"


def test_a_timeout_says_whether_the_message_may_be_stored() -> None:
    assert "may or may not be stored" in str(errors.SendTimeoutError("t", 10, sent=True, reason="why"))
    assert "it is not stored" in str(errors.SendTimeoutError("t", 10, sent=False, reason="why"))


@pytest.mark.parametrize(
    ("code", "kind", "retryable"),
    [
        (pb.NOT_LEADER, errors.NotLeaderError, True),
        (pb.NO_QUORUM, errors.NoQuorumError, True),
        (pb.TOO_MANY_REQUESTS, errors.TooManyRequestsError, True),
        (pb.STALE_ROUTE, errors.StaleRouteError, True),
        (pb.GROUP_NOT_FOUND, errors.ConsumerGroupNotFoundError, False),
        (pb.ALREADY_EXISTS, errors.AlreadyExistsError, False),
        (pb.OUTCOME_UNKNOWN, errors.OutcomeUnknownError, True),
        (pb.INTERNAL, errors.RefusedError, False),
    ],
)
def test_a_refusal_becomes_its_error(code: pb.RefusalCode, kind: type, retryable: bool) -> None:
    error = errors.error_of(pb.Refusal(code=code, message="because", leader_address="n1:1"))
    assert type(error) is kind
    assert error.retryable is retryable
    assert str(error).startswith("because")


def test_a_refusal_that_says_so_is_retryable_whatever_its_class() -> None:
    assert errors.error_of(pb.Refusal(code=pb.INTERNAL, retryable=True)).retryable
    assert not errors.RefusedError("INTERNAL", "x").retryable


def test_similar_names_are_suggested() -> None:
    assert errors.similar_names("ordrs", ["orders", "billing"]) == ["orders"]
    assert errors.did_you_mean(["a", "b"]) == 'Did you mean "a" or "b"?'
    assert errors.did_you_mean([]) == ""


def test_the_next_command_is_named_once() -> None:
    error = errors.SendTimeoutError(
        "orders", 1000, sent=True, reason="no leader. See: ledgermq cluster status"
    )
    assert str(error).count("ledgermq cluster status") == 1


def test_the_advice_to_give_the_port_of_nameservers_is_left_out_where_it_was_given() -> None:
    assert str(errors.NotANameserverError("a:8081")).endswith("Give its port: --nameserver a:9876.")
    assert str(errors.NotANameserverError("a:9876")).endswith("Check the host.")


def test_every_error_of_the_library_is_exported_and_so_is_the_version() -> None:
    def kinds(kind: type[LedgerMQError]) -> set[type[LedgerMQError]]:
        return {kind}.union(*map(kinds, kind.__subclasses__()))

    of_commands = ("bench", "cli", "demo", "local")  # rooms that users of the library do not meet
    for found in pkgutil.walk_packages(client.__path__, "ledgermq.client."):
        if found.name.split(".")[2] not in of_commands:
            import_module(found.name)  # else the result depends on the tests that ran before
    exported = {getattr(client, name) for name in client.__all__ if name.endswith("Error")}
    own = {each for each in kinds(LedgerMQError) if each.__module__.split(".")[2] not in of_commands}
    assert own == exported
    assert re.fullmatch(r"\d+\.\d+\.\d+.*", client.__version__)
