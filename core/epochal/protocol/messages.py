"""The vocabulary of wire protocol version 1: every message that publishers, writers and subscribers exchange.

Plain immutable values. Their bytes are in `wire`, and what they mean is in the machines. Field order is the order on
the wire; `docs/protocol.md` specifies each. A field with a default need not be there, and is left out where it says
nothing: such is every field that a later version adds.

Times in messages are times (ints or tuples), never their JSON form. `op` and `request` are numbers that the asking side
chooses; the answer carries the same number.
"""

from enum import StrEnum
from typing import NamedTuple, TypeAlias

from epochal.protocol.frontier import Change
from epochal.protocol.times import Time

VERSION = 1
"""The protocol version spoken here; `Hello.versions` lists what a client speaks."""

NOTHING_YET = -1
"""The sequence number "before the first event"."""

FIRST_SESSION = 1
"""The number of a writer's first session where sessions are counted: no earlier one has left anything (E6 sessions).

Catalogs give numbers out by their clocks, and say which session is a writer's first.
"""

GROUP = 32
"""`number >> GROUP` is an append number's group; numbers are without holes within a group."""

MAX_ID = 253
"""Characters of the id of a writer or publisher, and of the name of a subscriber; as of a host's name."""

SINCE_TIMES = "since:times"
"""The feature of a publisher that takes `Since.wanted`."""

SINCE_FILTER = "since:filter"
"""The feature of a publisher that takes `Since.filter` (F10)."""

FILTER_CHANNELS = "filter:channels"
"""The feature of a publisher that takes `Hello.filter`, and has a channel for each filter (F6)."""

MAX_RELAYS = 8
"""Relays between a subscriber and the publisher (F16)."""

MAX_FILTER_ENTRIES, MAX_FILTER_BYTES = 256, 16 * 1024
"""What the filter in one message may have: prefixes, and their bytes."""

Prefixes: TypeAlias = tuple[tuple[bytes, ...], tuple[bytes, ...]]
"""A filter on the wire: the prefixes of topics that are wanted, and those that are not; see `topics.filter`."""


def is_id(text: str) -> bool:
    r"""Whether a text can be an id: 1 to `MAX_ID` printable characters, because people read ids on terminals.

    >>> is_id("fares/2"), is_id(""), is_id("clear\x1b[2J")
    (True, False, False)
    """
    return 1 <= len(text) <= MAX_ID and text.isprintable()


class Position(NamedTuple):
    """A place in a segment's log: just after event `seq` of `incarnation` (E16)."""

    incarnation: int
    seq: int


class Meta(NamedTuple):
    """What a batch says of itself beside its records: optional, stored with it, and never judged.

    All who read the batch see it; no publisher decides by it, except by `source`. A part that is not as the protocol
    has it is left out, and the batch is taken all the same. An append with a key that is too long is refused, though.
    """

    trace: bytes | None = None
    """16 bytes of a trace id, 8 of a span id, 1 of flags, as W3C Trace Context has them: where the batch was made."""
    tracestate: bytes = b""
    """What goes beside it, as there; at most 512 bytes."""
    key: bytes | None = None
    """The key that all its records were appended with, of at most 1,024 bytes."""
    published: int | None = None
    """The writer's wall clock: milliseconds since 1970, UTC."""
    headers: tuple[tuple[bytes, bytes], ...] = ()
    """The publishing program's own names and values, each name once, at most 4 KiB in all."""
    source: int | None = None
    """Where the program's own source has it, rising within a writer id; the one part publishers judge (E50 sources)."""
    ignored: int = 0
    """How many parts were left out in reading; never on the wire."""

    @property
    def size(self) -> int:
        """Bytes of all that has no fixed length."""
        size = len(self.tracestate)
        if self.key is not None:
            size += len(self.key)
        if self.headers:  # asked twice for each batch, and most have none
            size += sum(len(name) + len(value) for name, value in self.headers)
        return size


# ---- events of a segment's log; `prev` is the event before it on the channel it travels on (E14) ----


class Data(NamedTuple):
    """A batch of `records` records at `time`; `crc` is the CRC-32C that the writer took over `payload`."""

    seq: int
    prev: int
    time: Time
    topic: bytes
    records: int
    crc: int
    payload: bytes
    meta: Meta | None = None


class Frontier(NamedTuple):
    """Visible changes of the lower frontier, applied at once."""

    seq: int
    prev: int
    changes: tuple[Change, ...]


class Aborted(NamedTuple):
    """Epochs that can never complete (E2)."""

    seq: int
    prev: int
    times: tuple[Time, ...]


Event: TypeAlias = Data | Frontier | Aborted

# ---- publisher -> subscriber, on `events` ----


class Snapshot(NamedTuple):
    """The segment's state exactly after event `seq`, the last one pushed.

    The first message of a subscription (S8). Every time that is <= an element of `below`, and that
    `lower` still reaches, is aborted (E11 horizon); those elements are among what `upper` covers, too. `left` is the
    last event on the channel of the subscription that this one replaces, None if there is none (F8).
    """

    seq: int
    incarnation: int
    subscription: bytes
    lower: tuple[Time, ...]
    upper: tuple[Time, ...]
    aborted: tuple[Time, ...]
    below: tuple[Time, ...] = ()
    left: int | None = None


class Heartbeat(NamedTuple):
    """Nothing happened on the channel since `seq`, and up to `upto` there was nothing for it in the log (F7).

    `upto` is left out where it is not above `seq`.
    """

    seq: int
    upto: int = NOTHING_YET


class Ended(NamedTuple):
    """A relay sends nothing more on this channel: join again, there or elsewhere, after the last event (F13).

    What comes later is not known to follow what was sent. `detail` says why.
    """

    detail: str


class Refused(NamedTuple):
    """The answer to `op` (or `request`) is no; `code` is that of an `EpochalError`."""

    op: int
    code: str
    detail: str


# ---- subscriber <-> publisher, on `requests` ----


class Hello(NamedTuple):
    """Asks to join a segment; `nonce` (16 random bytes) becomes the subscription id.

    Only topics of `filter` need be sent. If it is None, only those of the connection's view `view`, which `Filter` has
    made; without such a view, all (F6). `replaces` is an earlier subscription id of this client: that subscription ends
    with the snapshot for this one, which changes its channel (F8).
    """

    request: int
    versions: tuple[int, ...]
    stream: str
    segment: str
    nonce: bytes
    filter: Prefixes | None = None
    replaces: bytes | None = None
    view: int = 0


class Filter(NamedTuple):
    """One step towards a filter: what the publisher has for `prefix` in view `view` of this connection (F4).

    A view begins with everything, and one with a higher number takes the place of the last. `step`: 1 send what begins
    with the prefix, 2 do not, 3 as for the next shorter prefix. `oldest` is the lowest number under way.
    """

    segment: str
    view: int
    number: int
    oldest: int
    step: int
    prefix: bytes


class Confirm(NamedTuple):
    """The publisher has carried out `Filter` number `number` of the view."""

    view: int
    number: int
    step: int
    prefix: bytes


class Welcome(NamedTuple):
    """What to subscribe to.

    `C<channel>`, then `P<nonce>`. `seq` is the last event pushed when the channel was given out. `coarse`: the channel
    carries more topics than were asked for, because the publisher has no room for another channel (F12). `path`: the
    ids of the relays between here and the publisher, the one that answers first (F16).
    """

    request: int
    version: int
    channel: bytes
    incarnation: int
    seq: int
    max_payload: int
    heartbeat: float
    features: tuple[str, ...]
    coarse: bool = False
    path: tuple[str, ...] = ()


class Since(NamedTuple):
    """Asks for the events strictly after `position`, or after the start of the retained history for None.

    At most `credit` chunks are sent before the next `Credit`. With `wanted`, which goes with no position, the answer
    begins with the first event that matters to an epoch which one of these times reaches (E20). With `filter`, batches
    of other topics are left out (F10).
    """

    request: int
    segment: str
    position: Position | None
    credit: int
    wanted: tuple[Time, ...] | None = None
    filter: Prefixes | None = None


class Credit(NamedTuple):
    """Allows `chunks` more chunks of an answer."""

    request: int
    chunks: int


class Opening(NamedTuple):
    """Begins the answer to `Since`: the state just after `position`, where its events start (E13 retention).

    `below` as in `Snapshot`. With `lull`, the events after `position` up to event `lull` are gone; in them only the
    lower frontier moved, to `moved_to`. Then the state is the one where the lull began, which can replace each later
    state in it.
    """

    request: int
    position: Position
    lower: tuple[Time, ...]
    upper: tuple[Time, ...]
    aborted: tuple[Time, ...]
    below: tuple[Time, ...] = ()
    lull: int = NOTHING_YET
    moved_to: tuple[Time, ...] = ()


class Chunk(NamedTuple):
    """The next `events` messages of this zmq message are events of the answer; after `last` there is no more.

    In a filtered answer they are all that there is for it up to event `upto` (F10).
    """

    request: int
    events: int
    last: bool
    upto: int = NOTHING_YET


class Truncated(NamedTuple):
    """The answer to `Since` when events after `position` are gone.

    The first retained position, and the lower frontier there.
    """

    request: int
    first_available: Position
    frontier: tuple[Time, ...]


# ---- writer <-> publisher, on `ingest` ----


class Resume(NamedTuple):
    """What a writer that was cut off knows (E10 durability).

    Its last acknowledged append, what it holds, and what it appended and has not left.
    """

    number: int
    held: tuple[Time, ...]
    touched: tuple[Time, ...]


class Open(NamedTuple):
    """Opens a session.

    With `under`, the writer holds nothing itself: its appends are made under that writer's capability. `sources` asks
    for the source numbers in the answer (E50 sources).
    """

    op: int
    stream: str
    segment: str
    writer: str
    session: int
    under: str | None
    resume: Resume | None
    sources: bool = False


class Opened(NamedTuple):
    """The session is open.

    `number` is the last append known, `touched` the times appended and not left, `lost` those aborted because this
    publisher lost their appends, `window` the bytes that may be unacknowledged, `granted` whether `held` is a new grant
    rather than what the writer still held. `source` is the highest source number logged here, -1 for none, by event
    `at` or one before; up to `whole` all is in epochs that the writer has left at every segment; `torn`: an epoch with
    some of them was aborted before the writer had left it. None if not asked for, or not kept (E50 sources). `closed`:
    the new grant follows a close or finish, which the writer sent when all that it had appended anywhere was
    acknowledged (E1 barrier).
    """

    op: int
    segment: str
    incarnation: int
    frontier: tuple[Time, ...]
    held: tuple[Time, ...]
    number: int
    touched: tuple[Time, ...]
    lost: tuple[Time, ...]
    window: int
    granted: bool
    source: int | None = None
    at: int = -1
    whole: int = -1
    torn: bool = False
    closed: bool = False


class Append(NamedTuple):
    """One batch. Numbers rise by one in a batch group (`number >> 32`); a new group starts at its 0 (E6 sessions)."""

    segment: str
    number: int
    time: Time
    topic: bytes
    records: int
    crc: int
    payload: bytes
    meta: Meta | None = None


class Ack(NamedTuple):
    """Appends `number - run + 1 .. number` are logged, the last at `seq`, the others each one before the next."""

    segment: str
    number: int
    seq: int
    run: int


class AppendRefused(NamedTuple):
    """Append `number` was not logged."""

    segment: str
    number: int
    code: str
    detail: str


class Hold(NamedTuple):
    """The writer's capability is now exactly `times`; each must be reached by what it held.

    Up to source number `whole` all is published, in epochs that the writer has left at every segment (E50 sources).
    """

    op: int
    segment: str
    times: tuple[Time, ...]
    whole: int = -1


class Abort(NamedTuple):
    """Aborts epochs that the writer holds."""

    op: int
    segment: str
    times: tuple[Time, ...]


class Leaving(StrEnum):
    """How a writer leaves.

    All its epochs are whole / it will never append again / its open epochs must be aborted (E4).
    """

    CLOSE = "close"
    FINISH = "finish"
    ABORT = "abort"


class Leave(NamedTuple):
    """Ends the session."""

    op: int
    segment: str
    how: Leaving


class Done(NamedTuple):
    """`op` took effect."""

    op: int
    segment: str


class Alive(NamedTuple):
    """A writer's heartbeat."""

    segment: str


class Lost(NamedTuple):
    """This session is over at `segment`: `code` is writer_fenced, writer_lost, stream_complete or stream_gone."""

    segment: str
    code: str
    detail: str


# ---- writer <-> sidecar; between them each of these is alone, after an empty frame ----


class Greet(NamedTuple):
    """Asks who is there; `pod` is the uid of the pod that the asking side runs in, empty outside of Kubernetes."""

    request: int
    versions: tuple[int, ...]
    pod: str


class Greeted(NamedTuple):
    """The sidecar: `instance` is of this life of its process."""

    request: int
    version: int
    instance: str
    pod: str


class AskKind(StrEnum):
    """What a sidecar has to get from the catalog: a look-up with a new session, a look-up without, a session."""

    OPEN = "open"
    GET = "get"
    SESSION = "session"


class Ask(NamedTuple):
    """Asks the catalog through the sidecar.

    `stream` is `namespace/name`; `expected` the time shape, encoding and schema (as JSON) that it must be declared
    with, empty for any (S28); `wait` the seconds that it may wait for publishers.
    """

    request: int
    question: AskKind
    stream: str
    writer: str
    expected: tuple[str, ...]
    wait: float


class Answer(NamedTuple):
    """The catalog's answers, as JSON: `session` to the question for one, `payload` to a look-up; empty if not asked.

    Separate, since every task's look-up of one stream is alike and need be read once.
    """

    request: int
    session: str
    payload: bytes


class Pass(NamedTuple):
    """From now on this connection is a writer's to the publisher at `address`; what goes through is not looked into.

    What follows need not wait for `Passed`; `Refused` comes instead when it cannot be. `stream` and `trace` (as in
    `Meta`) are for the sidecar's own span.
    """

    request: int
    instance: str
    address: str
    stream: str = ""
    trace: bytes | None = None


class Passed(NamedTuple):
    """What comes after this belongs to the `Pass` of that request.

    What came before is of an earlier writer on this connection, and is dropped.
    """

    request: int


class Cut(NamedTuple):
    """To a writer: the connection to the publisher is broken, and the last messages may be lost: connect again.

    To a sidecar: the writer leaves without all its answers, so no other writer may get its connection.
    """

    code: str
    detail: str


class Free(NamedTuple):
    """The writer has left, and every answer has come: the way to the publisher may serve another."""


class Left(NamedTuple):
    """A writer's session has left every segment: the number of its next one may be asked for ahead (E6 sessions)."""

    stream: str
    writer: str
    session: int


Message: TypeAlias = (
    Data | Frontier | Aborted | Snapshot | Heartbeat | Ended | Refused
    | Hello | Welcome | Filter | Confirm | Since | Credit | Opening | Chunk | Truncated
    | Open | Opened | Append | Ack | AppendRefused | Hold | Abort | Leave | Done | Alive | Lost
    | Greet | Greeted | Ask | Answer | Pass | Passed | Cut | Free | Left
)  # fmt: skip
