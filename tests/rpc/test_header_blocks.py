"""Header blocks: equal to the library's reading, cached only while the table stands, bounded."""

from __future__ import annotations

import random

import hpack
import pytest

from ledgermq.rpc.header_blocks import Fields, HeaderBlockDecoder, HeaderBlockError, encode_block
from ledgermq.rpc.wire_limits import CACHED_BLOCKS, MAX_CACHED_BLOCK

REQUEST: Fields = (
    (b":method", b"POST"),
    (b":scheme", b"http"),
    (b":path", b"/test.Service/Echo"),
    (b"te", b"trailers"),
    (b"content-type", b"application/grpc"),
    (b"authorization", b"secret"),
    (b"x-own", b"v" * 200),
)


def test_what_we_encode_is_what_the_library_decodes() -> None:
    decoder = hpack.Decoder()
    found = decoder.decode(encode_block(REQUEST), raw=True)
    assert tuple(tuple(field) for field in found) == REQUEST
    assert not decoder.header_table.dynamic_entries, "our blocks change nobody's table"
    assert encode_block(REQUEST).count(b"\x1f") >= 1, "authorization is never indexed (RFC 7541, 7.1.3)"


def test_blocks_of_the_library_are_decoded_as_by_the_library() -> None:
    """Random fields, repeated ones among them, with the table growing, shrinking and evicting."""
    rng = random.Random(5)
    encoder, ours, theirs = hpack.Encoder(), HeaderBlockDecoder(), hpack.Decoder()
    known = list(REQUEST)
    for number in range(2000):
        if rng.random() < 0.2:
            known.append((b"x-%d" % rng.randrange(200), rng.randbytes(rng.randrange(40)).hex().encode()))
        if rng.random() < 0.02:
            encoder.header_table_size = rng.choice([0, 100, 1000, 4096])
        fields = rng.choices(known, k=rng.randrange(1, 8))
        block = encoder.encode(fields, huffman=rng.random() < 0.7)
        expected = tuple(tuple(field) for field in theirs.decode(block, raw=True))
        assert ours.decode(block).fields == expected, number


def test_a_repeated_block_is_the_same_object_until_the_table_changes() -> None:
    encoder, decoder = hpack.Encoder(), HeaderBlockDecoder()
    fields = [(b"x-a", b"1"), (b"x-b", b"2")]
    decoder.decode(encoder.encode(fields))
    repeated = encoder.encode(fields)
    first = decoder.decode(repeated)
    assert decoder.decode(repeated) is first
    decoder.decode(encoder.encode([(b"x-c", b"3")]))  # moves both in the table
    assert decoder.decode(repeated).fields == ((b"x-b", b"2"), (b"x-c", b"3")) != first.fields


def test_the_cache_is_bounded() -> None:
    decoder = HeaderBlockDecoder()
    for number in range(10 * CACHED_BLOCKS):
        decoder.decode(encode_block(((b"x", b"%d" % number),)))
    assert len(decoder._cache) <= CACHED_BLOCKS
    large = encode_block(((b"x", b"v" * MAX_CACHED_BLOCK),))
    assert decoder.decode(large) is not decoder.decode(large)


def test_a_list_that_is_too_large_is_dropped_and_the_table_stays_right() -> None:
    encoder, decoder = hpack.Encoder(), HeaderBlockDecoder(max_list_size=1000)
    entry = (b"x-bomb", b"v" * 3000)
    bomb = encoder.encode([entry] * 2000)
    assert len(bomb) < 6000, "a reference to a large entry is one byte"
    decoded = decoder.decode(bomb)
    assert decoded.too_large and decoded.fields == ()
    following = encoder.encode([(b"x-a", b"1")])
    assert decoder.decode(following).fields == ((b"x-a", b"1"),)


@pytest.mark.parametrize(
    "block",
    [
        b"\x80",  # index 0
        b"\xff\xff\xff\xff\xff\xff\x7f",  # a number without end
        b"\xbe",  # an index behind the table
        b"\x00\x05abc",  # text longer than the block
        b"\x00\x81\xff\x00",  # Huffman padding of eight bits
        b"\x82\x20",  # a change of the size behind a field
        b"\x3f\xe2\x1f",  # a table of 4097 bytes
        b"\x40",
        b"\x0f",
        b"\x00" + b"\x7f" + b"\x80" * 1000,
    ],
)
def test_what_is_no_block_is_refused(block: bytes) -> None:
    with pytest.raises(HeaderBlockError):
        HeaderBlockDecoder().decode(block)
