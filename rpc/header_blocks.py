"""Header blocks of HTTP/2 (HPACK, RFC 7541), with a cache of repeated ones.

Owns: the peer's dynamic table, and the cache. A block's meaning depends on that table alone, so it is kept
until a block changes the table. Our own blocks never use a table: equal fields are equal bytes on every
connection, and a peer's cache works, too.
Must not: know what a field means.

Bounds: a number ends after five bytes, text after the block; the size of the list is counted before a field
is kept. A block that says more is decoded to its end, because the table must stay equal on both sides, but
its fields are dropped (`too_large`).
"""

from __future__ import annotations

import functools
from typing import Final

from hpack.exceptions import HPACKError
from hpack.huffman_table import decode_huffman
from hpack.table import HeaderTable

from .wire_limits import (
    CACHED_BLOCKS,
    HEADER_TABLE_SIZE,
    MAX_CACHED_BLOCK,
    MAX_CACHED_LISTS,
    MAX_HEADER_LIST,
)

Fields = tuple[tuple[bytes, bytes], ...]

#: Size of a field beside its name and value (RFC 7541, 4.1).
_FIELD_OVERHEAD: Final = 32
_NUMBER_BYTES: Final = 5
_NUMBERS: Final = {(name, value): number for number, (name, value) in enumerate(HeaderTable.STATIC_TABLE, 1)}
_NAMES: Final = {name: number for (name, _), number in reversed(_NUMBERS.items())}
#: Never to be put into a table by anybody on the way (RFC 7541, 7.1.3).
_SECRET: Final = frozenset([b"authorization", b"cookie", b"proxy-authorization"])


class HeaderBlockError(Exception):
    """The bytes are no header block. Both sides' tables may differ now: the connection has to end."""


class HeaderBlock:
    """A decoded block. `meaning` is kept with it, so that a repeated block is interpreted once."""

    __slots__ = ("fields", "list_size", "meaning", "too_large")

    def __init__(self, fields: Fields, list_size: int, too_large: bool) -> None:
        self.fields = fields
        self.list_size = list_size
        self.too_large = too_large  # and has no fields
        self.meaning: object = None


class HeaderBlockDecoder:
    """Decoder of all blocks of one connection, in the order of their arrival."""

    def __init__(self, max_list_size: int = MAX_HEADER_LIST) -> None:
        self._table = HeaderTable()
        self._table.maxsize = HEADER_TABLE_SIZE
        self._max_list_size = max_list_size
        self._cache: dict[bytes, HeaderBlock] = {}
        self._cached_lists = 0  # bytes
        self._changed = False

    def decode(self, block: bytes) -> HeaderBlock:
        """Return the block's fields. Raises: HeaderBlockError."""
        known = self._cache.get(block)
        if known is not None:
            return known
        self._changed = False
        try:
            decoded = self._decode(block)
        except (HPACKError, IndexError) as error:
            raise HeaderBlockError(f"no header block: {error}") from None
        if self._changed:
            self._empty_cache()
        elif len(block) <= MAX_CACHED_BLOCK:
            self._cached_lists += decoded.list_size
            if len(self._cache) >= CACHED_BLOCKS or self._cached_lists > MAX_CACHED_LISTS:
                self._empty_cache()
                self._cached_lists = decoded.list_size
            self._cache[block] = decoded
        return decoded

    def _empty_cache(self) -> None:
        self._cache.clear()
        self._cached_lists = 0

    def _decode(self, block: bytes) -> HeaderBlock:
        fields: list[tuple[bytes, bytes]] = []
        table, size, position = self._table, 0, 0
        while position < len(block):
            first = block[position]
            if first & 0x80:
                index, position = _number(block, position, 7)
                name, value = table.get_by_index(index)
            elif first & 0xE0 == 0x20:
                if fields or size:
                    raise HeaderBlockError("a change of the table's size behind a field")
                table_size, position = _number(block, position, 5)
                if table_size > HEADER_TABLE_SIZE:
                    raise HeaderBlockError(f"a table of {table_size} bytes; at most {HEADER_TABLE_SIZE}")
                table.maxsize = table_size
                self._changed = True
                continue
            else:
                kept = first & 0x40
                index, position = _number(block, position, 6 if kept else 4)
                if index:
                    name = table.get_by_index(index)[0]
                else:
                    name, position = _text(block, position)
                value, position = _text(block, position)
                if kept:
                    table.add(name, value)
                    self._changed = True
            size += len(name) + len(value) + _FIELD_OVERHEAD
            if size <= self._max_list_size:
                fields.append((name, value))
        too_large = size > self._max_list_size
        return HeaderBlock(() if too_large else tuple(fields), 0 if too_large else size, too_large)


def _number(block: bytes, position: int, bits: int) -> tuple[int, int]:
    """Return (number, position behind it); IndexError at the end. Raises: HeaderBlockError."""
    largest = (1 << bits) - 1
    number = block[position] & largest
    position += 1
    if number < largest:
        return number, position
    for shift in range(0, 7 * _NUMBER_BYTES, 7):
        byte = block[position]
        position += 1
        number += (byte & 0x7F) << shift
        if byte < 0x80:
            return number, position
    raise HeaderBlockError(f"a number of more than {_NUMBER_BYTES} bytes")


def _text(block: bytes, position: int) -> tuple[bytes, int]:
    """Return (text, position behind it). Raises: HeaderBlockError, HPACKError."""
    is_huffman = block[position] & 0x80
    size, position = _number(block, position, 7)
    end = position + size
    if end > len(block):
        raise HeaderBlockError("text that is longer than the block")
    text = block[position:end]
    return (decode_huffman(text) if is_huffman else text), end


@functools.lru_cache(maxsize=256)
def encode_block(fields: Fields) -> bytes:
    """Return the header block of fields; names in lower case."""
    encoded = bytearray()
    for name, value in fields:
        number = _NUMBERS.get((name, value))
        if number is not None:
            encoded += _encoded_number(number, 7, 0x80)
            continue
        kind = 0x10 if name in _SECRET else 0
        if known := _NAMES.get(name, 0):
            encoded += _encoded_number(known, 4, kind)
        else:
            encoded.append(kind)
            encoded += _encoded_number(len(name), 7, 0) + name
        encoded += _encoded_number(len(value), 7, 0) + value
    return bytes(encoded)


def _encoded_number(number: int, bits: int, flags: int) -> bytes:
    largest = (1 << bits) - 1
    if number < largest:
        return bytes([flags | number])
    encoded = bytearray([flags | largest])
    number -= largest
    while number >= 0x80:
        encoded.append(number & 0x7F | 0x80)
        number >>= 7
    encoded.append(number)
    return bytes(encoded)
