"""When two group ids are of one broker group. Pure."""

from __future__ import annotations

from collections.abc import Collection


def are_related(
    one: int, former_of_one: Collection[int], other: int, former_of_other: Collection[int]
) -> bool:
    """Tell whether two ids may be of one broker group; 0: nobody says, so it may be any.

    Generations of a group that was recovered, or in which a master was promoted, differ in their ids: the later one names
    the earlier ones among its former ids.
    """
    return 0 in (one, other) or one == other or one in former_of_other or other in former_of_one
