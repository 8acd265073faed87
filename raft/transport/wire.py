"""Frames of the Raft streams: the core's messages as protobuf, with log bytes beside them (proto/raft.proto).

Pure. A frame is a valid serialized RaftFrame, yet neither side copies the entries through protobuf. `entries`
is its last field before the checksum, so the sender writes [rest, tag, length] followed by the log bytes and
the checksum (seal.py), and the receiver cuts there. Control messages leave in batches; an append is encoded
once for several peers.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from typing import Any, Final

from google.protobuf.message import DecodeError

from ledgermq.proto import raft_pb2 as pb
from ledgermq.proto.entry import Buffer
from ledgermq.proto.errors import CorruptError
from ledgermq.proto.varint import read_varint, varint

from ..core.messages import (
    AppendEntries,
    AppendEntriesReply,
    Heartbeat,
    HeartbeatReply,
    Message,
    ReadIndexReply,
    ReadIndexRequest,
    RequestVote,
    RequestVoteReply,
    Resign,
    TimeoutNow,
)
from ..types import LogIndex, NodeId, Term
from .hello import Hello
from .seal import seal_of

#: Maximum number of control messages in a frame.
MAX_CONTROL_BATCH: Final = 64
_MESSAGES_TAG: Final = 1 << 3 | 2
_ENTRIES_TAG: Final = 15 << 3 | 2

#: Messages whose fields have the same names on the wire: (class, name in the oneof, wire class, fields).
_PLAIN: Final[tuple[tuple[type, str, Any, tuple[str, ...]], ...]] = (
    (RequestVote, "request_vote", pb.RequestVote, ("last_index", "last_term", "pre_vote", "transfer")),
    (RequestVoteReply, "request_vote_reply", pb.RequestVoteReply, ("granted", "pre_vote")),
    (Heartbeat, "heartbeat", pb.RaftHeartbeat, ("commit_index", "context", "log_time_ms")),
    (
        HeartbeatReply, "heartbeat_reply", pb.RaftHeartbeatReply,
        ("context", "stable_index", "commit_index", "is_learner", "wants_commit"),
    ),
    (TimeoutNow, "timeout_now", pb.TimeoutNow, ()),
    (Resign, "resign", pb.Resign, ()),
    (ReadIndexRequest, "read_index_request", pb.ReadIndexRequest, ("context",)),
    (ReadIndexReply, "read_index_reply", pb.ReadIndexReply, ("context", "index")),
)  # fmt: skip

Encoder = Callable[[Any], pb.RaftMessage]
Decoder = Callable[[pb.RaftMessage, NodeId, NodeId], Message]


def encode_control(messages: Iterable[Message], hello: Hello | None = None) -> bytes:
    """Return one frame with all `messages` (none has entries) and optionally the sender's greeting."""
    frame = pb.RaftFrame(messages=[_ENCODERS[type(message)](message) for message in messages])
    if hello is not None:
        frame.hello.CopyFrom(hello.to_proto())
    return frame.SerializeToString()


def encode_append(message: AppendEntries, entries: bytes) -> tuple[bytes, bytes]:
    """Return the frame of one AppendEntries in two parts: the head, and the log bytes, not copied."""
    head = pb.RaftFrame(messages=[_encode_append(message)]).SerializeToString()
    return b"".join((head, bytes((_ENTRIES_TAG,)), varint(len(entries)))), entries


def decode(frame: Buffer, from_: NodeId, to: NodeId) -> tuple[list[Message], Hello | None, memoryview]:
    """Return (messages, sender's greeting, log bytes) of an unsealed frame. Raises: CorruptError."""
    cut = _entries_at(frame)
    view = memoryview(frame)
    try:
        parsed = pb.RaftFrame.FromString(bytes(view if cut is None else view[: cut[0]]))
        messages: list[Message] = [
            _DECODERS[message.WhichOneof("body") or ""](message, from_, to) for message in parsed.messages
        ]
        hello = Hello.from_proto(parsed.hello) if parsed.HasField("hello") else None
    except KeyError:
        raise CorruptError("raft frame with a message of an unknown kind", 0) from None
    except (DecodeError, ValueError) as error:
        raise CorruptError(f"raft frame cannot be read ({error})", 0) from None
    return messages, hello, view[0:0] if cut is None else view[cut[1] :]


def _encode_append(message: AppendEntries) -> pb.RaftMessage:
    return pb.RaftMessage(
        term=message.term,
        append_entries=pb.AppendEntries(
            prev_index=message.prev_index,
            prev_term=message.prev_term,
            last_index=message.hi,
            commit_index=message.commit_index,
            run_index=[run[0] for run in message.term_runs],
            run_term=[run[1] for run in message.term_runs],
            offers_reset=message.offers_reset,
        ),
    )


def _decode_append(message: pb.RaftMessage, from_: NodeId, to: NodeId) -> AppendEntries:
    body = message.append_entries
    runs = zip(body.run_index, body.run_term, strict=True)
    return AppendEntries(
        term=Term(message.term),
        from_=from_,
        to=to,
        prev_index=LogIndex(body.prev_index),
        prev_term=Term(body.prev_term),
        lo=LogIndex(body.prev_index + 1),
        hi=LogIndex(body.last_index),
        commit_index=LogIndex(body.commit_index),
        term_runs=tuple((LogIndex(index), Term(term)) for index, term in runs),
        offers_reset=body.offers_reset,
    )


def _encode_append_reply(message: AppendEntriesReply) -> pb.RaftMessage:
    """Encode by hand, like its decoder: there is one per entry, and the generic way takes twice as long."""
    return pb.RaftMessage(
        term=message.term,
        append_entries_reply=pb.AppendEntriesReply(
            success=message.success,
            match_index=message.match_index,
            reject_index=message.reject_index,
            hint_index=message.hint_index,
            hint_term=message.hint_term,
            is_learner=message.is_learner,
            wants_commit=message.wants_commit,
        ),
    )


def _decode_append_reply(message: pb.RaftMessage, from_: NodeId, to: NodeId) -> AppendEntriesReply:
    body = message.append_entries_reply
    return AppendEntriesReply(
        Term(message.term),
        from_,
        to,
        body.success,
        LogIndex(body.match_index),
        LogIndex(body.reject_index),
        LogIndex(body.hint_index),
        Term(body.hint_term),
        body.is_learner,
        body.wants_commit,
    )


def _plain_encoder(name: str, wire: Any, fields: tuple[str, ...]) -> Encoder:
    def encode(message: Any) -> pb.RaftMessage:
        body = wire(**{field: getattr(message, field) for field in fields})
        return pb.RaftMessage(**{"term": message.term, name: body})

    return encode


def _plain_decoder(name: str, kind: Any, fields: tuple[str, ...]) -> Decoder:
    def decode_one(message: pb.RaftMessage, from_: NodeId, to: NodeId) -> Message:
        body = getattr(message, name)
        values = {field: getattr(body, field) for field in fields}
        decoded: Message = kind(term=message.term, from_=from_, to=to, **values)
        return decoded

    return decode_one


_ENCODERS: Final[dict[type, Encoder]] = {
    AppendEntries: _encode_append,
    AppendEntriesReply: _encode_append_reply,
    **{kind: _plain_encoder(name, wire, fields) for kind, name, wire, fields in _PLAIN},
}
_DECODERS: Final[dict[str, Decoder]] = {
    "append_entries": _decode_append,
    "append_entries_reply": _decode_append_reply,
    **{name: _plain_decoder(name, kind, fields) for kind, name, _wire, fields in _PLAIN},
}


def _entries_at(frame: Buffer) -> tuple[int, int] | None:
    """Return (start of the field `entries`, start of its bytes), or None if the frame has none.

    An append frame is exactly one `messages` field, then `entries` to the end.
    """
    if not frame or frame[0] != _MESSAGES_TAG:
        return None
    size, position = read_varint(frame, 1)
    start = position + size
    if start >= len(frame) or frame[start] != _ENTRIES_TAG:
        return None
    length, position = read_varint(frame, start + 1)
    if position + length != len(frame):
        raise CorruptError("raft frame has another size than it says", start)
    return start, position


# --- frames of a stream -----------------------------------------------------------------------------------
#: Head, log bytes, checksum.
SealedAppend = tuple[bytes, bytes, bytes]


class AppendFrames:
    """Encoder of appends. Both followers nearly always get the same one."""

    def __init__(self) -> None:
        self._last: tuple[AppendEntries, SealedAppend] | None = None

    def encode(self, message: AppendEntries, entries: bytes) -> SealedAppend:
        """Return the frame of an append with its log bytes and checksum."""
        if self._last is not None:
            before, frame = self._last
            # The same object was read for the same range, so its entries and the entry before have the same
            # terms.
            if (
                frame[1] is entries
                and before.prev_index == message.prev_index
                and before.hi == message.hi
                and before.commit_index == message.commit_index
                and before.term == message.term
            ):
                return frame
        head, entries = encode_append(message, entries)
        frame = head, entries, seal_of(head, entries)
        self._last = message, frame
        return frame

    def forget(self) -> None:
        """Drop frames encoded before a repair."""
        self._last = None


def make_control_frame(queue: deque[Message | Hello]) -> tuple[bytes, bytes]:
    """Take control messages off the queue, several into one frame. Only the latest greeting is kept."""
    messages: list[Message] = []
    hello: Hello | None = None
    for _ in range(min(len(queue), MAX_CONTROL_BATCH)):
        item = queue.popleft()
        if isinstance(item, Hello):
            hello = item
        else:
            messages.append(item)
    frame = encode_control(messages, hello)
    return frame, seal_of(frame)


def make_append_frame(queue: deque[SealedAppend]) -> SealedAppend:
    """Take one append frame off its queue."""
    return queue.popleft()
