"""Pauses and timeouts of clients. Pure.

Owns: every such time that is not a user's option, with its unit and its reason. Must not: pause.
"""

from __future__ import annotations

from typing import Final

# --- before another attempt

#: First pause after a refusal, ms: most heal within one round trip. Doubles with every attempt.
FIRST_PAUSE_MS: Final = 10
#: Maximum of a pause that doubles, ms: a broker group that is back must not wait long for its clients.
LONGEST_PAUSE_MS: Final = 500
#: After a round in which no node served, ms: an election takes a few hundred, so look often.
SEARCH_PAUSE_MS: Final = 100
#: Maximum of these while the broker group stays silent, ms: news of its route end the pause.
LONGEST_SEARCH_PAUSE_MS: Final = 2_000
#: After the refusal of a queue or of a whole stream, s; as long as between two rounds.
REFUSED_PAUSE_S: Final = SEARCH_PAUSE_MS / 1000
#: After a step that has already made several attempts, such as a join, a commit or a route request, s.
RETRY_PAUSE_S: Final = 0.5
#: After a broker group or a route was missing, s: changes are pushed as well.
ROUTE_AGAIN_S: Final = 2.0
#: Until a queue of a topic that is gone is requested again, s; the others continue meanwhile.
PARKED_S: Final = 1.0

# --- temporary avoidance; each time doubles with every further failure

#: A broker group in which no node served gets no new messages for this long, ms, if others take them.
FIRST_AVOID_MS: Final = 500
LONGEST_AVOID_MS: Final = 30_000
#: A broker group of which no node answered is not received from for this long, s, if there are others.
FIRST_SILENCE_S: Final = 0.5
LONGEST_SILENCE_S: Final = 5.0
#: Suggestions of a follower that failed are ignored for this long, s.
AVOID_S: Final = 5.0
LONGEST_AVOID_S: Final = 60.0

# --- timeouts

#: A call including all attempts, s: longer than an election.
CALL_TIMEOUT_S: Final = 5.0
#: One node's share of it, s: the next node may be faster.
ATTEMPT_TIMEOUT_S: Final = 2.5
#: One query to one node or nameserver that answers from memory, s.
ASK_TIMEOUT_S: Final = 2.0
#: Nodes that know the leader answer at once, s: a lost node must not delay the answers of the others.
LEADER_PATIENCE_S: Final = 0.1
#: Wait while no answer names a leader, s: the nodes may be far away.
LEADER_TIMEOUT_S: Final = 1.0
#: A request without an answer for this long ends the stream, ms: its node may be stopped or cut off.
ANSWER_TIMEOUT_MS: Final = 2_000
#: After this long without an answer the other nodes are asked for the leader, ms; then at every check.
SUSPICION_MS: Final = 300
#: Interval of the checks of deadlines and unanswered requests, s.
CHECK_S: Final = 0.1
#: How long a node may hold a fetch or receive without messages, ms.
POLL_MS: Final = 10_000
#: As POLL_MS for a suggested follower, ms: it has much to send. Without messages for this long it has caught
#: up, or lags.
FOLLOWER_POLL_MS: Final = 1_000
#: A node is left if it cannot be connected to, takes no request, or is silent beyond the poll for this long,
#: s.
GRACE_S: Final = 3.0
#: How long to wait for a broker group with live nodes after another one has answered, s: longer than an
#: election.
JOIN_PATIENCE_S: Final = 2.0
#: How long to try to tell a leader that a member leaves, s. Otherwise others get its queues a session timeout
#: later.
LEAVE_S: Final = 1.0
#: How long nameservers may take to hear of a change, s; and the interval of the checks.
NAMESERVER_WAIT_S: Final = 3.0
NAMESERVER_LOOK_S: Final = 0.02

#: Minimum interval of log lines about losses, s.
REPORT_S: Final = 10.0


def backoff_ms(attempt: int) -> int:
    """Return the pause before the next attempt, ms; it doubles. `attempt` counts from 1."""
    return min(FIRST_PAUSE_MS << min(max(attempt - 1, 0), 16), LONGEST_PAUSE_MS)
