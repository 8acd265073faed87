"""Assignment: the changes for one member that follow from an answer of the broker group's leader. Pure.

Owns: the comparison of the leader's answer with the queues of this member. Must not: carry out the changes.
The latest answer is complete: earlier ones that were missed do not matter.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from ledgermq.proto import log_pb2 as pb

from .owned_queue import OwnedQueue, Stage

#: Topic id and queue id.
QueueKey = tuple[int, int]


@dataclass(slots=True)
class Change:
    """Changes to carry out, in this order."""

    lost: list[OwnedQueue] = field(default_factory=list)  # drop, commit nothing
    started: list[pb.QueueOwnership] = field(default_factory=list)
    revoked: list[OwnedQueue] = field(default_factory=list)  # finish, commit, then release
    # Release again: nothing of them is here
    handed_over: list[pb.QueueOwnership] = field(default_factory=list)


def changes(here: Mapping[QueueKey, OwnedQueue], answer: pb.MembershipResponse) -> Change:
    """Compare. A queue that is being handed over is left alone until that is done."""
    change = Change()
    revoked = {(each.topic_id, each.queue_id) for each in answer.revoked}
    named: dict[QueueKey, int] = {}
    for each in answer.owned:
        key = (each.topic_id, each.queue_id)
        named[key] = each.epoch
        owned = here.get(key)
        if owned is not None and owned.epoch == each.epoch:
            if key in revoked and owned.stage is Stage.ACTIVE:
                change.revoked.append(owned)
        elif key in revoked:
            change.handed_over.append(each)
        else:
            change.started.append(each)
    change.lost = [owned for key, owned in here.items() if named.get(key) != owned.epoch]
    return change
