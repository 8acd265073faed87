"""Comparison of the ids of broker groups. Pure."""

from __future__ import annotations

from collections.abc import Collection


def are_related(
    one: int, former_of_one: Collection[int], other: int, former_of_other: Collection[int]
) -> bool:
    """Return whether two ids may belong to one broker group. 0 means unknown, so it may be any.

    Generations of a broker group that was recovered, or in which a master was promoted, have different ids.
    The later one lists the earlier ones among its former ids.
    """
    return 0 in (one, other) or one == other or one in former_of_other or other in former_of_one
