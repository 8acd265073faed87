"""Signs of life of clients: noted where they call, and told to the leader's view, which keeps sessions."""

from __future__ import annotations

import time
from collections.abc import Iterable

from ledgermq.raft.node.raft_node import RaftNode

from ..leader.recent_deliveries import LeaseHolders
from ..replica import Replica
from .sessions import ClientsHere, session_of


class SignsOfLife:
    """Takes them in, of clients of this node and, where it leads, of any node."""

    def __init__(self, clients: ClientsHere, raft: RaftNode, replica: Replica, holders: LeaseHolders) -> None:
        self._clients = clients
        self._raft = raft
        self._replica = replica
        self._holders = holders

    def heard(self, client_id: str, *, here: bool = True) -> None:
        """A client called; not `here`: at a node that passed its call on, and reports it.

        Raises: TooManyClientsError.
        """
        if here:
            self._clients.heard(client_id, time.monotonic())
        self.alive([client_id])

    def alive(self, client_ids: Iterable[str]) -> None:
        """Leader: clients of any node show signs of life."""
        if (view := self._replica.view) is not None:
            now = self._raft.next_timestamp()
            for client_id in client_ids:
                session = session_of(client_id)
                view.session_seen(session, now)
                self._holders.seen(client_id, session)

    def gone(self, client_id: str) -> None:
        """Leader: a client says goodbye; its auto-renewed leases end."""
        if (view := self._replica.view) is not None:
            view.session_closed(session_of(client_id))
            self._replica.keep_house()
