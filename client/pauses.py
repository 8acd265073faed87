"""How long a client pauses before it tries again. Pure.

Owns: every pause, with its unit and its reason. Must not: pause.
"""

from __future__ import annotations

from typing import Final

#: The first pause after a refusal, ms: most of them heal within one round trip. It doubles with every attempt.
FIRST_PAUSE_MS: Final = 10
#: The longest pause of one that doubles, ms: whoever comes back must not wait long for its clients.
LONGEST_PAUSE_MS: Final = 500


def backoff_ms(attempt: int) -> int:
    """Return the pause before the next attempt: doubling from 10 ms, at most 500 ms. `attempt` counts from 1."""
    return min(FIRST_PAUSE_MS << min(max(attempt - 1, 0), 16), LONGEST_PAUSE_MS)
