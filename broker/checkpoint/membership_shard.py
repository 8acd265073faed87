"""Checkpoint shard with the members and queue owners of queue-exclusive consumer groups.

Little-endian. Consumer groups, members and owners are sorted by their keys. Texts are encoded as in commands:

    group     u32 consumer group id · u32 members · u32 owners
    member    u64 joined · i64 joined at (ms) · u32 session timeout · u32 release (ms) · u16 topics ·
              texts: name, allocation, zone, filter, topics
    owner     u32 topic id · u32 queue id · u64 epoch · u32 index of the member, or all ones: no owner

Owns: these bytes.   Must not: verify them; the checksums of the checkpoint do.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping
from typing import Final

from ..state.codecs import pack_text, unpack_texts
from ..state.commands import NOBODY
from ..state.memberships import GroupMember, GroupMembership, Ownership

_GROUP: Final = struct.Struct("<III")
_MEMBER: Final = struct.Struct("<QqIIH")
_OWNER: Final = struct.Struct("<IIQI")


def encode_memberships(groups: Mapping[int, GroupMembership]) -> bytes:
    """Return the shard; empty if no consumer group has members."""
    out = []
    for group_id, group in sorted(groups.items()):
        out.append(_GROUP.pack(group_id, len(group.members), len(group.owners)))
        places = {name: place for place, name in enumerate(sorted(group.members))}
        for name in places:
            member = group.members[name]
            out.append(
                _MEMBER.pack(
                    member.joined,
                    member.joined_at,
                    member.session_timeout_ms,
                    member.release_ms,
                    len(member.topics),
                )
            )
            texts = (name, member.allocation, member.zone, member.filter, *member.topics)
            out += map(pack_text, texts)
        for key, owner in sorted(group.owners.items()):
            out.append(_OWNER.pack(*key, owner.epoch, places.get(owner.member, NOBODY)))
    return b"".join(out)


def decode_memberships(raw: bytes) -> Iterator[tuple[int, GroupMembership]]:
    """Yield (consumer group id, membership). Raises: struct.error, ValueError."""
    position = 0
    while position < len(raw):
        group_id, member_count, owner_count = _GROUP.unpack_from(raw, position)
        position += _GROUP.size
        members = {}
        for _ in range(member_count):
            joined, joined_at, timeout, release, topic_count = _MEMBER.unpack_from(raw, position)
            texts, position = unpack_texts(raw, position + _MEMBER.size, 4 + topic_count)
            name, allocation, zone, tags = texts[:4]
            members[name] = GroupMember(
                name, joined, joined_at, tuple(texts[4:]), allocation, zone, tags, timeout, release
            )
        names, owners = list(members), {}
        for _ in range(owner_count):
            topic_id, queue_id, epoch, place = _OWNER.unpack_from(raw, position)
            position += _OWNER.size
            owners[topic_id, queue_id] = Ownership("" if place == NOBODY else names[place], epoch)
        yield group_id, GroupMembership(members, owners)
