"""Exchange of addresses, liveness and client sessions between the nodes of a broker group (Raft port).

A follower reports to the leader every second and after each change of leader, each time with some of its
clients. The answer is the leader's view of all nodes. After a second without any leader, nodes report to each
other and learn at least the addresses of the live ones: a broker group with a master may lack a leader for
days. Owns: the reporting task and the Report handler. Must not: judge liveness (Members does, from Raft's
view).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, Final

import grpc
import grpc.aio

from ledgermq.proto import peer_pb2, route_pb2

from ..background import BackgroundWork
from ..cluster.forwarding import Forwarder, answer_of
from ..cluster.known_leader import Leadership
from ..cluster.lane import ForwardError
from ..cluster.members import Members
from ..refusals import RefusedError
from .answers import parsed

logger = logging.getLogger(__name__)

REPORT_INTERVAL: Final = 1.0  # seconds
#: The most clients taken from one report; nodes send fewer.
_MOST_CLIENTS: Final = 20_000
_METHOD: Final = "/ledgermq.v1.PeerService/Report"


@dataclass(eq=False, repr=False)
class Peers(BackgroundWork):
    """Sends reports and answers those of other nodes.

    `client_ids` returns the local clients to report now; `on_clients` takes those of another node.
    `check_contact` handles members out of contact, and returns how long (ms) each has been silent.
    """

    _members: Members
    _leadership: Leadership
    _forwarder: Forwarder
    _client_ids: Callable[[], Iterable[str]]
    _on_clients: Callable[[Iterable[str]], None]
    _check_contact: Callable[[], dict[str, int | None]]
    _on_change: Callable[[], None]
    _unsaid: list[str] = field(
        default_factory=list, init=False
    )  # clients of the last report, until it is answered

    async def _run(self) -> None:
        quiet = False  # no leadership change during the last second
        while True:
            if self._leadership.ready:
                self._on_clients(self._client_ids())
                if self._members.set_silence(self._check_contact()):
                    self._on_change()
            elif leader := self._leadership.known_other:
                await self._report(leader)
            elif quiet:
                await asyncio.gather(*(self._report(name) for name in self._members.others))
            changes = self._leadership.changes
            await self._leadership.wait_change(REPORT_INTERVAL)
            quiet = self._leadership.changes == changes

    async def _report(self, to: str) -> None:
        clients = self._unsaid or list(self._client_ids())
        report = peer_pb2.NodeReport(node=self._members.own, client_ids=clients)
        self._unsaid = clients
        try:
            answer = await self._forwarder.unary(to, _METHOD, report.SerializeToString(), (), REPORT_INTERVAL)
            view = answer_of(to, peer_pb2.GroupView, answer)
        except ForwardError as error:
            logger.debug("no answer to a report node=%s reason=%s", to, error)
            return  # Raft notices a node that is gone; the next round asks again
        self._unsaid = []
        if not view.refusal.code and self._members.take_view(view.nodes):
            self._on_change()

    def handler(self) -> Any:
        """Return the handler of other nodes' reports for the Raft port."""

        async def report(raw: bytes, context: Any) -> peer_pb2.GroupView:
            try:
                request = parsed(peer_pb2.NodeReport, raw)
            except RefusedError as error:
                return peer_pb2.GroupView(refusal=error.refusal)
            if self._members.learn(request.node):
                self._on_change()
            if not self._leadership.ready:
                return peer_pb2.GroupView(refusal=route_pb2.Refusal(code=route_pb2.NOT_LEADER))
            self._on_clients(request.client_ids[:_MOST_CLIENTS])
            return peer_pb2.GroupView(nodes=self._members.all())

        method = grpc.unary_unary_rpc_method_handler(
            report,
            response_serializer=peer_pb2.GroupView.SerializeToString,
        )
        return grpc.method_handlers_generic_handler("ledgermq.v1.PeerService", {"Report": method})
