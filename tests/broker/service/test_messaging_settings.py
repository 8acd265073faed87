"""Settings replies: everything that official clients need to start."""

from __future__ import annotations

from ledgermq.broker.service.telemetry import settings_command
from ledgermq.proto import rocketmq_v2_pb2 as v2


def test_a_producer_gets_limits_and_an_exponential_backoff_and_its_own_values_back() -> None:
    settings = v2.Settings(client_type=v2.PRODUCER)
    settings.publishing.topics.add(name="orders")
    command = settings_command(settings, fifo=False, max_attempts=17, language="JAVA")
    assert command.status.code == v2.OK
    assert command.settings.publishing.topics[0].name == "orders"
    assert command.settings.publishing.max_body_size == 4194304
    assert command.settings.backoff_policy.exponential_backoff.initial.ToMilliseconds() == 10
    assert command.settings.metric.on is False


def test_a_producer_tries_often_enough_to_miss_a_dead_node_of_its_route() -> None:
    """With three nodes, an attempt meets the dead one with probability 1/3 when many threads take turns."""
    settings = v2.Settings(client_type=v2.PRODUCER)
    settings.publishing.topics.add(name="orders")
    command = settings_command(settings, fifo=False, max_attempts=0, language="PYTHON")
    failing = (1 / 3) ** command.settings.backoff_policy.max_attempts
    assert failing < 1e-4, "of the sends while a node is down"


def test_a_consumer_gets_the_policy_of_its_group() -> None:
    settings = v2.Settings(client_type=v2.PUSH_CONSUMER)
    settings.subscription.group.name = "g"
    command = settings_command(settings, fifo=True, max_attempts=17, language="PYTHON")
    assert command.settings.subscription.fifo
    assert command.settings.subscription.receive_batch_size == 32
    assert command.settings.backoff_policy.max_attempts == 17
    assert command.settings.backoff_policy.customized_backoff.next[0].seconds == 1


def test_the_node_client_gets_seconds_that_it_reads_as_milliseconds() -> None:
    settings = v2.Settings(client_type=v2.PUSH_CONSUMER)
    settings.subscription.group.name = "g"
    command = settings_command(settings, fifo=False, max_attempts=17, language="HTTP")
    assert command.settings.backoff_policy.exponential_backoff.initial.seconds == 5000
