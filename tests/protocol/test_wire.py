"""The codec: every message comes back, and whatever else arrives ends in a typed error."""

import re
import struct
import tracemalloc
from contextlib import suppress
from pathlib import Path
from typing import Any, get_type_hints

import msgpack
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from epochal.errors import LimitExceeded, LocalProtocolError, RemoteProtocolError
from epochal.protocol import messages as m
from epochal.protocol import wire
from epochal.protocol.times import MAX_TIME, Time
from epochal.protocol.wire.batch_meta import META_CHECKS
from epochal.protocol.wire.writing import header_bytes

TIME: st.SearchStrategy[Time] = st.recursive(
    st.integers(0, MAX_TIME), lambda parts: st.lists(parts, max_size=3).map(tuple), max_leaves=4
)
TIMES = st.lists(TIME, max_size=3).map(tuple)
INT, COUNT = st.integers(-1, MAX_TIME), st.integers(0, 2**32 - 1)
TEXT = st.text(st.characters(codec="utf-8"), max_size=8)
CHANGES = st.lists(st.tuples(TIME, st.integers(-(2**31), 2**31 - 1)), max_size=3).map(tuple)
POSITION = st.builds(m.Position, INT, INT)
RESUME = st.builds(m.Resume, INT, TIMES, TIMES)
TOPIC, PAYLOAD = st.binary(max_size=12), st.binary(max_size=40)
PREFIXES = st.tuples(*[st.lists(TOPIC, max_size=3).map(tuple)] * 2)


def sized(size):
    return st.binary(min_size=size, max_size=size)


TRACE = sized(25).filter(lambda ids: any(ids[:16]) and any(ids[16:24]))
HEADERS = st.dictionaries(st.binary(max_size=8), st.binary(max_size=8), max_size=3).map(
    lambda found: tuple(found.items())
)
META = st.none() | st.builds(
    m.Meta,
    st.none() | TRACE,
    st.binary(max_size=9),
    st.none() | st.binary(max_size=9),
    st.none() | st.integers(0, MAX_TIME),
    HEADERS,
    st.none() | st.integers(0, MAX_TIME),
    st.just(0),
).filter(lambda meta: meta != m.Meta())


FIELDS: dict[type, tuple[st.SearchStrategy[Any], ...]] = {
    m.Data: (INT, INT, TIME, TOPIC, COUNT, COUNT, PAYLOAD, META),
    m.Frontier: (INT, INT, CHANGES),
    m.Aborted: (INT, INT, TIMES),
    m.Heartbeat: (INT, INT),
    m.Snapshot: (INT, INT, sized(16), TIMES, TIMES, TIMES, TIMES, st.none() | INT),
    m.Refused: (INT, TEXT, TEXT),
    m.Ended: (TEXT,),
    m.Hello: (
        INT,
        st.lists(INT, max_size=3).map(tuple),
        TEXT,
        TEXT,
        sized(16),
        st.none() | PREFIXES,
        st.none() | sized(16),
        INT,
    ),
    m.Filter: (TEXT, INT, INT, INT, st.integers(1, 3), TOPIC),
    m.Confirm: (INT, INT, st.integers(1, 3), TOPIC),
    m.Welcome: (
        INT,
        INT,
        sized(8),
        INT,
        INT,
        COUNT,
        st.floats(0, 86_400),
        st.lists(TEXT, max_size=3).map(tuple),
        st.booleans(),
        st.lists(TEXT, max_size=3).map(tuple),
    ),
    m.Since: (INT, TEXT, st.none() | POSITION, COUNT, st.none() | TIMES, st.none() | PREFIXES),
    m.Credit: (INT, COUNT),
    m.Opening: (INT, POSITION, TIMES, TIMES, TIMES, TIMES, INT, TIMES),
    m.Chunk: (INT, COUNT, st.booleans(), INT),
    m.Truncated: (INT, POSITION, TIMES),
    m.Open: (INT, TEXT, TEXT, TEXT, INT, st.none() | TEXT, st.none() | RESUME, st.booleans()),
    m.Opened: (
        INT,
        TEXT,
        INT,
        TIMES,
        TIMES,
        INT,
        TIMES,
        TIMES,
        INT,
        st.booleans(),
        st.none() | INT,
        INT,
        INT,
        st.booleans(),
        st.booleans(),
    ),
    m.Append: (TEXT, st.integers(0, MAX_TIME), TIME, TOPIC, COUNT, COUNT, PAYLOAD, META),
    m.Ack: (TEXT, INT, INT, COUNT),
    m.AppendRefused: (TEXT, INT, TEXT, TEXT),
    m.Hold: (INT, TEXT, TIMES, INT),
    m.Abort: (INT, TEXT, TIMES),
    m.Leave: (INT, TEXT, st.sampled_from(m.Leaving)),
    m.Done: (INT, TEXT),
    m.Alive: (TEXT,),
    m.Lost: (TEXT, TEXT, TEXT),
    m.Greet: (INT, st.lists(INT, max_size=3).map(tuple), TEXT),
    m.Greeted: (INT, INT, TEXT, TEXT),
    m.Ask: (
        INT,
        st.sampled_from(m.AskKind),
        TEXT,
        TEXT,
        st.lists(TEXT, max_size=3).map(tuple),
        st.floats(0, 86_400),
    ),
    m.Answer: (INT, TEXT, PAYLOAD),
    m.Pass: (INT, TEXT, TEXT, TEXT, st.none() | TRACE),
    m.Cut: (TEXT, TEXT),
    m.Free: (),
    m.Passed: (INT,),
    m.Left: (TEXT, TEXT, INT),
}
MESSAGES: st.SearchStrategy[Any] = st.one_of(*(st.builds(kind, *fields) for kind, fields in FIELDS.items()))


def framed(header, payload=b""):
    """One frame with a header that the codec would not write."""
    packed = header if isinstance(header, bytes) else msgpack.packb(header)
    return [struct.pack(">HI", len(packed), len(payload)) + packed + payload]


def read(frames, **options):
    return list(wire.decode(frames, **options))


# ---- round trips ----


def test_every_kind_is_generated_and_has_one_check_a_field():
    assert set(FIELDS) == {kind for kind, _ in wire.KINDS.values()}
    for kind, checks in wire.KINDS.values():
        beside = {m.Data: 2, m.Append: 2, m.Answer: 1}.get(kind, 0)
        assert len(checks) + beside == len(get_type_hints(kind)), kind


@pytest.mark.rule("S34")
@pytest.mark.parametrize("kind", list(FIELDS), ids=lambda kind: kind.__name__)
@settings(max_examples=30)
@given(data=st.data())
def test_every_message_comes_back(kind, data):
    message = data.draw(st.builds(kind, *FIELDS[kind]))
    (frames,) = wire.encode(message)
    (back,) = read(frames)
    assert back == message
    assert type(back) is kind


@given(st.lists(MESSAGES, max_size=6), st.binary(max_size=17))
def test_messages_are_packed_and_come_back_in_order(messages, prefix):
    found = []
    for frames in wire.encode(*messages, prefix=prefix):
        assert frames[0].startswith(prefix)
        found += read(frames, prefix=len(prefix))
    assert found == messages


@pytest.mark.parametrize("size", [0, 1, 65_535, 65_536, 65_537, 200_000])
def test_a_payload_of_64_kib_or_more_has_a_frame_of_its_own_and_is_not_copied(size):
    payload = bytes(size)
    message = m.Data(7, 6, 3, b"t", 1, 0, payload)
    ((first, *rest),) = wire.encode(message, prefix=b"C12345678")
    assert len(rest) == (1 if size >= 65_536 else 0)
    assert not rest or rest[0] is payload
    assert read([first, *rest], prefix=9) == [message]


def test_a_message_with_its_payload_apart_ends_its_zmq_message():
    small, large = m.Heartbeat(1), m.Data(0, -1, 0, b"", 1, 0, bytes(70_000))
    first, second = wire.encode(small, large, small)
    assert [read(first), read(second)] == [[small, large], [small]]


@given(st.lists(st.binary(max_size=30_000).map(lambda p: m.Data(0, -1, 0, b"", 1, 0, p)), max_size=8))
def test_no_packed_frame_is_larger_than_needed(messages):
    for frames in wire.encode(*messages):
        assert len(frames[0]) <= wire.PACK_BYTES or len(read(frames)) == 1


def test_a_header_that_does_not_fit_is_a_bug_here():
    with pytest.raises(LocalProtocolError, match="does not fit"):
        wire.encode(m.Aborted(1, 0, tuple(range(2**40, 2**40 + 8000))))


@pytest.mark.rule("S12")
def test_a_payload_is_carried_and_never_looked_into():
    garbage = b"\xc1\xff\x00 not msgpack at all"
    (frames,) = wire.encode(m.Data(0, -1, (1, 2), b"", 1, 0, garbage))
    (back,) = read(frames)
    assert back.payload == garbage
    header_size, payload_size = struct.unpack_from(">HI", frames[0])
    assert len(frames[0]) == 6 + header_size + payload_size
    assert garbage not in frames[0][: 6 + header_size]


# ---- whatever else arrives ----


@given(MESSAGES, st.data())
def test_a_truncated_message_is_a_protocol_error(message, data):
    (frames,) = wire.encode(message)
    cut = data.draw(st.integers(1, len(frames[0]) - 1))
    with pytest.raises(RemoteProtocolError):
        read([frames[0][:cut]])


@given(MESSAGES, st.data())
def test_a_changed_message_is_some_message_or_a_protocol_error(message, data):
    (frames,) = wire.encode(message)
    changed = bytearray(frames[0])
    for _ in range(data.draw(st.integers(1, 3))):
        changed[data.draw(st.integers(0, len(changed) - 1))] = data.draw(st.integers(0, 255))
    try:
        found = read([bytes(changed)])
    except RemoteProtocolError:
        return
    assert all(type(each) in FIELDS for each in found)


@given(st.lists(st.binary(max_size=60), max_size=6))
@example([b"GET / HTTP/1.1\r\nHost: x\r\n\r\n"])
@example([])
@example([b""] * 5)
def test_random_frames_are_some_messages_or_a_protocol_error(frames):
    with suppress(RemoteProtocolError):
        read(frames)


@given(st.binary(max_size=60))
def test_random_headers_are_some_message_or_a_protocol_error(header):
    with suppress(RemoteProtocolError):
        read(framed(header))


@given(st.sampled_from(sorted(wire.KINDS)), st.data())
def test_random_fields_are_some_message_or_a_protocol_error(kind, data):
    anything = st.recursive(
        st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.floats() | TEXT | st.binary(max_size=4),
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=2),
        max_leaves=5,
    )
    fields = data.draw(st.lists(anything, min_size=len(wire.KINDS[kind][1]), max_size=15))
    try:
        (message,) = read(framed([kind, *fields]))
    except RemoteProtocolError:
        return
    assert read(wire.encode(message)[0]) == [message]


@pytest.mark.parametrize("claimed", [0xFFFFFFFE, 2**31, 2**24])
def test_nothing_of_a_claimed_size_is_allocated(claimed):
    frame = struct.pack(">HI", 6, claimed) + header_bytes(m.Heartbeat(0))[:6] + b"x"
    claims = [
        frame,
        *framed(b"\x92\x05\xdd" + struct.pack(">I", claimed)),
        *framed(b"\x92\x05\xc6" + struct.pack(">I", claimed)),
    ]
    tracemalloc.start()
    try:
        for each in claims:
            with pytest.raises(RemoteProtocolError):
                read([each])
        assert tracemalloc.get_traced_memory()[1] < 100_000  # load: one thread, and the interpreter itself counts
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize(
    ("frames", "error", "says"),
    [
        ([], LimitExceeded, "1 to 4 frames"),
        ([b""] * 5, LimitExceeded, "1 to 4 frames"),
        ([wire.encode(m.Heartbeat(1))[0][0], b"more"], RemoteProtocolError, "no message names"),
        (framed([99, 1]), RemoteProtocolError, "kind 99 is not known"),
        (framed([4, 1]), RemoteProtocolError, "kind 4 is not known"),
        (framed([True, 1]), RemoteProtocolError, "a header"),
        (framed([]), RemoteProtocolError, "a header"),
        (framed(5), RemoteProtocolError, "a header"),
        (framed({}), RemoteProtocolError, "a header"),
        (framed([5]), RemoteProtocolError, "Heartbeat of 2 fields"),
        (framed([5, -2]), RemoteProtocolError, "expected an int"),
        (framed([5, 2**63]), RemoteProtocolError, "expected an int"),
        (framed([5, True]), RemoteProtocolError, "expected an int"),
        (framed([5, {"a": 1}]), RemoteProtocolError, "not msgpack as the protocol has it"),
        (framed([5, msgpack.ExtType(7, b"x")]), RemoteProtocolError, "msgpack"),
        (framed([5, msgpack.Timestamp(1)]), RemoteProtocolError, "msgpack"),
        (framed(b"\x92\x05\xd4\x07"), RemoteProtocolError, "msgpack"),
        (framed([5, 1], b"payload"), RemoteProtocolError, "carries no payload"),
        (framed([41, b"bytes"]), RemoteProtocolError, "a string"),
        (framed(b"\x92\x29\xa1\xff"), RemoteProtocolError, "msgpack"),
        (framed([41, "x" * 4097]), RemoteProtocolError, "a string"),
        (framed([39, 1, "0", "explode"]), RemoteProtocolError, "close, finish or abort"),
        (framed([39, 1, "0", [1]]), RemoteProtocolError, "close, finish or abort"),
        (framed([2, 0, -1, [[0, 2**31]]]), RemoteProtocolError, "a pair"),
        (framed([3, 0, -1, [-1]]), RemoteProtocolError, "a time"),
        (framed([3, 0, -1, [0] * 8193]), RemoteProtocolError, "max_array_len"),
        (framed([6, 0, 1, b"short", [], [], []]), RemoteProtocolError, "16 bytes"),
        (framed([1, 0, -1, 0, b"t" * 1025, 1, 0]), RemoteProtocolError, "a topic"),
        (framed([34, "0", 1, 0, b"", 1, 0, None, None, b"k" * 1025]), RemoteProtocolError, "a key of at most"),
        (framed([18, 1, "0", [1], 1]), RemoteProtocolError, "a position"),
        (framed([17, 1, 1, b"12345678", 1, 1, 1, float("nan"), []]), RemoteProtocolError, "seconds"),
    ],
)  # fmt: skip
def test_each_violation_has_its_error(frames, error, says):
    with pytest.raises(RemoteProtocolError, match=re.escape(says)) as caught:
        read(frames)
    assert type(caught.value) is error


def nested(depth):
    value: Any = 0
    for _ in range(depth):
        value = [value]
    return value


@pytest.mark.parametrize("depth", [10, 17, 200, 490, 900])
def test_a_time_that_nests_too_deep_is_refused(depth):
    packed = b"\x94\x03\x00\xff\x91" + b"\x91" * depth + b"\x00"
    with pytest.raises(RemoteProtocolError):
        read(framed(packed))


@pytest.mark.parametrize("depth", [17, 200, 990, 1020, 5000])
def test_a_field_of_a_wrong_type_or_a_later_version_that_nests_too_deep_is_refused(depth):
    with pytest.raises(RemoteProtocolError):
        read(framed(b"\x92\x05" + b"\x91" * depth + b"\x00"))
    with pytest.raises(RemoteProtocolError):
        read(framed(b"\x93\x05\x01" + b"\x91" * depth + b"\x00"))


def test_times_nest_as_deep_as_shapes_may():
    deepest: Any = 5
    for _ in range(9):
        deepest = (deepest,)
    message = m.Aborted(0, -1, (deepest,))
    assert read(wire.encode(message)[0]) == [message]


@example(m.Pass(0, "", "", ""), [])
@given(MESSAGES, st.lists(st.none() | st.text(max_size=3) | st.lists(st.integers(0, 5), max_size=3), max_size=3))
def test_fields_that_a_later_version_appends_are_ignored(message, more):
    header = msgpack.unpackb(header_bytes(message), strict_map_key=False)
    payload = message.payload if isinstance(message, m.Data | m.Append | m.Answer) else b""
    optional = len(META_CHECKS) if isinstance(message, m.Data | m.Append) else 0
    left_out = len(wire.KINDS[header[0]][1]) + optional + 1 - len(header)
    said = () if optional else message[len(header) - 1 :]
    nothing = [*said, *[None] * (left_out - len(said))]
    assert read(framed([*header, *nothing, *more], payload)) == [message]


def test_fields_that_an_earlier_version_does_not_have_may_be_missing_and_are_left_out_where_they_say_nothing():
    asks, later = m.Since(2, "0", None, 8), m.Since(2, "0", None, 8, (5,))
    for header in ([18, 2, "0", None, 8], [18, 2, "0", None, 8, None]):
        assert read(framed(header)) == [asks]
    assert wire.encode(asks) == [framed([18, 2, "0", None, 8])]
    assert wire.encode(later) == [framed([18, 2, "0", None, 8, [5]])]
    for header in ([18, 2, "0", None], [18, 2, "0"], [18, 2, "0", None, 8, 5], [18, 2, "0", None, 8, [-1]]):
        with pytest.raises(RemoteProtocolError, match=r"expected (a Since of 6 fields|an array|a time)"):
            read(framed(header))


@pytest.mark.parametrize("apart", [False, True])
def test_a_payload_above_the_limit_is_refused(apart):
    size = 70_000 if apart else 5_000
    (frames,) = wire.encode(m.Data(0, -1, 0, b"", 1, 0, bytes(size)))
    assert read(frames, max_payload=size)
    with pytest.raises(LimitExceeded, match="at most"):
        read(frames, max_payload=size - 1)


def test_a_payload_apart_must_be_where_it_is_said_to_be():
    ((first, payload),) = wire.encode(m.Data(0, -1, 0, b"", 1, 0, bytes(70_000)))
    for wrong in ([first], [first, payload, b""], [first + first, payload], [payload, first]):
        with pytest.raises(RemoteProtocolError):
            read(wrong)


def test_messages_before_a_fault_are_still_read():
    (frames,) = wire.encode(m.Heartbeat(1), m.Heartbeat(2))
    found: list[Any] = []
    with suppress(RemoteProtocolError):
        found.extend(wire.decode([frames[0] + b"\x00"]))
        found.append("no fault was found")
    assert found == [m.Heartbeat(1), m.Heartbeat(2)]


# ---- the specification ----


def test_the_table_of_kinds_in_the_specification_is_that_of_the_code():
    text = (Path(__file__).parents[2] / "docs" / "protocol.md").read_text()
    documented = {}
    for number, name, fields in re.findall(r"^\| (\d+) \| `(\w+)` \| ([^|]*) \|", text, re.MULTILINE):
        documented[int(number)] = (name, re.findall(r"`(\w+)`", fields))
    expected = {}
    for number, (kind, checks) in wire.KINDS.items():
        expected[number] = (kind.__name__, list(kind._fields)[: len(checks)])
    assert documented == expected


def test_batches_of_one_trace_share_their_meta_and_those_of_another_do_not() -> None:
    metas = [m.Meta(bytes([at]) * 24 + b"\0") for at in (1, 1, 2, 1)] + [m.Meta(b"\1" * 24 + b"\0", key=b"k"), None]
    sent = [m.Data(at, at - 1, 0, b"", 1, 0, b"x", meta) for at, meta in enumerate(metas)]
    read = [message for batch in sent for frames in wire.encode(batch) for message in wire.decode(frames)]
    assert [batch.meta for batch in read if type(batch) is m.Data] == metas
    assert read[0].meta is read[1].meta  # type: ignore[union-attr]
