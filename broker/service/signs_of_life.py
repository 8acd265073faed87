"""Signs of life of clients: noted at the node that is called, and passed to the leader's session view."""

from __future__ import annotations

import time
from collections.abc import Iterable

from ledgermq.raft.node.raft_node import RaftNode

from ..leader.releases import LeaseHolders
from ..replica import Replica
from .sessions import ClientsHere, session_of


class SignsOfLife:
    """Notes signs of life of this node's clients and, on the leader, of every node's clients."""

    def __init__(self, clients: ClientsHere, raft: RaftNode, replica: Replica, holders: LeaseHolders) -> None:
        self._clients = clients
        self._raft = raft
        self._replica = replica
        self._holders = holders

    def heard(self, client_id: str, *, here: bool = True) -> None:
        """Note a call of a client. With `here` False, another node forwarded the call and reports the client.
        Raises: TooManyClientsError.
        """
        if here:
            self._clients.heard(client_id, time.monotonic())
        self.alive([client_id])

    def alive(self, client_ids: Iterable[str]) -> None:
        """Refresh the sessions of clients of any node. Has an effect on the leader only."""
        if (view := self._replica.view) is not None:
            now = self._raft.next_timestamp()
            for client_id in client_ids:
                session = session_of(client_id)
                view.session_seen(session, now)
                self._holders.seen(client_id, session)

    def gone(self, client_id: str) -> None:
        """End a client's session and its auto-renewed leases. Has an effect on the leader only."""
        if (view := self._replica.view) is not None:
            view.session_closed(session_of(client_id))
            self._replica.keep_house()
