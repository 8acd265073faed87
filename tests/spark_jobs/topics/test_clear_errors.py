"""Errors of the client as they reach the users of Spark."""

from __future__ import annotations

import pytest

from ledgermq.client.errors import BrokerUnreachableError, TopicNotFoundError
from ledgermq.spark_jobs.errors import SparkJobError
from ledgermq.spark_jobs.topics.clear_errors import with_clear_errors


def raised(error: Exception) -> str:
    @with_clear_errors
    def fail() -> None:
        raise error

    with pytest.raises(SparkJobError) as caught:
        fail()
    return str(caught.value)


def test_a_node_that_an_executor_cannot_reach_is_named_with_the_option_that_changes_it() -> None:
    text = raised(BrokerUnreachableError("10.1.2.3:8082", "It did not answer in time"))
    assert "10.1.2.3:8082" in text and "set log_advertise" in text and "nameservers" in text
    assert len(text.splitlines()) == 1


def test_other_errors_keep_their_sentence() -> None:
    error = TopicNotFoundError("orders")
    assert raised(error) == str(error)
