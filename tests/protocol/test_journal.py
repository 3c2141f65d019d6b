"""What the log keeps beside events: notes come back as they were, and a publisher goes on where its log ends."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from epochal.errors import LocalProtocolError
from epochal.protocol import messages as m
from epochal.protocol.log.history import SegmentState
from epochal.protocol.publisher import writer_state
from epochal.protocol.publisher.effects import Log, Push, Reply
from epochal.protocol.publisher.journal import (
    Denied,
    EpochIs,
    Fingerprints,
    PublisherIs,
    Ran,
    Restored,
    Restoring,
    WriterForgotten,
    WriterIs,
    decode_notes,
    encode_notes,
)
from epochal.protocol.publisher.limits import PublisherSettings
from epochal.protocol.publisher.machine import SegmentPublisher
from epochal.protocol.times import TimeShape

times = st.integers(0, 2**63 - 1) | st.tuples(st.integers(0, 9), st.integers(0, 9))
names = st.text(max_size=20)
numbers = st.integers(-1, 2**63 - 1)
notes = st.one_of(
    st.builds(Ran, names, numbers, numbers, st.integers(1, 1000)),
    st.builds(Denied, names, numbers, names, names),
    st.builds(
        WriterIs, names, numbers, st.none() | names, numbers, st.lists(times).map(tuple), st.lists(times).map(tuple),
        st.booleans(), st.booleans(), st.booleans(), st.booleans(), numbers,
        numbers, numbers, st.booleans(), st.booleans(), st.lists(times).map(tuple),
    ),
    st.builds(WriterForgotten, names),
    st.builds(
        PublisherIs, st.lists(times).map(tuple), st.booleans(), st.lists(names).map(tuple),
        st.lists(names).map(tuple), st.booleans(), st.booleans(), st.booleans(), st.booleans(),
        st.lists(times).map(tuple),
    ),
    st.builds(EpochIs, times, st.integers(0, 2**40)),
    st.builds(Fingerprints, names, numbers, st.binary(max_size=20), st.binary(max_size=20)),
)  # fmt: skip


@given(st.lists(notes, max_size=20))
def test_notes_come_back_as_they_were(written: list[Any]) -> None:
    assert decode_notes(encode_notes(written)) == written


@pytest.mark.parametrize(
    "data",
    [b"\xc1", b"\x92\x01", b"\x91\x63", b"\x91\x01", b"\x05", encode_notes([EpochIs(1, 2)])[:-1]],
)
def test_notes_that_no_one_wrote_are_refused(data: bytes) -> None:
    with pytest.raises(LocalProtocolError, match="notes that this version cannot read"):
        decode_notes(data)


SETTINGS = PublisherSettings(TimeShape.parse("int"), durable=True)


class Life:
    """Incarnations of one publisher, and the log that they share: all that was taken is in it."""

    def __init__(self) -> None:
        self.incarnation = 0
        self.entries: list[tuple[list[m.Event], bytes]] = []
        self.secured: list[bool] = []
        self.checkpoint: tuple[SegmentState, bytes] | None = None
        self.replies: list[m.Message] = []
        self.restart()

    def restart(self, sessions: dict[str, int] | None = None) -> SegmentPublisher:
        """The next incarnation; `sessions`: the newest that the catalog has given out."""
        restored = self.restore() if self.checkpoint is not None else None
        self.incarnation += 1
        self.publisher = SegmentPublisher(
            "u", "0", SETTINGS, incarnation=self.incarnation, now=0.0, sessions=sessions, restored=restored
        )
        if self.checkpoint is None:
            self.roll()
        return self.publisher

    def restore(self) -> Restored:
        assert self.checkpoint is not None
        restoring = Restoring.after(*self.checkpoint)
        for events, kept in self.entries:
            restoring.entry(events, kept)
        return restoring.end()

    def roll(self) -> None:
        self.checkpoint = self.publisher.state(), encode_notes(self.publisher.checkpoint())
        self.entries.clear()

    def take(self) -> None:
        effects = self.publisher.take()
        self.replies = [effect.message for effect in effects if isinstance(effect, Reply)]
        if effects and isinstance(effects[-1], Log):
            events = [e.message for e in effects if isinstance(e, Push) and not isinstance(e.message, m.Heartbeat)]
            self.entries.append((events, encode_notes(effects[-1].notes)))
            self.secured.append(effects[-1].secure)

    def open(self, writer: str = "w", session: int = 1, resume: m.Resume | None = None) -> m.Opened:
        self.publisher.receive(writer.encode(), m.Open(1, "u", "0", writer, session, None, resume), 0.0)
        self.take()
        (opened,) = self.replies
        assert isinstance(opened, m.Opened)
        return opened

    def append(self, number: int, time: int, writer: str = "w") -> m.Message:
        self.publisher.receive(writer.encode(), m.Append("0", number, time, b"", 1, 0, b""), 0.0)
        self.take()
        (reply,) = self.replies
        return reply

    def ask(self, message: m.Message, writer: str = "w") -> None:
        self.publisher.receive(writer.encode(), message, 0.0)
        self.take()


@pytest.mark.rule("E6", "E10")
@pytest.mark.parametrize("rolled", [False, True], ids=["from the entries", "from a checkpoint"])
def test_an_append_that_was_logged_is_acknowledged_again_with_its_first_position(rolled: bool) -> None:
    life = Life()
    life.open()
    assert life.append(0, 3) == m.Ack("0", 0, 0, 1)
    assert life.append(1, 3) == m.Ack("0", 1, 1, 1)
    if rolled:
        life.roll()
    life.restart()
    opened = life.open(resume=m.Resume(0, (0,), (3,)))
    assert (opened.number, opened.held, opened.touched, opened.incarnation) == (1, (0,), (3,), 2)
    assert life.append(0, 3) == m.Ack("0", 0, 0, 1)
    assert life.append(1, 3) == m.Ack("0", 1, 1, 1)
    assert life.append(2, 3) == m.Ack("0", 2, 2, 1)


@pytest.mark.rule("E6", "E10")
def test_an_append_that_was_refused_stays_refused() -> None:
    life = Life()
    life.open()
    life.ask(m.Hold(2, "0", (5,)))
    assert isinstance(life.append(0, 3), m.AppendRefused)
    life.restart()
    life.open(resume=m.Resume(0, (5,), ()))
    again = life.append(0, 3)
    assert isinstance(again, m.AppendRefused)
    assert again.code == "capability"


@pytest.mark.rule("E6", "E10")
def test_an_older_session_stays_fenced() -> None:
    life = Life()
    life.open(session=1)
    life.open(session=2)
    life.restart()
    life.publisher.receive(b"old", m.Open(1, "u", "0", "w", 1, None, m.Resume(-1, (0,), ())), 0.0)
    life.take()
    (refused,) = life.replies
    assert isinstance(refused, m.Refused)
    assert refused.code == "writer_fenced"


@pytest.mark.rule("E6", "E11")
def test_after_a_restart_the_catalog_says_what_is_fenced_of_writers_that_the_log_does_not_know() -> None:
    """The log began after its volume was lost: session 3 of w may have opened before that, and the log never heard."""
    life = Life()
    life.open("known", 2)
    life.restart(sessions={"w": 3, "known": 3})
    assert life.open("known", 2, m.Resume(-1, (0,), ())).number == -1, "session 3 has not opened here: the log says so"
    life.ask(m.Open(1, "u", "0", "w", 2, None, None))
    (refused,) = life.replies
    assert isinstance(refused, m.Refused)
    assert refused.code == "writer_fenced"
    life.open("w", 3)


@pytest.mark.rule("E3", "E8", "E10")
def test_a_writer_that_does_not_come_back_is_lost_after_the_whole_time_out() -> None:
    life = Life()
    life.open()
    life.append(0, 3)
    life.restart()
    for now in range(1, 30):
        life.publisher.tick(float(now))
    assert life.publisher.state().aborted == ()
    for now in (30, 31):
        life.publisher.tick(float(now))
    assert life.publisher.state().aborted == (3,)
    assert life.publisher.state().lower == (0,), "parked: only finish can empty a frontier"


@pytest.mark.rule("E3", "E10")
@pytest.mark.parametrize("rolled", [False, True], ids=["from the entries", "from a checkpoint"])
def test_what_the_last_writer_to_close_had_held_is_in_the_log(rolled: bool) -> None:
    """The writer that it ran ahead of is lost only after a restart."""
    life = Life()
    life.open("behind")
    life.open("ahead")
    life.ask(m.Hold(2, "0", (12,)), "ahead")
    life.ask(m.Leave(3, "0", m.Leaving.CLOSE), "ahead")
    if rolled:
        life.roll()
    life.restart()
    for now in range(1, 32):
        life.publisher.tick(float(now))
    life.take()
    assert list(life.restart().progress.lower.frontier) == [12]


@pytest.mark.rule("E3")
def test_a_log_says_no_longer_what_was_held_at_a_close_once_the_frontier_has_passed_that() -> None:
    life = Life()
    life.open("behind")
    life.open("ahead")
    life.ask(m.Hold(2, "0", (12,)), "ahead")
    life.ask(m.Leave(3, "0", m.Leaving.CLOSE), "ahead")
    assert life.restore().publisher.closed == (12,)
    life.ask(m.Hold(2, "0", (12,)), "behind")
    assert life.restore().publisher.closed == ()


@pytest.mark.rule("E7", "E10")
def test_a_segment_that_was_parked_as_finishing_reports_to_the_catalog_again() -> None:
    life = Life()
    life.open()
    life.ask(m.Leave(2, "0", m.Leaving.FINISH))
    restarted = life.restart()
    told = [effect for effect in restarted.take() if type(effect).__name__ == "ReportFinishing"]
    assert [(report.number, report.finishing) for report in told] == [(1, True)]  # type: ignore[union-attr]
    restarted.finishing_answered(1, True, 0.0)
    assert restarted.complete
    assert restarted.state().lower == ()


@pytest.mark.rule("E10")
def test_only_further_data_of_an_active_epoch_may_wait_for_the_disk() -> None:
    life = Life()
    life.open()
    life.append(0, 3)
    life.append(1, 3)
    life.append(2, 4)
    life.append(3, 3)
    life.ask(m.Hold(2, "0", (4,)))
    life.append(4, 4)
    life.ask(m.Abort(3, "0", (4,)))
    assert life.secured == [True, True, False, True, False, True, False, True]


@pytest.mark.rule("E3", "E10")
def test_every_writers_first_append_in_an_epoch_is_secured_so_that_its_loss_aborts_the_epoch() -> None:
    life = Life()
    life.open("a")
    life.open("b")
    life.append(0, 5, "a")
    life.append(0, 5, "b")
    life.append(1, 5, "b")
    assert life.secured[-3:] == [True, True, False]
    del life.entries[-1]  # what was not secured is lost with the machine, and b with it
    life.restart()
    life.open("a", resume=m.Resume(0, (0,), (5,)))
    life.ask(m.Hold(3, "0", (9,)), "a")
    for now in range(1, 32):
        life.publisher.tick(float(now))
    assert life.publisher.state().aborted == (5,)


@pytest.mark.rule("E6", "E10")
def test_a_writer_that_was_forgotten_is_forgotten_by_the_log_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writer_state, "REMEMBERED_WRITERS", 1)
    life = Life()
    life.open("w")
    life.append(0, 5)
    life.ask(m.Leave(2, "0", m.Leaving.CLOSE))
    for other in ("x", "y"):
        life.open(other)
        life.ask(m.Leave(2, "0", m.Leaving.CLOSE), other)
    assert life.open("w", session=2).number == -1
    assert life.append(0, 6) == m.Ack("0", 0, life.publisher.seq, 1)
    life.restart()
    assert life.open("w", session=2, resume=m.Resume(0, (0,), (6,))).number == 0


def test_a_log_whose_notes_and_events_disagree_is_refused() -> None:
    life = Life()
    life.open()
    life.entries.append(([m.Frontier(0, -1, ((0, -1), (7, 1)))], b""))
    with pytest.raises(LocalProtocolError, match="disagree"):
        life.restore()


def test_a_log_with_a_hole_is_refused() -> None:
    life = Life()
    life.open()
    life.entries.append(([m.Data(9, 8, 0, b"", 1, 0, b"")], b""))
    with pytest.raises(LocalProtocolError, match="event 9 is in the log after event -1"):
        life.restore()
