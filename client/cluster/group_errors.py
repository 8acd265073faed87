"""Errors of what concerns all broker groups of a cluster; they belong to the tree in errors.py."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ..errors import LedgerMQError, RouteError


class BrokerGroupsSilentError(RouteError):
    """These broker groups do not answer, or have no leader, so a change of all of them was not begun."""

    def __init__(self, silent: Mapping[str, LedgerMQError]) -> None:
        names = sorted(silent)
        named = ", ".join(f'"{name}"' for name in names)
        super().__init__(
            f"broker group{'s' * (len(names) > 1)} {named} cannot be changed now: {silent[names[0]].what}",
            "The others alone would be an incomplete change. Nothing was changed",
            "Repeat it when it answers again (ledgermq cluster status). It is lost for good: stop what is left of it, then "
            f"ledgermq cluster forget-group {names[0]}",
        )
        self.silent = dict(silent)


class PartlyChangedError(LedgerMQError):
    """A change of several broker groups stopped half way. Each group is in one of the three lists.

    `perhaps`: an attempt there had no answer. The change may be repeated.
    """

    retryable = True

    def __init__(
        self,
        error: LedgerMQError,
        *,
        at: str,
        changed: Sequence[str],
        perhaps: Sequence[str],
        unchanged: Sequence[str],
        again: str,
    ) -> None:
        lists = {"Changed": changed, "Perhaps changed": perhaps, "Not changed": unchanged}
        super().__init__(
            f'the change stopped half way, at broker group "{at}": {error.what}',
            ". ".join(f"{what}: {', '.join(names)}" for what, names in lists.items() if names),
            again,
        )
        self.changed, self.perhaps, self.unchanged = tuple(changed), tuple(perhaps), tuple(unchanged)


class PartlyRefusedError(PartlyChangedError):
    """One group refuses the change for good, for example because it exists there with other settings."""

    retryable = False
