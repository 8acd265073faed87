"""Digest of the state at one index: equal on all nodes of a broker group, as checkpoints are (D12).

Owns: what is digested. Must not: touch files.
"""

from __future__ import annotations

import hashlib

from ledgermq.proto.dump_manifest import StateDigest

from .layout import VERSION, Snapshot, encode_snapshot


def state_digest(snapshot: Snapshot) -> StateDigest:
    """Digest a snapshot. Takes as long as encoding a checkpoint; one shard at a time is in memory."""
    digest = hashlib.blake2b(digest_size=16)
    for piece in encode_snapshot(snapshot):
        digest.update(piece)
    return StateDigest(snapshot.index, VERSION, digest.hexdigest())
