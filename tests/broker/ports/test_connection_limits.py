"""How many connections there are descriptors for."""

from __future__ import annotations

import resource

import pytest

from ledgermq.broker.ports.port_policy import connections_per_port, raise_descriptor_limit


@pytest.mark.parametrize(
    ("descriptors", "listeners", "front", "expected"),
    [
        (1 << 20, 1, True, 10_000),  # as many as are wanted
        (20_000, 1, True, 4_700),  # 1,200 set aside; 3 and 1 for a client of each port
        (20_000, 1, False, 9_400),
        (20_000, 2, True, 2_350),
        (1_024, 1, True, 128),  # half is set aside
        (4, 3, True, 1),  # never none
    ],
)
def test_a_client_finds_a_descriptor_and_the_node_keeps_its_own(
    descriptors: int, listeners: int, front: bool, expected: int
) -> None:
    found = connections_per_port(10_000, descriptors, listeners, front=front)
    assert found == expected
    used = found * listeners * (4 if front else 2)
    assert found == 1 or used <= descriptors - min(1_200, descriptors // 2)


def test_the_own_limit_is_raised_as_far_as_it_may() -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard - 1, hard))
        assert raise_descriptor_limit() == hard
        assert resource.getrlimit(resource.RLIMIT_NOFILE) == (hard, hard)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
