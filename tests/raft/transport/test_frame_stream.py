"""Frames on a connection: cut at any place, of any size, held, ended."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence

from crc32c import crc32c
from hypothesis import given, settings
from hypothesis import strategies as st

from ledgermq.proto.entry import Buffer
from ledgermq.raft.transport.checked_frame import HEADER_SIZE, header_of
from ledgermq.raft.transport.frame_stream import FrameStream


class Wire(asyncio.Transport):
    """Records what the stream does to its connection."""

    def __init__(self) -> None:
        super().__init__()
        self.written = bytearray()
        self.paused = False
        self.aborted = False

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self.written += data

    def writelines(self, list_of_data: Iterable[bytes | bytearray | memoryview]) -> None:
        for each in list_of_data:
            self.written += each

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        pass

    def pause_reading(self) -> None:
        self.paused = True

    def resume_reading(self) -> None:
        self.paused = False

    def abort(self) -> None:
        self.aborted = True


class Receiver:
    def __init__(self, max_frame_size: int = 1 << 30) -> None:
        self.frames: list[bytes] = []
        self.lost: list[str] = []
        self.wire = Wire()
        self.stream = FrameStream(self.take, self.lost.append, max_frame_size)
        self.stream.connection_made(self.wire)
        self.hold_after = -1

    def take(self, frame: Buffer) -> None:
        self.frames.append(bytes(frame))
        if len(self.frames) == self.hold_after:
            self.stream.hold()

    def receive(self, data: bytes, pieces: Sequence[int]) -> None:
        """Like a loop: never more than the buffer that the stream returns."""
        position, number = 0, 0
        while position < len(data) and not self.wire.aborted:
            buffer = self.stream.get_buffer(-1)
            count = min(len(buffer), pieces[number % len(pieces)], len(data) - position)
            buffer[:count] = data[position : position + count]
            self.stream.buffer_updated(count)
            position += count
            number += 1


def wire_of(frames: list[bytes], *, checked: bool = False) -> bytes:
    sender = Receiver()
    if checked:
        sender.stream.check_frames(reports=False)
    for frame in frames:
        sender.stream.send((frame[:3], frame[3:]))
    return bytes(sender.wire.written)


sizes = st.one_of(
    st.integers(0, 40), st.integers(65_520, 65_550), st.integers(16_370, 16_390), st.just(300_000)
)


@settings(deadline=None)
@given(st.lists(sizes, max_size=8), st.lists(st.integers(3, 70_000), min_size=1, max_size=5), st.booleans())
def test_frames_of_any_size_cut_anywhere_come_out_whole_and_in_order(
    sizes: list[int], pieces: list[int], checked: bool
) -> None:
    frames = [bytes([number]) * size for number, size in enumerate(sizes)]
    receiver = Receiver()
    if checked:
        receiver.stream.check_frames(reports=False)
    wire = wire_of(frames, checked=checked)
    receiver.receive(wire, pieces)
    assert receiver.frames == frames
    assert receiver.stream.received == len(wire)


@settings(deadline=None)
@given(st.lists(sizes, min_size=1, max_size=6), st.lists(st.integers(3, 70_000), min_size=1), st.data())
def test_a_flipped_bit_ends_the_connection_and_nothing_behind_it_is_believed(
    sizes: list[int], pieces: list[int], data: st.DataObject
) -> None:
    frames = [bytes([number]) * size for number, size in enumerate(sizes)]
    receiver = Receiver()
    receiver.stream.check_frames(reports=False)
    wire = bytearray(wire_of(frames, checked=True))
    place = data.draw(st.integers(0, len(wire) - 1))
    wire[place] ^= 1 << data.draw(st.integers(0, 7))
    receiver.receive(bytes(wire), pieces)
    assert receiver.wire.aborted and receiver.stream.is_damaged
    ends = [sum(HEADER_SIZE + size for size in sizes[: count + 1]) for count in range(len(sizes))]
    assert receiver.frames == frames[: sum(end <= place for end in ends)]


def test_memory_grows_with_what_came_and_not_with_what_a_frame_says() -> None:
    """With a valid header, as a buggy peer may send it."""
    receiver = Receiver()
    receiver.stream.check_frames(reports=False)
    start = (1 << 30).to_bytes(4, "little") + bytes(4)
    receiver.receive(start + crc32c(start).to_bytes(4, "little") + bytes(70_000), [70_000])
    assert receiver.stream.received == HEADER_SIZE + 70_000
    assert len(receiver.stream.get_buffer(-1)) < 3 << 20
    receiver.receive(bytes(5 << 20), [1 << 20])
    assert len(receiver.stream.get_buffer(-1)) <= 5 << 20


def test_a_large_frame_that_outgrows_its_memory_is_whole() -> None:
    frame = bytes(range(256)) * (5 << 12)
    receiver = Receiver()
    receiver.stream.check_frames(reports=False)
    receiver.receive(header_of((frame,)) + frame, [1 << 20])
    assert receiver.frames == [frame]


@given(st.integers(1, 4), st.lists(st.integers(1, 200), min_size=1, max_size=5))
def test_what_is_held_back_comes_when_it_goes_on(hold_after: int, pieces: list[int]) -> None:
    frames = [b"frame %d" % number for number in range(5)]
    receiver = Receiver()
    receiver.hold_after = hold_after
    receiver.receive(wire_of(frames), pieces)
    assert receiver.frames == frames[:hold_after]
    assert receiver.wire.paused
    receiver.hold_after = -1
    receiver.stream.resume()
    assert receiver.frames == frames
    assert not receiver.wire.paused


def test_a_frame_above_the_limit_ends_the_connection_before_memory_is_taken() -> None:
    receiver = Receiver(max_frame_size=100)
    receiver.receive((101).to_bytes(4, "little"), [4])
    assert receiver.wire.aborted
    receiver.stream.connection_lost(None)
    assert receiver.lost == ["a frame of 101 bytes; at most 100"]


def test_nothing_is_handed_up_or_sent_once_it_is_aborted() -> None:
    receiver = Receiver()
    data = wire_of([b"one", b"two"])
    receiver.stream.abort("enough")
    receiver.stream.feed(data)
    receiver.stream.send((b"late",))
    assert receiver.frames == []
    assert receiver.wire.written == b""


def test_bytes_that_a_front_has_read_are_fed_first_and_a_flood_before_the_answer_is_cut_off() -> None:
    receiver = Receiver()
    receiver.stream.feed(wire_of([b"one", bytes(200_000)]))
    assert [len(frame) for frame in receiver.frames] == [3, 200_000]
    receiver.stream.hold()
    receiver.stream.feed(bytes(100_000))
    assert receiver.wire.aborted


def test_frames_are_made_when_the_connection_takes_them_again() -> None:
    told: list[bool] = []
    stream = FrameStream(lambda _: None, lambda _: None, 100, lambda: told.append(stream.may_send))
    stream.connection_made(Wire())
    stream.pause_writing()
    assert stream.is_open and not stream.may_send
    stream.resume_writing()
    assert told == [True]
