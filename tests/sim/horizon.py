"""Invariants for logs that begin above 1: states, beginnings, resets.

I12 the state of a node at an index equals that of every other node there, whatever it was restarted from or
    reset to
I13 a segment goes only once the group has decided so, and below this node's durable checkpoint, which
    includes that decision; a leader shows no earlier beginning than the leaders before it
I14 a reset removes nothing that was committed: what is deleted with the log is part of the received state,
    the silent node sends nothing, and a majority of durable disks still holds every committed entry
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from crc32c import crc32c

from .invariants import demand

if TYPE_CHECKING:
    from ledgermq.raft.folder.reset_install import ResetPlan

    from .invariants import Invariants
    from .node import SimNode
    from .state import SimState

GRID = 16  # states are compared at every multiple, and at every checkpoint


class Horizon:
    """Memory of one run about states and beginnings."""

    def __init__(self, invariants: Invariants) -> None:
        self._invariants = invariants
        self._states: dict[int, int] = {}  # index -> checksum of the state
        self._agreed = 1  # highest beginning that any node has applied
        #: Term -> beginning of the log as its leader showed it when it was ready.
        self._shown: dict[int, int] = {}
        self.decided: dict[str, ResetPlan] = {}  # nodes that decided a reset; silent since then
        self.resets = 0

    # --- I12 ------------------------------------------------------------------------------------------------
    def on_applied(self, node: SimNode, state: SimState) -> None:
        """Handle an entry applied to a complete state."""
        if state.last_applied % GRID == 0:
            self.on_capture(node, state.last_applied, state.capture())
        self._agreed = max(self._agreed, state.log_start)

    def on_capture(self, node: SimNode, index: int, state: bytes) -> None:
        """Check the state of a node at an index."""
        mine = crc32c(state)
        known = self._states.setdefault(index, mine)
        demand(known == mine, f"I12: the state of {node.name} at entry {index} is not that of the others")

    # --- I13 ------------------------------------------------------------------------------------------------
    def on_deleted(self, node: SimNode) -> None:
        """Handle that a node dropped its first segments."""
        first = int(node.core.first_index)
        demand(first <= self._agreed, f"I13: {node.name} begins at {first}, agreed was {self._agreed}")
        if node.name not in node.world.atlas.hurt:
            saved = node.image.record("checkpoint")
            covered = saved["applied"] if saved is not None else 0
            demand(first - 1 <= covered, f"I13: {node.name} deletes up to {first - 1}, checkpoint {covered}")
            known = node.parts.state_class()
            known.install(bytes.fromhex(saved["state"]) if saved is not None else b"")
            demand(
                first <= known.log_start,
                f"I13: {node.name} begins at {first}, its checkpoint at {known.log_start}",
            )

    def on_ready(self, node: SimNode, log_start: int) -> None:
        """Handle that a leader has applied its first entry: clients now see the beginning of its log."""
        term = int(node.core.term)
        earlier = max((start for other, start in self._shown.items() if other < term), default=1)
        demand(log_start >= earlier, f"I13: {node.name} shows the beginning {log_start} after {earlier}")
        self._shown[term] = max(log_start, self._shown.get(term, 1))

    # --- I14 ------------------------------------------------------------------------------------------------
    def on_decided(self, node: SimNode, plan: ResetPlan) -> None:
        """Handle that a node has the leader's state and is about to give up its own log for it."""
        committed = self._invariants.committed
        base = plan.base_index
        demand(base in committed, f"I14: {node.name} is reset to {base}, which was never committed")
        held = max((i for i, crc in node.image.known().items() if committed.get(i) == crc), default=0)
        demand(held <= base, f"I14: {node.name} gives up the committed entry {held} to be reset to {base}")
        self.decided[node.name] = plan

    def on_install(self, node: SimNode, plan: ResetPlan, state: bytes) -> None:
        """Handle that the new process found the decision."""
        demand(
            len(state) == plan.state_size and self._states.get(plan.state_index) == crc32c(state),
            f"I14: {node.name} installs what is not the state at entry {plan.state_index}",
        )

    def on_installed(self, node: SimNode) -> None:
        """Check, once a node runs after a reset, that everything committed is still there."""
        self.resets += 1
        self.check_committed(f"after the reset of {node.name}")

    def check_committed(self, when: str) -> None:
        """Check that a majority of durable disks holds everything ever committed."""
        invariants = self._invariants
        index = invariants.max_committed
        nodes = invariants.nodes.values()
        holders = [node.name for node in nodes if node.has_durable(index, invariants.committed[index])]
        demand(
            invariants.is_quorum(holders),
            f"I14: {when}, entry {index} is durable only on {', '.join(holders) or 'no node'}",
        )

    def on_life(self, node: SimNode) -> None:
        """Handle the start or end of a process: it may send again once it runs."""
        self.decided.pop(node.name, None)
