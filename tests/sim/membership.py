"""Greetings, incarnations and voting rights in the simulation: the real `VotingRights`, over events.

Does with events what it and the transport do with coroutines and streams: store, ask, greet. Greetings are
packets that are repeated until they are answered. The member record is stored in simulated time before any
greeting is answered. Frames count only if they come from the run of a node whose greeting was accepted.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from google.protobuf.message import DecodeError

from ledgermq.raft.drive.voting_rights import VotingRights
from ledgermq.raft.errors import DamagedFrameError
from ledgermq.raft.folder.bootstrap import is_vouched_for
from ledgermq.raft.transport.hello import (
    Hello,
    Refusal,
    RefusalKind,
    Standing,
    encode_first_answer,
    encode_first_frame,
    read_first_answer,
    read_first_frame,
    refusal_of,
    reply_of,
)
from ledgermq.raft.transport.seal import seal_of, unsealed
from ledgermq.raft.types import LogIndex, NodeId

if TYPE_CHECKING:
    from .life import Life

MS = 1000
GREET_AGAIN_US = 100 * MS
AIM = "aim"  # context of the read that tells a learner its target


class Greeting(NamedTuple):
    """A packet with a Hello, or the reply to one, from one run of one node."""

    from_: str
    run: int
    hello: bytes
    answers: int  # the run whose greeting this answers; 0: not a reply
    heard_by: int  # the receiver's run when it was sent: a connection does not outlive either end

    @property
    def is_answer(self) -> bool:
        return self.answers > 0


class Membership(VotingRights):
    """One life's view of the broker group: the real rights, over events instead of coroutines."""

    def __init__(self, life: Life) -> None:
        async def never() -> LogIndex:
            raise AssertionError("the life asks for read indexes")

        super().__init__(
            life.node.config, life.storage, life.core, promote=life.promote, announce=self.announce,
            read_index=never, on_new_incarnation=lambda peer, _: self._forget_streams(peer),
            on_learner=life.peer_replaced, on_left_behind=lambda reign: None, on_outdated=life.fail,
        )  # fmt: skip
        self._life = life
        self._aims = False
        self._storing = False
        self._waiting: list[Greeting] = []
        self._known_group_id = life.storage.identity.group_id
        self.accepted_run: dict[str, int] = {}  # peer -> run whose frames count

    @property
    def group_id(self) -> int:
        """Id of the broker group, once it is durable here."""
        return self._known_group_id

    @property
    def accepted_by(self) -> set[NodeId]:
        """Peers that accepted the greeting of this run."""
        return self._accepted_by

    def _forget_streams(self, peer: NodeId) -> None:
        self.accepted_run.pop(peer, None)

    def own_hello(self) -> Hello:
        """Return this node's greeting."""
        return self.hello(None, 0.0, 0.0)

    # --- greeting -------------------------------------------------------------------------------------------
    def greet_all(self) -> None:
        """Greet the peers that have not answered, and reschedule."""
        for peer in self._life.peers:
            if peer not in self.accepted_by:
                self._greet(peer)
        if len(self.accepted_by) < len(self._life.peers):
            self._life.later(GREET_AGAIN_US, "greet")

    def _greet(self, peer: NodeId) -> None:
        self._send(peer, encode_first_frame(self.own_hello()), 0)

    def _send(self, peer: str, data: bytes, answers: int) -> None:
        node = self._life.node
        heard_by = node.world.nodes[peer].life_number
        arrives = node.world.network.spoil(data + seal_of(data))
        greeting = Greeting(node.name, node.life_number, arrives, answers, heard_by)
        node.world.transmit(node.name, peer, "greeting", greeting)

    def announce(self) -> None:
        """Tell every peer what changed about this node."""
        for peer in self._life.peers:
            self._life.send_news(peer, self.own_hello())

    def on_greeting(self, greeting: Greeting) -> None:
        """Judge a greeting or a reply. The reply to it may have to wait for the disk."""
        here = self._life.node.life_number
        if greeting.heard_by != here or (greeting.is_answer and greeting.answers != here):
            return  # a connection of an earlier run
        if self._storing:
            self._waiting.append(greeting)
            return
        try:
            hello = self._read(greeting)
        except (DamagedFrameError, DecodeError, ValueError):
            return  # the connection ends, and it greets again
        if hello is None or greeting.run < self.accepted_run.get(hello.node_id, 0):
            return  # from a closed connection; accepting a new one drops the old one
        refusal = self._refusal_of(hello)
        if refusal is not None:
            self._refuse(greeting, refusal)
        elif self._record.would_change(hello):
            self._store_member(greeting, hello)
        else:
            self._admit(greeting, hello)

    async def admit(self, hello: Hello) -> Refusal | None:
        """Judge the greeting of a call. An unknown incarnation has to greet on a stream first."""
        refusal = self._refusal_of(hello)
        if refusal is None and self._record.would_change(hello):
            refusal = Refusal(RefusalKind.INCARNATION, f"{hello.node_id} is not known yet")
        if refusal is None and hello.standing is Standing.LEARNER:
            self._life.peer_replaced(hello.node_id)
        return refusal

    def _refusal_of(self, hello: Hello) -> Refusal | None:
        mine = self.own_hello()
        vouched = is_vouched_for(hello, self.hellos, len(self._members)) and mine.standing is Standing.LEARNER
        return refusal_of(mine, hello, self._members) or self._record.refusal_of(hello, vouched=vouched)

    def _read(self, greeting: Greeting) -> Hello | None:
        message = unsealed(greeting.hello)
        if not greeting.is_answer:
            return read_first_frame(message)
        reply = read_first_answer(message)
        if not reply.refusal_kind:
            return Hello.from_proto(reply.hello)
        kind = RefusalKind(reply.refusal_kind)
        if reply.hello.standing == Standing.LEARNER.value:
            return None  # its own record may be the old one
        if kind is RefusalKind.INCARNATION and self.group_id in (0, reply.hello.group_id):
            sender = Hello.from_proto(reply.hello)
            self.weigh_refusal(sender.node_id, Refusal(kind, reply.refusal), sender)
        return None

    def _refuse(self, greeting: Greeting, refusal: Refusal) -> None:
        if not greeting.is_answer:
            reply = encode_first_answer(reply_of(self.own_hello(), refusal))
            self._send(greeting.from_, reply, greeting.run)

    def _store_member(self, greeting: Greeting, hello: Hello) -> None:
        if self._life.disk.broken:
            return
        changed = {**self._record.known, hello.node_id: hello.incarnation}
        try:
            self._life.storage.learn_members(changed)
        except OSError:
            return  # no reply: it greets again
        self._storing = True
        self._life.when_disk_is_done("stored", (greeting, hello, changed))

    def on_stored(self, stored: tuple[Greeting, Hello, dict[NodeId, int]]) -> None:
        """Handle that the member record is durable: answer the greeting that waited for it."""
        greeting, hello, changed = stored
        self._storing = False
        if self._record.known.get(hello.node_id):
            self._on_new_incarnation(hello.node_id, hello.incarnation)  # streams of the former one end
        self._record.known = changed
        self.announce()
        self._admit(greeting, hello)
        waiting, self._waiting = self._waiting, []
        for each in waiting:
            self.on_greeting(each)

    def _admit(self, greeting: Greeting, hello: Hello) -> None:
        peer = hello.node_id
        known_run = self.accepted_run.get(peer, 0)
        if hello.standing is Standing.LEARNER:
            self._life.peer_replaced(peer)
        self.accepted_run[peer] = greeting.run
        if greeting.run > known_run and known_run:
            self.accepted_by.discard(peer)  # its streams are new, and so are those to it
            self._greet(peer)
            self._life.later(GREET_AGAIN_US, "greet")
        if greeting.is_answer:
            self.accepted_by.add(peer)
        else:
            self._send(peer, encode_first_answer(reply_of(self.own_hello(), None)), greeting.run)
        self.learn(hello)

    # --- rights ---------------------------------------------------------------------------------------------
    def _begin_to_aim(self) -> None:
        if not self._aims:
            self._aims = self._life.ask_read(AIM)

    def on_aim(self, index: LogIndex | None) -> None:
        """Handle the leader's commit index (None: no leader answered)."""
        self._aims = False
        if index is not None:
            self._rejoin.aim(index, self.hellos)
        self.advance()

    def note_durable(self, seq: int) -> None:
        """Record that persist operations up to `seq` are done, possibly including a promotion."""
        if self._promotion_seq is not None and not self._was_voter and seq >= self._promotion_seq:
            self._life.node.promoted()
        super().note_durable(seq)

    def _identify(self) -> None:
        if self.group_id or self._storing or self._life.disk.broken:
            return
        group_id = self._find_group_id()
        if not group_id:
            return
        try:
            self._life.storage.learn_group_id(group_id)
        except OSError:
            return
        self._storing = True
        self._life.when_disk_is_done("identified", group_id)

    def on_identified(self, group_id: int) -> None:
        """Handle that the group id is durable here."""
        self._storing = False
        self._known_group_id = group_id
        self.announce()
        waiting, self._waiting = self._waiting, []
        for each in waiting:
            self.on_greeting(each)
