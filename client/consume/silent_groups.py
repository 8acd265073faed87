"""Silent broker groups: those not to be asked for a while, because none of their nodes answered. Pure.

Must not: read clocks (`now` is monotonic seconds), or exclude all broker groups.
"""

from __future__ import annotations

from collections.abc import Sequence

from ..pauses import FIRST_SILENCE_S, LONGEST_SILENCE_S

Source = tuple[str, str]  # topic, broker group


class SilentGroups:
    """Report `failed` and `answered`; get the sources to ask from `among`."""

    def __init__(self) -> None:
        self._until: dict[str, tuple[float, float]] = {}  # broker group → (until, next duration), s

    def failed(self, broker_group: str, now: float) -> None:
        """No node of the broker group answered."""
        _, seconds = self._until.get(broker_group, (0.0, FIRST_SILENCE_S))
        self._until[broker_group] = (now + seconds, min(2 * seconds, LONGEST_SILENCE_S))

    def answered(self, broker_group: str) -> None:
        """A node of the broker group answered."""
        self._until.pop(broker_group, None)

    def among(self, sources: Sequence[Source], now: float) -> Sequence[Source]:
        """Return the sources to ask now; all of them when every broker group is silent."""
        if not self._until:
            return sources
        found = [each for each in sources if self._until.get(each[1], (now, 0.0))[0] <= now]
        return found or sources
