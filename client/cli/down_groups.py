"""What `topic create` and `group create` say of broker groups that are down: these did not get what was created.

Must not: fail. What was created is there, whatever can be found out about the others.
"""

from __future__ import annotations

from ..admin.admin import Admin
from ..errors import LedgerMQError
from .output import err


async def groups_down(admin: Admin) -> list[str]:
    """Return the names of the broker groups that no node of is up, as far as anybody says."""
    try:
        return await admin.gone_groups()
    except LedgerMQError:
        return []


def warn_of_down(what: str, names: list[str]) -> None:
    """Say on stderr which broker groups did not get `what`, and how they get it later."""
    for name in names:
        err.print(
            f"broker group {name} is down and did not get {what}. When its nodes run again: ledgermq cluster add-group {name}",
            markup=False,
        )
