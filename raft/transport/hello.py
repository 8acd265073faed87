"""Greeting that opens every stream between two nodes, its encoding, and the reasons to refuse one.

Pure. Both sides check the other's greeting with the same function, so both refuse it and both can log why.

A greeting is the first message in each direction: a Hello, and the reply to it. Both end with a checksum over
everything before it: a flipped bit in an incarnation could make a node give up an intact folder. In plain
frames the checksum is part of Hello and HelloReply; builds without checked frames neither write nor read it.
There a sender that announces checked frames, or whose frame ends like this, must have a valid one. So no
single bit flip makes a greeting look like that of an older build.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from enum import Enum
from itertools import chain
from typing import Any, Final

from ledgermq.proto import raft_pb2 as pb
from ledgermq.proto.entry import Buffer
from ledgermq.proto.foreign_text import safe_text

from ..core.reign import Claim, Reign, Replication, explain_reign
from ..errors import DamagedFrameError
from ..types import LogIndex, NodeId, Term
from .checked_frame import CHECKED_FRAMES
from .seal import has_seal, seal_of

FORMAT: Final = 1
#: Maximum length of a name in characters. Names in settings are shorter, but a greeting may carry any.
MAX_NAME_SIZE: Final = 255
#: Far more than any greeting or reply needs.
MAX_GREETING_SIZE: Final = 1 << 16


#: Fields of a Hello that have the same name and value on the wire; the names among them are checked.
_NAMES: Final = ("cluster_id", "group", "node_id", "to_node_id")
_PLAIN: Final = (
    "format", "feature_level", "incarnation", "segment_size", "term", "group_id", "fsync_p99_ms",
    "disk_used_ratio", "frames",
)  # fmt: skip


class Standing(Enum):
    """Standing of a node: what its vote and its copies count for (P19)."""

    FRESH = pb.STANDING_FRESH  # never voted, empty log; becomes a voter by `may_become_voter`
    VOTER = pb.STANDING_VOTER
    LEARNER = pb.STANDING_LEARNER  # lost its log; becomes a voter again by `Rejoin`


class RefusalKind(Enum):
    """Reason to refuse a greeting."""

    FORMAT = pb.REFUSAL_FORMAT
    CLUSTER = pb.REFUSAL_CLUSTER
    GROUP = pb.REFUSAL_GROUP
    NOT_A_MEMBER = pb.REFUSAL_NOT_A_MEMBER
    WRONG_ADDRESS = pb.REFUSAL_WRONG_ADDRESS
    SEGMENT_SIZE = pb.REFUSAL_SEGMENT_SIZE
    INCARNATION = pb.REFUSAL_INCARNATION
    MALFORMED = pb.REFUSAL_MALFORMED
    OTHER_GROUP = pb.REFUSAL_OTHER_GROUP
    REPLICATION = pb.REFUSAL_REPLICATION
    LEFT_BEHIND = pb.REFUSAL_LEFT_BEHIND
    TERM = pb.REFUSAL_TERM


@dataclass(frozen=True, slots=True)
class Refusal:
    """`text` says what happened, why, and what to do. Both sides show it."""

    kind: RefusalKind
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Hello:
    """Greeting of one node. `to_node_id` is empty in a reply."""

    cluster_id: str
    group: str
    node_id: NodeId
    incarnation: int  # of the sender's data folder; a new one means that it began with an empty log
    segment_size: int  # must be equal on all members
    standing: Standing  # the receiver treats the sender's vote and copies accordingly
    term: Term  # highest term that the sender knows
    to_node_id: str = ""
    # `group_id_of` the first members; 0: the sender does not know it yet
    group_id: int = 0
    # incarnation of each peer, as durably stored by the sender
    known_incarnations: dict[NodeId, int] = field(default_factory=dict)
    format: int = FORMAT
    feature_level: int = 1
    fsync_p99_ms: float = 0.0  # sender's fsync latency, for status
    disk_used_ratio: float = 0.0  # 0..1 of the sender's data file system, for status
    replication: Replication = Replication.QUORUM
    reign: Reign | None = None  # of a broker group with a master; None: a majority decides
    frames: int = CHECKED_FRAMES  # newest frame format that the sender supports

    @property
    def is_learner(self) -> bool:
        return self.standing is Standing.LEARNER

    def to_proto(self) -> pb.Hello:
        """Return the wire form."""
        return pb.Hello(
            **{name: getattr(self, name) for name in (*_NAMES, *_PLAIN)},
            standing=self.standing.value,
            known_incarnations={str(node): name for node, name in self.known_incarnations.items()},
            replication=self.replication.value,
            reign=None if self.reign is None else pb.Reign(**asdict(self.reign)),
        )

    @staticmethod
    def from_proto(message: pb.Hello) -> Hello:
        """Decode a greeting. Raises: ValueError (unknown standing or mode, or an invalid name)."""
        plain: dict[str, Any] = {name: getattr(message, name) for name in _PLAIN}
        plain |= {name: _checked(getattr(message, name)) for name in _NAMES}
        return Hello(
            **plain,
            standing=Standing(message.standing),
            known_incarnations={NodeId(_checked(k)): v for k, v in message.known_incarnations.items()},
            replication=Replication(message.replication or "quorum"),
            reign=_reign_from_proto(message),
        )


def _checked(name: str) -> str:
    """Return a name that is safe to put into logs, refusals and pages. Raises: ValueError."""
    if len(name) > MAX_NAME_SIZE or not name.isprintable():
        raise ValueError(f"{safe_text(name, 40)} is not a name")
    return name


def _reign_from_proto(message: pb.Hello) -> Reign | None:
    if not message.HasField("reign"):
        return None
    reign = message.reign
    return Reign(
        master=NodeId(_checked(reign.master)),
        generation=reign.generation,
        began_after=LogIndex(reign.began_after),
        former_group_ids=tuple(reign.former_group_ids),
    )


# --- bytes ------------------------------------------------------------------------------------------------
def reply_of(hello: Hello, refusal: Refusal | None) -> pb.HelloReply:
    """Return the reply to a greeting."""
    reply = pb.HelloReply(hello=hello.to_proto())
    if refusal is not None:
        reply.refusal, reply.refusal_kind = refusal.text, refusal.kind.value
    return reply


def encode_first_frame(hello: Hello) -> bytes:
    """Return the greeting of a call, without its checksum."""
    return pb.RaftFrame(hello=hello.to_proto()).SerializeToString()


def read_first_frame(frame: Buffer) -> Hello:
    """Decode the greeting of a call. Raises: ValueError, DecodeError."""
    message = pb.RaftFrame.FromString(bytes(frame))
    if not message.HasField("hello") or message.messages or message.entries:
        raise ValueError("the first message of a stream has `hello`, and nothing else")
    return Hello.from_proto(message.hello)


def encode_first_answer(reply: pb.HelloReply) -> bytes:
    """Return the first answer of a call, without its checksum."""
    return pb.StreamAnswer(reply=reply).SerializeToString()


def read_first_answer(frame: Buffer) -> pb.HelloReply:
    """Decode the first answer of a call, without looking into its Hello. Raises: ValueError, DecodeError."""
    answer = pb.StreamAnswer.FromString(bytes(frame))
    if not answer.HasField("reply"):
        raise ValueError("the first answer has no `reply`")
    return answer.reply


def encode_arrived(count: int) -> bytes:
    """Return a report of received bytes, without its checksum."""
    return pb.StreamAnswer(arrived=count).SerializeToString()


def read_arrived(frame: Buffer) -> int:
    """Decode a report of received bytes. Raises: DecodeError."""
    return pb.StreamAnswer.FromString(bytes(frame)).arrived


# --- bytes of the version before ----------------------------------------------------------------------------
def encode_greeting(hello: Hello) -> bytes:
    """Return the first frame of a stream."""
    return _sealed(hello.to_proto().SerializeToString())


def encode_reply(reply: pb.HelloReply, frames: int) -> bytes:
    """Return the reply to a greeting. `frames`: the kind that this node reads from the stream from now on."""
    reply.frames = frames
    return _sealed(reply.SerializeToString())


def read_greeting(frame: Buffer) -> Hello:
    """Decode the first frame of a stream. Raises: DamagedFrameError, ValueError, DecodeError."""
    data = bytes(frame)
    is_sealed = has_seal(data)
    hello = Hello.from_proto(pb.Hello.FromString(data))
    _demand(is_sealed or not hello.frames)
    return hello


def read_reply(frame: Buffer) -> pb.HelloReply:
    """Decode a reply without looking into its Hello. Raises: DamagedFrameError, DecodeError."""
    data = bytes(frame)
    is_sealed = has_seal(data)
    reply = pb.HelloReply.FromString(data)
    _demand(is_sealed or not (reply.frames or reply.hello.frames))
    return reply


def frames_with(hello: Hello) -> int:
    """Return the kind of frames that this build uses with the sender of a greeting."""
    return min(hello.frames, CHECKED_FRAMES)


def _sealed(data: bytes) -> bytes:
    return data + seal_of(data)


def _demand(holds: bool) -> None:
    if not holds:
        raise DamagedFrameError("a greeting was changed on the way")


# --- refusals ---------------------------------------------------------------------------------------------
def refusal_of(mine: Hello, theirs: Hello, members: frozenset[NodeId]) -> Refusal | None:
    """Return why `theirs` must be refused, or None. `MemberRecord` judges incarnations."""
    reasons = chain(
        _of_another_group(mine, theirs),
        _of_another_generation(mine, theirs),
        _of_no_member(mine, theirs, members),
        _of_other_settings(mine, theirs),
    )
    return next(reasons, None)  # the checks are lazy: none runs after the first reason


def _of_another_group(mine: Hello, theirs: Hello) -> Iterator[Refusal]:
    who = _name(theirs)
    if theirs.format != mine.format:
        text = (
            f"{who} speaks Raft protocol version {theirs.format}, {mine.node_id} speaks {mine.format}. "
            "Run the same LedgerMQ release on both"
        )
        yield Refusal(RefusalKind.FORMAT, text)
    if theirs.cluster_id != mine.cluster_id:
        text = (
            f"{who} belongs to cluster {theirs.cluster_id}, {mine.node_id} to cluster {mine.cluster_id}. "
            "Check the member addresses in the configuration of both"
        )
        yield Refusal(RefusalKind.CLUSTER, text)
    if theirs.group != mine.group:
        text = (
            f"{who} belongs to broker group {theirs.group}, {mine.node_id} to broker group {mine.group}. "
            "Check the member addresses in the configuration of both"
        )
        yield Refusal(RefusalKind.GROUP, text)


def _of_another_generation(mine: Hello, theirs: Hello) -> Iterator[Refusal]:
    who = _name(theirs)
    if successor_of(theirs, mine) is not None:
        text = (
            f"broker group {mine.group} goes on without the data folder of {who}: {_promoted(mine)}. {who} "
            "never leads again with that folder. It moves it aside, whole, and fetches everything from the "
            "master, by itself"
        )
        yield Refusal(RefusalKind.LEFT_BEHIND, text)
    if successor_of(mine, theirs) is not None:
        text = (
            f"{mine.node_id} was left behind: {_promoted(theirs)}. It moves its folder aside and starts again"
        )
        yield Refusal(RefusalKind.LEFT_BEHIND, text)
    if 0 in (mine.group_id, theirs.group_id) or mine.group_id == theirs.group_id:
        return
    if _are_rivals(mine, theirs):
        text = (
            f"{who} and {mine.node_id} are of generations of broker group {mine.group} that began beside "
            f"each other: {_said(theirs)}; {_said(mine)}. One of the two must be given up: "
            f"{_choice(mine, theirs)}; nothing was changed"
        )
        yield Refusal(RefusalKind.OTHER_GROUP, text)
    text = (
        f"another broker group with the same names (cluster {mine.cluster_id}, broker group {mine.group}) "
        f"answers at that address: {who} has broker group id {theirs.group_id:016x}, {mine.node_id} has "
        f"{mine.group_id:016x}. Two clusters on one machine, or ports mixed up? Check the addresses and "
        "ports of the members in the configuration of both; nothing was changed"
    )
    yield Refusal(RefusalKind.OTHER_GROUP, text)


def _of_no_member(mine: Hello, theirs: Hello, members: frozenset[NodeId]) -> Iterator[Refusal]:
    who = _name(theirs)
    if theirs.node_id not in members or theirs.node_id == mine.node_id:
        text = (
            f"{who} is not another member of broker group {mine.group} for {mine.node_id} "
            f"(members: {', '.join(sorted(members))}). Use the same member list on every node"
        )
        yield Refusal(RefusalKind.NOT_A_MEMBER, text)
    if theirs.to_node_id not in ("", mine.node_id):
        text = (
            f"{who} looked for {theirs.to_node_id} and reached {mine.node_id}. "
            "Correct the member addresses in the configuration"
        )
        yield Refusal(RefusalKind.WRONG_ADDRESS, text)


def _of_other_settings(mine: Hello, theirs: Hello) -> Iterator[Refusal]:
    who = _name(theirs)
    if theirs.segment_size != mine.segment_size:
        text = (
            f"{who} has segments of {theirs.segment_size} bytes, {mine.node_id} of {mine.segment_size}. "
            "The segment size must be equal on every node of a broker group"
        )
        yield Refusal(RefusalKind.SEGMENT_SIZE, text)
    if theirs.replication is not mine.replication or _is_other_reign(mine, theirs):
        text = (
            f"{who} has {_said(theirs)}, {mine.node_id} has {_said(mine)}. Set `replication` and `master` "
            "alike on every node of a broker group; another node becomes the master only by: ledgermq "
            "cluster promote NODE. A folder that was never part of this generation starts with: ledgermq "
            "broker --rejoin"
        )
        yield Refusal(RefusalKind.REPLICATION, text)


def claim_beside(mine: Hello, theirs: Hello) -> Claim | None:
    """Return the generation of the sender of `theirs` if neither it nor that of `mine` follows the other."""
    knows = 0 not in (mine.group_id, theirs.group_id) and mine.group_id != theirs.group_id
    if not knows or theirs.reign is None or not _are_rivals(mine, theirs):
        return None
    follows = successor_of(mine, theirs) or successor_of(theirs, mine)
    return None if follows is not None else Claim(group_id=theirs.group_id, reign=theirs.reign)


def _name(hello: Hello) -> str:
    return hello.node_id or "a node without a name"


def _said(hello: Hello) -> str:
    return explain_reign(hello.reign, hello.replication.value)


def _promoted(hello: Hello) -> str:
    if hello.reign is None:
        return ""
    return (
        f"{hello.reign.master} was promoted to its master (generation {hello.reign.generation}), which took "
        f"over the entries up to {hello.reign.began_after}"
    )


def _choice(mine: Hello, theirs: Hello) -> str:
    masters = [hello.reign.master for hello in (mine, theirs) if hello.reign is not None]
    ways = zip(masters, reversed(masters), strict=True)
    commands = [f"ledgermq cluster promote {one} --instead-of {other}" for one, other in ways]
    return f"{commands[0]}, or {commands[1]}; what only the other one has is kept in its data folder"


def _is_other_reign(mine: Hello, theirs: Hello) -> bool:
    """Return whether the two disagree about the master although neither superseded the other."""
    if mine.reign is None or theirs.reign is None:
        return mine.reign is not theirs.reign
    return (mine.reign.generation, mine.reign.master) != (theirs.reign.generation, theirs.reign.master)


def _are_rivals(mine: Hello, theirs: Hello) -> bool:
    """Return whether both generations follow the same one: neither promotion knew of the other."""
    if mine.reign is None or theirs.reign is None:
        return False
    return bool(set(mine.reign.former_group_ids) & set(theirs.reign.former_group_ids))


def successor_of(mine: Hello, theirs: Hello) -> Reign | None:
    """Return the reign that superseded the sender of `mine`, or None.

    A learner that does not know its broker group id yet holds nothing to be superseded: it follows the newest
    generation. If two masters were promoted beside each other and one of them is such a learner, a person
    gave it up. It follows the other one, and its slaves, given up with it, accept that.
    """
    if mine.reign is None or theirs.reign is None or theirs.reign.generation < mine.reign.generation:
        return None
    is_blank = not mine.group_id and mine.is_learner
    if theirs.reign.generation > mine.reign.generation:
        return theirs.reign if is_blank or mine.group_id in theirs.reign.former_group_ids else None
    if not is_blank or not mine.reign.generation or theirs.reign.master == mine.reign.master:
        return None
    was_master = mine.reign.master == mine.node_id
    is_told = bool(theirs.group_id) if was_master else theirs.node_id == mine.reign.master
    return theirs.reign if is_told else None
