"""First frame in each direction: sealed by builds with checked frames, understood from builds without."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from google.protobuf.message import DecodeError

from ledgermq.proto import raft_pb2 as pb
from ledgermq.raft.errors import DamagedFrameError
from ledgermq.raft.transport.checked_frame import CHECKED_FRAMES
from ledgermq.raft.transport.hello import (
    Hello,
    Refusal,
    RefusalKind,
    Standing,
    encode_greeting,
    encode_reply,
    frames_with,
    read_greeting,
    read_reply,
    reply_of,
)
from ledgermq.raft.types import NodeId, Term

HELLO = Hello(
    cluster_id="c", group="g0", node_id=NodeId("n1"), incarnation=7, segment_size=1 << 20,
    standing=Standing.VOTER, term=Term(3), known_incarnations={NodeId("n2"): 9},
)  # fmt: skip


def flips(data: bytes) -> list[bytes]:
    whole = int.from_bytes(data, "little")
    return [(whole ^ 1 << bit).to_bytes(len(data), "little") for bit in range(8 * len(data))]


def test_a_greeting_and_an_answer_come_back_as_they_were() -> None:
    assert read_greeting(encode_greeting(HELLO)) == HELLO
    assert frames_with(HELLO) == CHECKED_FRAMES
    reply = read_reply(encode_reply(reply_of(HELLO, Refusal(RefusalKind.GROUP, "why")), 1))
    assert (reply.frames, reply.refusal, reply.refusal_kind) == (1, "why", RefusalKind.GROUP.value)
    assert Hello.from_proto(reply.hello) == HELLO


def test_no_flipped_bit_of_a_greeting_gives_another_greeting() -> None:
    """Nor one that passes for that of an older build: a member's identity would be given up for it."""
    for changed in flips(encode_greeting(HELLO)):
        with pytest.raises((DamagedFrameError, DecodeError, ValueError)):
            read_greeting(changed)


def test_no_flipped_bit_of_an_answer_gives_another_answer() -> None:
    for changed in flips(encode_reply(reply_of(HELLO, None), 1)):
        with pytest.raises((DamagedFrameError, DecodeError)):
            read_reply(changed)


def test_a_greeting_of_an_older_build_is_read_and_gets_plain_frames() -> None:
    older = replace(HELLO, frames=0)
    hello = read_greeting(older.to_proto().SerializeToString())
    assert hello == older
    assert frames_with(hello) == 0
    assert read_reply(pb.HelloReply(hello=older.to_proto()).SerializeToString()).frames == 0


def test_an_older_build_reads_a_greeting_with_a_checksum() -> None:
    """It parses what it knows and skips the rest."""
    assert Hello.from_proto(pb.Hello.FromString(encode_greeting(HELLO))) == HELLO


@pytest.mark.parametrize("name", ["n1\nERROR forged", "\x1b[2J", "n" * 256, "a\u2028b"])
@pytest.mark.parametrize("field", ["node_id", "group", "cluster_id", "to_node_id"])
def test_what_is_no_name_is_refused_and_shown_safely(field: str, name: str) -> None:
    changed: dict[str, Any] = {field: name}
    with pytest.raises(ValueError, match="is not a name") as refused:
        read_greeting(encode_greeting(replace(HELLO, **changed)))
    assert str(refused.value).isprintable()
    assert len(str(refused.value)) < 80
