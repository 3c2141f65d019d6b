"""A number that comes again is acknowledged only if it is the append that was logged, after a restart too."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from epochal.errors import LocalProtocolError, RepeatDiffers
from epochal.protocol import messages as m
from epochal.protocol.log.history import SegmentState
from epochal.protocol.messages import GROUP
from epochal.protocol.publisher import writer_state
from epochal.protocol.publisher.append_numbers import REMEMBERED_APPENDS, AppendNumbers, fingerprint
from epochal.protocol.publisher.effects import Log, Push, Reply
from epochal.protocol.publisher.journal import Fingerprints, Ran, Restoring, encode_notes
from epochal.protocol.publisher.limits import PublisherSettings
from epochal.protocol.publisher.machine import SegmentPublisher
from epochal.protocol.times import TimeShape
from epochal.protocol.writer.effects import Failed, Moved

SETTINGS = PublisherSettings(TimeShape.parse("int"), durable=True)
CRCS = {b"": 0, b"a": 0xC1D04330, b"b": 0xD280B0C4}
"""Payloads and their CRC-32C, written down so that the tests do not take the code's word for it."""


class Life:
    """Incarnations of one publisher over one log, all of which is on disk."""

    def __init__(self) -> None:
        self.incarnation = 0
        self.events: list[m.Event] = []
        self.entries: list[tuple[list[m.Event], bytes]] = []
        self.checkpoint: tuple[SegmentState, bytes] | None = None
        self.restart()

    def restart(self) -> None:
        """The next incarnation."""
        restored = None
        if self.checkpoint is not None:
            state, machine = self.checkpoint
            restoring = Restoring.after(state, machine)
            for events, notes in self.entries:
                restoring.entry(events, notes)
            restored = restoring.end()
        self.incarnation += 1
        self.publisher = SegmentPublisher("u", "0", SETTINGS, incarnation=self.incarnation, now=0.0, restored=restored)
        if self.checkpoint is None:
            self.roll()

    def roll(self) -> None:
        self.checkpoint = self.publisher.state(), encode_notes(self.publisher.checkpoint())
        self.entries.clear()

    def ask(self, message: m.Message, writer: str = "w") -> list[m.Message]:
        """What is answered, once the log has it."""
        self.publisher.receive(writer.encode(), message, 0.0)
        return self.log()

    def log(self) -> list[m.Message]:
        """Log what the publisher has done since the last call; returns its answers."""
        effects = self.publisher.take()
        if effects and isinstance(effects[-1], Log):
            events = [e.message for e in effects if isinstance(e, Push) and not isinstance(e.message, m.Heartbeat)]
            self.entries.append((events, encode_notes(effects[-1].notes)))
            self.events += events
        return [effect.message for effect in effects if isinstance(effect, Reply)]

    def open(self, writer: str = "w", session: int = 1) -> m.Opened:
        (opened,) = self.ask(m.Open(1, "u", "0", writer, session, None, None), writer)
        assert isinstance(opened, m.Opened)
        return opened

    def append(self, number: int, time: int = 3, payload: bytes = b"a", records: int = 1, writer: str = "w") -> Any:
        (reply,) = self.ask(m.Append("0", number, time, b"", records, CRCS[payload], payload), writer)
        return reply


def refused(reply: m.Message, number: int) -> bool:
    return isinstance(reply, m.AppendRefused) and (reply.number, reply.code) == (number, "repeat_differs")


@pytest.fixture(params=["the same incarnation", "restarted", "rolled and restarted"])
def later(request: pytest.FixtureRequest) -> Any:
    """What happens between an append and its repetition, for a writer that opens again where it must."""

    def happens(life: Life) -> None:
        if "rolled" in request.param:
            life.roll()
        if "restarted" in request.param:
            life.restart()
            life.open(session=life.incarnation)

    return happens


@pytest.mark.rule("E49")
@pytest.mark.parametrize(
    "differs", [{"time": 4}, {"records": 2}, {"payload": b"b"}, {"payload": b""}], ids=["time", "count", "crc", "empty"]
)
def test_a_repeat_that_differs_is_refused_and_leaves_no_trace(later: Any, differs: dict[str, Any]) -> None:
    life = Life()
    life.open()
    assert life.append(0) == m.Ack("0", 0, 0, 1)
    assert life.append(1) == m.Ack("0", 1, 1, 1)
    later(life)
    events = len(life.events)
    assert refused(life.append(0, **differs), 0)
    assert life.append(0) == m.Ack("0", 0, 0, 1), "it is still the one that was logged"
    assert life.append(1) == m.Ack("0", 1, 1, 1)
    assert len(life.events) == events
    assert life.append(2) == m.Ack("0", 2, events, 1), "the session goes on"


@pytest.mark.rule("E49")
def test_a_repeat_of_a_number_that_was_never_logged_is_refused(later: Any) -> None:
    """A task that ran with three batches runs again with four: the fourth must not be acknowledged."""
    life = Life()
    life.open()
    for number in (0, 1, 2, 1 << GROUP):
        life.append(number)
    later(life)
    assert life.append(2) == m.Ack("0", 2, 2, 1)
    assert refused(life.append(3), 3)
    assert life.append(1 << GROUP) == m.Ack("0", 1 << GROUP, 3, 1)


@pytest.mark.rule("E49", "E6")
def test_a_writer_that_left_and_comes_back_is_held_to_what_it_had_appended(later: Any) -> None:
    """A task closes its session before the driver hears of it, and may run again all the same."""
    life = Life()
    life.open()
    life.append(0)
    life.append(1, payload=b"b")
    life.ask(m.Leave(2, "0", m.Leaving.CLOSE))
    later(life)
    life.open(session=9)
    assert life.append(0) == m.Ack("0", 0, 0, 1)
    assert refused(life.append(1), 1)


@pytest.mark.rule("E49", "E6")
def test_a_refused_number_that_comes_again_is_refused_as_it_was(later: Any) -> None:
    life = Life()
    life.open()
    life.ask(m.Hold(2, "0", (3,)))
    life.append(0)
    assert life.append(1, time=1).code == "capability"
    life.append(2)
    later(life)
    assert life.append(1).code == "capability"
    assert life.append(2, time=3) == m.Ack("0", 2, life.events[-1].seq, 1)


@pytest.mark.rule("E49")
def test_the_last_4096_numbers_are_known_and_older_ones_are_acknowledged_unseen(later: Any) -> None:
    life = Life()
    life.open()
    last = REMEMBERED_APPENDS + 2000
    for number in range(last + 1):
        life.append(number, records=number)
    later(life)
    oldest = last - REMEMBERED_APPENDS + 1
    for number in (oldest, oldest + 1, last):
        assert refused(life.append(number, records=last + 1), number)
        assert isinstance(life.append(number, records=number), m.Ack)
    assert isinstance(life.append(0, records=last), m.Ack), "nobody knows any more"


@pytest.mark.parametrize(
    ("last", "numbers", "prints"),
    [(4, b"", b"\0"), (4, b"\0" * 8, b""), (0, b"", b"\0" * 16), (4, b"\0" * 9, b"\0" * 8)],
)
def test_fingerprints_that_no_version_writes_are_refused(last: int, numbers: bytes, prints: bytes) -> None:
    notes = encode_notes([Fingerprints("w", last, numbers, prints)])
    with pytest.raises(LocalProtocolError, match="fingerprints that are not valid"):
        Restoring.after(SegmentState(-1, (0,), (), ()), notes)


@pytest.mark.rule("E49")
@given(st.data())
def test_no_repeat_is_acknowledged_that_is_not_what_was_logged(data: st.DataObject) -> None:
    """Two writers, groups with holes, refusals, new files and restarts; a plain dict knows what was logged."""
    life = Life()
    logged: dict[tuple[str, int], tuple[int, tuple[int, int, bytes]]] = {}
    denied: set[tuple[str, int]] = set()
    newest = {"v": -1, "w": -1}
    session = 1

    def open_all() -> None:
        nonlocal session
        session += 1
        for writer in newest:
            assert life.open(writer, session).number == newest[writer]
            life.ask(m.Hold(2, "0", (3,)), writer)

    open_all()
    for _ in range(data.draw(st.integers(1, 30), "steps")):
        step = data.draw(st.sampled_from(["append", "append", "group", "deny", "again", "again", "roll", "restart"]))
        writer = data.draw(st.sampled_from("vw"))
        time, records = data.draw(st.integers(3, 5)), data.draw(st.integers(0, 2))
        payload = data.draw(st.sampled_from(sorted(CRCS)))
        number = newest[writer] + 1
        match step:
            case "append" | "group":
                if step == "group":
                    number = ((number >> GROUP) + 1) << GROUP
                reply = life.append(number, time, payload, records, writer)
                assert isinstance(reply, m.Ack)
                logged[writer, number] = reply.seq, (time, records, payload)
                newest[writer] = number
            case "deny":
                assert life.append(number, 0, payload, records, writer).code == "capability"
                denied.add((writer, number))
                newest[writer] = number
            case "again" if newest[writer] >= 0:
                number = data.draw(st.integers(0, newest[writer] & (2**GROUP - 1)), "number") + (
                    data.draw(st.integers(0, newest[writer] >> GROUP), "group") << GROUP
                )
                before = len(life.events)
                reply = life.append(number, time, payload, records, writer)
                assert len(life.events) == before
                if (writer, number) in denied:
                    assert reply.code == "capability"
                elif (writer, number) in logged and logged[writer, number][1] == (time, records, payload):
                    assert reply == m.Ack("0", number, logged[writer, number][0], 1)
                elif number >= min((n for w, n in logged if w == writer), default=number + 1):
                    assert refused(reply, number)
            case "roll":
                life.roll()
            case "restart":
                life.restart()
                open_all()


@pytest.mark.rule("E49")
def test_the_writer_learns_which_append_differs_and_goes_on(wire_up: Any) -> None:
    wiring = wire_up()
    first = wiring.writer("w", session=1)
    first.append("0", 0, b"a", b"b")
    first.leave(m.Leaving.ABORT)
    again = wiring.writer("w", session=2)
    again.machine.appends.start_group(0)
    again.append("0", 0, b"a")
    (ticket,) = again.append("0", 0, b"a", awaited=True)
    (failed,) = again.of(Failed)
    assert failed.ticket == ticket
    assert isinstance(failed.error, RepeatDiffers)
    assert (failed.error.writer, failed.error.segment, failed.error.number) == ("w", "0", 1)
    assert not again.machine.over
    move = again.advance(1)
    assert Moved(move) in again.told, "its caller was told; the session goes on"


@pytest.mark.rule("E49", "E1")
def test_a_repeat_that_differs_and_is_not_awaited_stops_the_next_move(wire_up: Any) -> None:
    wiring = wire_up()
    first = wiring.writer("w", session=1)
    first.append("0", 0, b"a")
    first.leave(m.Leaving.ABORT)
    again = wiring.writer("w", session=2)
    again.machine.appends.start_group(0)
    again.append("0", 0, b"b")
    again.advance(1)
    assert list(wiring.publishers["0"].progress.lower.frontier) == [0]
    with pytest.raises(RepeatDiffers, match="append 0 of writer 'w'"):
        again.machine.raise_failure()


# ---- what it costs ----


def test_what_is_remembered_of_a_writer_is_bounded() -> None:
    appends = AppendNumbers()
    for number in range(3 * REMEMBERED_APPENDS):
        appends.logged(number, number, number % 7, 1, number)
        assert appends.fingerprint_bytes <= 16 * (REMEMBERED_APPENDS + 1024)
    assert appends.fingerprint_bytes >= 16 * REMEMBERED_APPENDS
    assert all(appends.repeats(number, fingerprint(number % 7, 1, number)) for number in range(appends.last + 1))
    assert not appends.repeats(appends.last, fingerprint(appends.last % 7 + 1, 1, appends.last))


def test_what_is_remembered_of_writers_that_left_is_bounded_oldest_forgotten_first(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(writer_state, "DEPARTED_BYTES", 16 * 5)
    life = Life()
    for writer in ("a", "b", "c"):
        life.open(writer)
        life.append(0, writer=writer)
        life.append(1, writer=writer)
        life.ask(m.Leave(2, "0", m.Leaving.CLOSE), writer)
    for writer in ("a", "b", "c"):
        life.open(writer, session=2)
    assert isinstance(life.append(1, payload=b"b", writer="a"), m.Ack), "forgotten"
    assert refused(life.append(1, payload=b"b", writer="b"), 1)
    assert refused(life.append(1, payload=b"b", writer="c"), 1)


def test_a_checkpoint_shares_its_room_among_the_writers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("epochal.protocol.publisher.journal.KEPT_FINGERPRINTS", 8 * 20)
    life = Life()
    life.open("a")
    life.open("b")
    for number in range(30):
        life.append(number, writer="a")
    for number in range(4):
        life.append(number, writer="b")
    kept = [note for note in life.publisher.checkpoint() if isinstance(note, Fingerprints)]
    assert {note.writer: len(note.prints) // 8 for note in kept} == {"a": 16, "b": 4}
    assert all(note.numbers == b"" for note in kept), "numbers without holes need not be listed"
    life.roll()
    life.restart()
    life.open("a", session=2)
    assert isinstance(life.append(13, payload=b"b", writer="a"), m.Ack)
    assert refused(life.append(14, payload=b"b", writer="a"), 14)


def test_runs_whose_events_are_not_in_their_entry_are_known_by_position_only() -> None:
    restoring = Restoring.after(SegmentState(4, (0,), (), ()), b"")
    restoring.entry([], encode_notes([Ran("w", 4, 4, 5)]))
    (writer,) = restoring._writers.values()
    assert writer.appends.answer_again(3) == 3
    assert writer.appends.repeats(3, 1), "unknown"
