"""How long a client pauses before it tries again, and how long it waits for others. Pure.

Owns: every such time that is no option of a user, with its unit and its reason. Must not: pause.
"""

from __future__ import annotations

from typing import Final

# --- before another attempt

#: The first pause after a refusal, ms: most heal within one round trip. It doubles with every attempt.
FIRST_PAUSE_MS: Final = 10
#: The longest pause of one that doubles, ms: a broker group that is back must not wait long for its clients.
LONGEST_PAUSE_MS: Final = 500
#: After a round in which no node served, ms: an election takes a few hundred, so look often.
SEARCH_PAUSE_MS: Final = 100
#: The longest of these when the broker group stays silent, ms: news of its route end the pause.
LONGEST_SEARCH_PAUSE_MS: Final = 2_000
#: After a refusal of a queue or of a whole stream, s; as long as between two rounds.
REFUSED_PAUSE_S: Final = SEARCH_PAUSE_MS / 1000
#: After a step that made several attempts already, as to join, to commit, or to fetch a route, s.
RETRY_PAUSE_S: Final = 0.5
#: After a broker group or a route was not there, s: changes are pushed besides.
ROUTE_AGAIN_S: Final = 2.0
#: A queue of a topic that is gone is asked for again after so long, s; the others go on meanwhile.
PARKED_S: Final = 1.0

# --- not going there for a while; each doubles with every further failure

#: A broker group in which no node served gets no new messages for so long, ms, when others take them.
FIRST_AVOID_MS: Final = 500
LONGEST_AVOID_MS: Final = 30_000
#: A broker group of which no node answered is not received from for so long, s, when there are others.
FIRST_SILENCE_S: Final = 0.5
LONGEST_SILENCE_S: Final = 5.0
#: A follower that failed is not gone to by suggestion for so long, s.
AVOID_S: Final = 5.0
LONGEST_AVOID_S: Final = 60.0

# --- how long an answer is waited for

#: A call with all its attempts, s: longer than an election.
CALL_TIMEOUT_S: Final = 5.0
#: One node's part of it, s: the next one may be quicker.
ATTEMPT_TIMEOUT_S: Final = 2.5
#: One question to one node or nameserver that answers from memory, s.
ASK_TIMEOUT_S: Final = 2.0
#: Nodes that know who leads answer at once, s: one that is lost must not hold up the others' answers.
LEADER_PATIENCE_S: Final = 0.1
#: As long as nobody has said who leads it is waited longer, s: the nodes may be far away.
LEADER_TIMEOUT_S: Final = 1.0
#: A request without an answer for this long makes a stream suspect, ms: its node may be stopped or cut off.
ANSWER_TIMEOUT_MS: Final = 2_000
#: After this long without one the other nodes are asked who leads, ms; then at every check.
SUSPICION_MS: Final = 300
#: Between two looks at deadlines and at requests without an answer, s.
CHECK_S: Final = 0.1
#: How long a node may hold a fetch or receive while it has nothing, ms.
POLL_MS: Final = 10_000
#: A follower that was suggested has much to send, ms: one with nothing for so long has caught up, or lags.
FOLLOWER_POLL_MS: Final = 1_000
#: A node is left that cannot be connected to, takes no request, or is silent beyond the poll for so long, s.
GRACE_S: Final = 3.0
#: A broker group with living nodes is waited for when another one has answered, s: longer than an election.
JOIN_PATIENCE_S: Final = 2.0
#: A leader should hear within so long that a member leaves, s: else others get its queues a session timeout
#: later.
LEAVE_S: Final = 1.0
#: How long nameservers may take to hear of a change that was made, s; and between two looks.
NAMESERVER_WAIT_S: Final = 3.0
NAMESERVER_LOOK_S: Final = 0.02

#: Between two lines of the log about losses, s.
REPORT_S: Final = 10.0


def backoff_ms(attempt: int) -> int:
    """Return the pause before the next attempt, which doubles. `attempt` counts from 1."""
    return min(FIRST_PAUSE_MS << min(max(attempt - 1, 0), 16), LONGEST_PAUSE_MS)
