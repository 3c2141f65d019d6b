"""The bytes of a log file: what is written is read back, and what is not what was written is seen."""

import itertools
import os

import google_crc32c
import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from epochal.errors import LocalProtocolError, LogMismatch, RemoteProtocolError
from epochal.protocol import messages as m
from epochal.protocol import wire
from epochal.protocol.log.file_format import (
    FOOTER_BYTES,
    Damaged,
    Footer,
    Incarnations,
    Index,
    LogCheckpoint,
    Point,
    decode_footer,
    decode_header,
    decode_index,
    encode_footer,
    encode_header,
    encode_index,
    with_incarnation,
)
from epochal.protocol.log.frames import (
    Damage,
    Frame,
    Tail,
    cut,
    decode_entry,
    entries,
    entry,
    frame_at,
    frame_parts,
    packed,
    recover,
    scan,
)
from epochal.protocol.log.history import Lull, SegmentState

STATE = SegmentState(6, ((0, 1), (1, 0)), ((2, 2),), ((3, 1),))
HEADER = encode_header("uid", "0", LogCheckpoint(STATE, b"machine"), ((1, 0), (3, 5)), created=99, salt=b"saltsalt")


def data(seq: int, payload: bytes = b"payload") -> m.Data:
    return m.Data(seq, seq - 1, (seq, 0), b"topic", 1, 7, payload)


def frames_of(sizes: list[int], *, synced: list[int] | None = None, seed: int | None = None) -> tuple[bytes, list[int]]:
    """A log file with a frame of each number of events, and the offsets of the frames' ends."""
    header = decode_header(HEADER)
    whole, ends, seq = HEADER, list[int](), header.base
    for number, size in enumerate(sizes):
        events = [part for one in range(size) for part in entry(data(seq + one))]
        covered = len(whole) if synced is None else ([len(HEADER), *ends])[synced[number]]
        whole += b"".join(
            frame_parts(
                header.seed if seed is None else seed,
                seq,
                size,
                events,
                b"notes %d" % number,
                milliseconds=number,
                synced=covered,
            )
        )
        ends.append(len(whole))
        seq += size
    return whole, ends


def sealed(sizes: list[int]) -> bytes:
    whole, _ = frames_of(sizes)
    header = decode_header(whole)
    return whole + encode_footer(Footer(len(sizes), header.base + sum(sizes) - 1, 3, len(whole)), header.seed)


def kept(whole: bytes) -> int | Damage:
    """How many frames recovery keeps, or the damage that it found."""
    tail = recover(whole, decode_header(whole))
    return len(tail.frames) if isinstance(tail, Tail) else tail


# ---- header, footer, index ----


def test_a_header_is_read_back() -> None:
    header = decode_header(HEADER + b"frames")
    assert (header.stream, header.segment, header.created, header.base) == ("uid", "0", 99, 7)
    assert header.checkpoint == LogCheckpoint(STATE, b"machine")
    assert header.incarnations == ((1, 0), (3, 5))
    assert header.length == len(HEADER)


@pytest.mark.rule("E13")
def test_a_header_says_since_when_only_the_frontier_had_moved() -> None:
    since = SegmentState(3, (2,), (4,), (5,), (1,))
    kept = LogCheckpoint(STATE, b"machine", since)
    header = decode_header(encode_header("uid", "0", kept, (), created=99, salt=b"saltsalt"))
    assert header.checkpoint == kept
    assert kept.lull == Lull(since, STATE.seq, STATE.lower)
    assert decode_header(HEADER).checkpoint.lull == Lull(STATE, STATE.seq, STATE.lower), "none"


def test_a_header_cut_anywhere_is_seen() -> None:
    for size in range(len(HEADER)):
        with pytest.raises(Damaged, match="ends inside its header"):
            decode_header(HEADER[:size])


def test_a_flipped_bit_anywhere_in_a_header_is_seen() -> None:
    for flipped in flips(HEADER):
        with pytest.raises(Damaged):
            decode_header(flipped + bytes(100))


def test_a_header_of_a_newer_format_is_refused_by_name() -> None:
    newer = bytearray(HEADER)
    newer[9] = 2
    head = bytes(newer[:44])
    newer[44:48] = google_crc32c.extend(0, head).to_bytes(4, "big")
    with pytest.raises(LogMismatch, match="format 2"):
        decode_header(bytes(newer))


def test_a_header_from_before_the_first_release_is_refused_by_name() -> None:
    body = msgpack.packb(["uid", "0", (6, (0,), (), ()), ((1, 0),)])
    head = bytes(bytearray(HEADER[:36]) + len(body).to_bytes(4, "big") + bytes(4))
    whole = head + google_crc32c.extend(0, head).to_bytes(4, "big") + body
    old = whole + google_crc32c.extend(0, head + body).to_bytes(4, "big")
    with pytest.raises(LogMismatch, match="4 fields: it is from before"):
        decode_header(old)


def test_two_files_hardly_ever_have_the_same_seed() -> None:
    made = {
        decode_header(
            encode_header("uid", "0", LogCheckpoint(STATE), (), created=0, salt=os.urandom(8))
        ).seed
        for _ in range(1000)
    }  # fmt: skip
    assert len(made) >= 998


def test_a_footer_fits_only_its_own_file() -> None:
    footer = Footer(3, 9, 1234, 1000)
    written = encode_footer(footer, seed=5)
    assert len(written) == FOOTER_BYTES
    assert decode_footer(written, 5, 1000 + FOOTER_BYTES) == footer
    assert decode_footer(written, 6, 1000 + FOOTER_BYTES) is None
    assert decode_footer(written, 5, 999 + FOOTER_BYTES) is None
    assert all(decode_footer(flipped, 5, 1000 + FOOTER_BYTES) is None for flipped in flips(written))


def test_an_index_says_where_to_begin() -> None:
    index = Index(states=[STATE])
    for seq, offset in ((7, 100), (8, 200), (9, 100 + 2**16), (9, 300 + 2**16), (20, 2**20)):
        index.add(Point(seq, offset, seq))
    assert [point.offset for point in index.points] == [100, 100 + 2**16, 2**20]
    assert index.before(6) is None
    assert [index.before(seq).offset for seq in (7, 8, 9, 19, 20, 99)] == [  # type: ignore[union-attr]
        100, 100, 100 + 2**16, 100 + 2**16, 2**20, 2**20,
    ]  # fmt: skip
    assert index.state(5) is None
    assert index.state(6) == index.state(99) == STATE


def test_an_index_of_an_older_file_or_a_damaged_one_is_none() -> None:
    index = Index([Point(7, 100, 1)], [STATE])
    written = encode_index(index, seed=5, length=1000)
    read = decode_index(written, 5, 1000)
    assert read is not None
    assert (read.points, read.states) == (index.points, index.states)
    assert decode_index(written, 5, 1001) is None
    assert decode_index(written, 6, 1000) is None
    assert decode_index(b"", 5, 1000) is None
    assert all(decode_index(flipped, 5, 1000) is None for flipped in flips(written))


def test_of_lives_that_begin_at_one_event_the_first_and_the_last_are_kept() -> None:
    table: Incarnations = ()
    for incarnation, first in ((1, 0), (2, 0), (3, 8), (4, 8), (7, 8), (9, 9)):
        table = with_incarnation(table, incarnation, first)
    assert table == ((1, 0), (2, 0), (3, 8), (7, 8), (9, 9))


# ---- entries ----


@given(st.lists(st.binary(max_size=60), min_size=1, max_size=8), st.integers(0, 500), st.integers(0, 9))
def test_a_cut_takes_whole_entries_within_both_bounds(payloads: list[bytes], room: int, most: int) -> None:
    parts = [b"".join(entry(data(seq, payload))) for seq, payload in enumerate(payloads)]
    size, count = cut(memoryview(b"".join(parts)), most, room)
    assert size == sum(map(len, parts[:count])) <= room
    assert count <= most
    assert count == most or count == len(parts) or size + len(parts[count]) > room
    assert [bytes(one) for one in entries(memoryview(b"".join(parts)))] == parts


@pytest.mark.parametrize("size", [0, 1, wire.APART_BYTES - 1, wire.APART_BYTES, 300_000])
def test_every_event_is_read_back_from_its_entry(size: int) -> None:
    for event in (
        data(3, bytes(size)),
        m.Frontier(4, 3, (((0, 0), -1), ((5, 0), 1))),
        m.Aborted(5, 4, ((1, 1),)),
    ):
        assert decode_entry(memoryview(b"".join(entry(event)))) == event


@pytest.mark.rule("Q3")
@given(st.lists(st.lists(st.sampled_from([0, 9, 33_000, 65_500, 65_536, 90_000]), min_size=1, max_size=8), max_size=4))
def test_entries_are_packed_in_order_as_the_wire_has_them(runs: list[list[int]]) -> None:
    numbers, first = itertools.count(), m.Chunk(1, 8, True)
    events = [[data(next(numbers), bytes(size)) for size in run] for run in runs]
    messages = packed(first, [memoryview(b"".join(b"".join(entry(event)) for event in run)) for run in events])
    assert [found for frames in messages for found in wire.decode(frames)] == [first, *itertools.chain(*events)]
    for frames in messages:
        found = list(wire.decode(frames))
        assert len(frames[0]) <= wire.PACK_BYTES or len(found) == 1
        large = [each for each in found if isinstance(each, m.Data) and len(each.payload) >= wire.APART_BYTES]
        assert len(frames) == 1 + len(large)


def test_a_small_entry_is_what_the_wire_has() -> None:
    assert entry(data(3)) == wire.encode(data(3))[0]


def test_bytes_that_are_no_entries_are_refused() -> None:
    whole = b"".join(entry(data(3)))
    for size in range(1, len(whole)):
        with pytest.raises(Damaged):
            list(entries(memoryview(whole[:size])))
    with pytest.raises(RemoteProtocolError):
        decode_entry(memoryview(whole[:6] + b"x" * (len(whole) - 6)))


# ---- frames ----


def test_a_frame_keeps_its_buffers_as_they_are() -> None:
    payload = bytes(100_000)
    parts = frame_parts(0, 0, 1, entry(data(0, payload)), b"n", milliseconds=1, synced=0)
    assert any(part is payload for part in parts)


def test_a_frame_over_64_mib_is_refused() -> None:
    part = bytes(2**20)
    with pytest.raises(LocalProtocolError, match="at most"):
        frame_parts(0, 0, 1, [part] * 64 + [b"x"], milliseconds=1, synced=0)


def test_the_start_of_an_incarnation_comes_before_the_notes() -> None:
    header = decode_header(HEADER)
    parts = frame_parts(header.seed, 7, 0, [], b"notes", milliseconds=1, synced=0, begins=300)
    whole = b"".join(parts)
    frame = frame_at(whole, 0, len(whole), header.seed)
    assert frame is not None
    assert (frame.incarnation, frame.notes, len(frame.events)) == (300, b"notes", 0)


def test_frames_of_another_file_are_no_frames() -> None:
    whole, _ = frames_of([1, 1], seed=12345)
    assert kept(whole) == 0


@pytest.mark.parametrize("last", [0, 1, 3])
def test_a_cut_at_every_byte_of_the_last_frame_leaves_exactly_the_frames_before(last: int) -> None:
    """Fault 28."""
    whole, ends = frames_of([2, 1, last])
    for size in range(ends[1], ends[2]):
        tail = recover(whole[:size], decode_header(whole))
        assert isinstance(tail, Tail)
        assert [frame.end for frame in tail.frames] == ends[:2]
        assert (tail.end, tail.torn) == (ends[1], size - ends[1])
    assert kept(whole) == 3


def test_a_flipped_bit_is_damage_once_a_later_frame_has_counted_it_as_synced() -> None:
    """Fault 29."""
    whole, ends = frames_of([2, 1, 1])
    starts = [len(HEADER), *ends]
    for at in range(len(HEADER), ends[1]):
        found = kept(flip(whole, at))
        first = max(start for start in starts if start <= at)
        assert isinstance(found, Damage)
        assert found.first == first
        assert found.last in ends
    for at in range(ends[1], ends[2]):
        assert kept(flip(whole, at)) == 2


def test_a_flipped_bit_anywhere_in_a_sealed_file_is_damage() -> None:
    """Fault 29."""
    whole = sealed([2, 1, 1])
    for at in range(len(HEADER), len(whole) - FOOTER_BYTES):
        assert isinstance(kept(flip(whole, at)), Damage)
    for at in range(len(whole) - FOOTER_BYTES, len(whole)):
        assert kept(flip(whole, at)) == 3, "the end of the last file may have been torn there"


def test_a_later_frame_that_a_crash_kept_without_the_one_before_it_is_no_damage() -> None:
    """Fault 28: disks write in any order what is not synced yet."""
    whole, ends = frames_of([1, 1, 1], synced=[0, 1, 1])
    torn = whole[: ends[0]] + bytes(ends[1] - ends[0]) + whole[ends[1] :]
    tail = recover(torn, decode_header(whole))
    assert isinstance(tail, Tail)
    assert (len(tail.frames), tail.end, tail.torn) == (1, ends[0], len(whole) - ends[0])


def test_a_frame_that_a_writer_hides_in_a_payload_is_not_found() -> None:
    inner, _ = frames_of([1], seed=0)
    whole, ends = frames_of([1])
    header = decode_header(whole)
    forged = inner[len(HEADER) :] * 3
    frame = b"".join(
        frame_parts(header.seed, 8, 1, entry(data(8, forged)), milliseconds=1, synced=ends[0])
    )  # fmt: skip
    assert kept(whole + frame[:-1]) == 1


def test_a_scan_continues_after_damage() -> None:
    whole, ends = frames_of([1, 2, 1])
    header = decode_header(whole)
    found = list(scan(flip(whole, ends[0] + 60), header.length, len(whole), header.seed, header.base))
    assert [type(one) for one in found] == [Frame, Damage, Frame]
    assert found[1] == Damage(ends[0], ends[1], 9)


def test_frames_out_of_order_are_damage() -> None:
    whole, ends = frames_of([1, 1])
    header = decode_header(whole)
    swapped = whole[: len(HEADER)] + whole[ends[0] :] + whole[len(HEADER) : ends[0]]
    found = list(scan(swapped, header.length, len(whole), header.seed, header.base))
    assert isinstance(found[0], Damage)


@given(st.binary(max_size=300))
def test_anything_after_the_frames_is_torn(garbage: bytes) -> None:
    whole, ends = frames_of([1])
    tail = recover(whole + garbage, decode_header(whole))
    assert isinstance(tail, Tail)
    assert (tail.end, tail.torn) == (ends[0], len(garbage))


def flip(whole: bytes, at: int) -> bytes:
    return whole[:at] + bytes([whole[at] ^ 1 << at % 8]) + whole[at + 1 :]


def flips(whole: bytes) -> "itertools.chain[bytes]":
    """The bytes with each single bit flipped."""
    return itertools.chain.from_iterable(
        (whole[:at] + bytes([whole[at] ^ 1 << bit]) + whole[at + 1 :] for bit in range(8)) for at in range(len(whole))
    )
