"""Each item of a program's own source is published once, whatever is restarted or lost in between."""

from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.protocol.test_repeats import CRCS, Life

from epochal.errors import EpochAbortedError, UsageError, WriterClosed
from epochal.protocol import messages as m
from epochal.protocol.frontier import Antichain
from epochal.protocol.publisher import writer_state
from epochal.protocol.times import TimeShape
from epochal.protocol.writer.effects import Acked, Failed, Send, SessionReady, WriterReport
from epochal.protocol.writer.machine import WriterMachine
from epochal.protocol.writer.source_numbers import SourceNumbers

INT = TimeShape.parse("int")
TIMEOUT = 3600.0


class Segments:
    """Publishers over logs that are on disk, their clock, and the sources that were published."""

    def __init__(self, count: int) -> None:
        self.lives = {str(n): Life() for n in range(count)}
        self.now = 0.0
        self.others = 0
        self.open_other()

    def open_other(self) -> None:
        """Another writer opens, again after each restart."""
        self.others += 1
        for segment, life in self.lives.items():
            life.ask(m.Open(1, "u", segment, "x", self.others, None, None), "x")

    def goes_on(self) -> None:
        """Another writer is far ahead, so that nothing but the program holds the frontier back."""
        self.open_other()
        for segment, life in self.lives.items():
            life.ask(m.Hold(2, segment, (10**6,)), "x")

    def receive(self, segment: str, message: m.Message) -> list[m.Message]:
        return self._log(self.lives[segment], lambda publisher: publisher.receive(b"w", message, self.now))

    def lose(self, segment: str) -> None:
        """The writer's time-out passes at one segment (E3)."""
        life = self.lives[segment]
        until = self.now + 2 * life.publisher.settings.writer_timeout
        while self.now < until:
            self.now += life.publisher.settings.stall
            life.ask(m.Alive(segment), "x")
            self._log(life, lambda publisher: publisher.tick(self.now))

    def _log(self, life: Life, act: Any) -> list[m.Message]:
        act(life.publisher)
        return life.log()

    def published(self) -> list[int]:
        """The source numbers in epochs that no segment has aborted."""
        events = [event for life in self.lives.values() for event in life.events]
        aborted = {time for event in events if isinstance(event, m.Aborted) for time in event.times}
        batches = [event for event in events if isinstance(event, m.Data) and event.time not in aborted]
        return sorted(batch.meta.source for batch in batches if batch.meta and batch.meta.source is not None)


@dataclass
class Program:
    """Publishes 0, 1, 2, ... under one writer id, three at a time in an epoch, each at the segment that its key has."""

    segments: Segments
    session: int = 0
    next: int = 0
    highest: int = 0
    closing: bool = False
    """Whether it has published all, and closes; it is begun again until that is confirmed."""
    stuck: bool = False
    """Whether an append failed, or it was told that its numbers do not say any more what is published."""
    machine: WriterMachine = field(init=False)
    unsent: list[Send] = field(default_factory=list)
    reports: list[WriterReport] = field(default_factory=list)

    def begin(self) -> None:
        self.session += 1
        names = list(self.segments.lives)
        self.machine = WriterMachine("u", INT, names, "w", self.session, now=0.0, first=self.session == 1, sources=True)
        self.unsent.clear()
        for segment in names:
            self.machine.connected(segment)
        self.reports.clear()
        self.send()
        assert any(isinstance(report, SessionReady) for report in self.reports)
        try:
            self.next = self.machine.resume_from + 1
        except EpochAbortedError:
            self.stuck = True

    def send(self, most: int = 10**9) -> None:
        """Deliver what the machine wants sent, and what is answered, at most `most` messages; the rest stays unsent."""
        self.unsent += [effect for effect in self.machine.take() if isinstance(effect, Send)]
        while self.unsent and most:
            most -= 1
            segment, message = self.unsent.pop(0)
            for reply in self.segments.receive(segment, message):
                self.machine.receive(segment, reply)
            self.unsent += [effect for effect in self.machine.take() if isinstance(effect, Send)]
        reports = self.machine.reports()
        self.reports += reports
        self.stuck = self.stuck or any(isinstance(report, Failed) for report in reports)

    def publish(self, keys: list[int], count: int = 1) -> None:
        for _ in range(count):
            if self.closing and self.next == self.highest:
                return
            number = self.next
            segment = str(keys[number % len(keys)] % len(self.segments.lives))
            try:
                self.machine.appends.append(segment, number // 3, b"", 1, b"a", m.Meta(source=number), awaited=True)
            except (EpochAbortedError, UsageError):
                self.stuck = True
                return
            self.next += 1
            self.highest = max(self.highest, self.next)

    def close(self) -> None:
        self.closing = True
        if not self.machine.over and self.next == self.highest:
            with suppress(WriterClosed):  # it closes already
                self.machine.leave(m.Leaving.CLOSE)

    def advance(self) -> None:
        if self.closing:
            return
        (held,) = self.machine.held
        assert isinstance(held, int)
        self.machine.advance(max(held, self.next // 3))

    def cut(self, segment: str, *, arrived: bool) -> None:
        """The connection to a segment breaks; `arrived`: all that was sent came there, and its answers are lost."""
        if arrived:
            self.unsent += [effect for effect in self.machine.take() if isinstance(effect, Send)]
            for send in self.unsent:
                if send.segment == segment:
                    self.segments.receive(segment, send.message)
        self.unsent = [send for send in self.unsent if send.segment != segment]
        self.machine.disconnected(segment)

    def end(self, keys: list[int]) -> None:
        self.send()
        while self.next < self.highest and not self.stuck:
            self.publish(keys)
            self.send()
        if not self.stuck:
            self.close()
            self.send()
            assert self.machine.over or self.stuck


STEPS = st.one_of(
    st.tuples(st.just("publish"), st.integers(1, 5)),
    st.tuples(st.just("publish"), st.integers(1, 5)),
    st.sampled_from(["advance", "send", "begin", "begin"]),
    st.tuples(st.just("close"), st.integers(0, 6)),
    st.tuples(st.just("send"), st.integers(1, 6)),
    st.tuples(st.sampled_from(["restart", "roll", "cut", "unheard"]), st.integers(0, 1)),
    st.tuples(st.just("lose"), st.integers(0, 1)),
)


@pytest.mark.rule("E50", "E3", "E6", "E10")
@settings(max_examples=300)
@given(st.lists(STEPS, max_size=25), st.lists(st.integers(0, 1), min_size=1, max_size=5), st.booleans())
def test_each_item_is_published_once_or_the_program_gets_an_error(
    steps: list[Any], keys: list[int], ahead: bool
) -> None:
    """Whatever is restarted or lost: if an epoch with its items is aborted it hears of it, and nothing comes twice.

    None is aborted unless the program was away for longer than the time-out.
    """
    segments = Segments(2)
    program = Program(segments)
    away = False
    program.begin()
    if ahead:  # the other writer is
        segments.goes_on()
    for step in steps:
        if program.stuck:
            break
        match step:
            case ("publish", count):
                program.publish(keys, count)
            case "advance":
                program.advance()
            case ("close", most):
                program.close()
                program.send(most)
            case "send":
                program.send()
            case "begin":  # what it had not sent is lost with it
                program.begin()
            case ("send", most):
                program.send(most)
            case (("cut" | "unheard" | "restart") as how, at):
                program.cut(str(at), arrived=how != "cut")
                if how == "restart":
                    segments.lives[str(at)].restart()
                program.machine.connected(str(at))
            case ("roll", at):
                segments.lives[str(at)].roll()
            case ("lose", at):  # it was away for longer than the time-out, or could not reach this segment
                segments.lose(str(at))
                away = True
                program.begin()
    if not program.stuck:
        program.end(keys)
    if not program.stuck:
        program.begin()
    published = segments.published()
    assert away or not program.stuck
    if program.stuck:
        assert len(published) == len(set(published)), "nothing comes twice"
    else:
        assert published == list(range(program.highest)), "each once, and none is missing"


@pytest.mark.rule("E3", "E4", "E1")
@pytest.mark.parametrize("how", list(m.Leaving))
@pytest.mark.parametrize("then", ["", "restart", "roll, restart"])
def test_a_close_that_reached_only_one_segment_makes_no_epoch_incomplete(how: m.Leaving, then: str) -> None:
    """It was sent when all was acknowledged everywhere. After a leave by an exception the same epoch is aborted."""
    segments = Segments(2)
    program = Program(segments)
    program.begin()
    program.publish([1], 2)
    program.send()
    program.machine.leave(how)
    program.send(1)
    segments.goes_on()  # the frontier of the segment that it has left is past what it holds at the other
    for life in segments.lives.values():
        if "roll" in then:
            life.roll()
        if "restart" in then:
            life.restart()
    for _ in range(2):  # also when it is killed before anything of this is carried out
        program.session += 1
        program.machine = WriterMachine("u", INT, ["0", "1"], "w", program.session, now=0.0, first=False, sources=True)
        for segment in segments.lives:
            program.machine.connected(segment)
        for effect in program.machine.take():
            assert isinstance(effect, Send)
            for reply in segments.receive(effect.segment, effect.message):
                program.machine.receive(effect.segment, reply)
    (ask, *_) = [effect.message for effect in program.machine.take() if isinstance(effect, Send)]
    assert type(ask) is (m.Abort if how is m.Leaving.ABORT else m.Hold)
    program.send()
    program.begin()
    assert program.stuck is (how is m.Leaving.ABORT)
    assert segments.published() == ([] if program.stuck else [0, 1])


def append(life: Life, number: int, source: int, time: int = 3) -> Any:
    meta = m.Meta(source=source)
    (reply,) = life.ask(m.Append("0", number, time, b"", 1, CRCS[b"a"], b"a", meta))
    return reply


def opened(life: Life, session: int = 1) -> m.Opened:
    (answer,) = life.ask(m.Open(1, "u", "0", "w", session, None, None, sources=True))
    assert isinstance(answer, m.Opened)
    return answer


@pytest.mark.rule("E50")
@pytest.mark.parametrize("then", ["", "restart", "roll, restart"])
def test_what_is_not_above_the_highest_is_acknowledged_and_not_logged(then: str) -> None:
    life = Life()
    opened(life)
    assert append(life, 0, 5) == m.Ack("0", 0, 0, 1)
    assert append(life, 1, 7) == m.Ack("0", 1, 1, 1)
    assert append(life, 2, 6) == append(life, 3, 7)._replace(number=2) == m.Ack("0", 2, 1, 1)
    if "roll" in then:
        life.roll()
    if "restart" in then:
        life.restart()
    answer = opened(life, session=2)
    assert (answer.source, answer.whole, answer.number) == (7, -1, 3), "its number is used up"
    assert append(life, 3, 7) == m.Ack("0", 3, 1, 1), "sent again, because the answer was lost"
    assert append(life, 4, 7) == m.Ack("0", 4, 1, 1)
    assert append(life, 5, 8) == m.Ack("0", 5, 2, 1)
    assert [event.seq for event in life.events if isinstance(event, m.Data)] == [0, 1, 2]


@pytest.mark.rule("E50")
@pytest.mark.parametrize("roll", [False, True])
def test_source_numbers_are_read_from_the_log(roll: bool) -> None:
    life = Life()
    opened(life)
    append(life, 0, 5)
    append(life, 1, 7)
    if roll:
        life.roll()
    life.restart()
    assert opened(life, session=2).source == 7
    assert append(life, 2, 7) == m.Ack("0", 2, 1, 1)


@pytest.mark.rule("E50", "E49")
def test_another_append_under_an_old_number_is_refused_as_ever() -> None:
    life = Life()
    opened(life)
    append(life, 0, 5)
    append(life, 1, 6)
    reply = append(life, 1, 6, time=4)
    assert isinstance(reply, m.AppendRefused)
    assert reply.code == "repeat_differs"


@pytest.mark.rule("E50", "E2")
@pytest.mark.parametrize("then", ["", "restart", "roll, restart"])
@pytest.mark.parametrize("by", ["w", "x"])
def test_an_abort_of_an_epoch_with_source_numbers_is_remembered(then: str, by: str) -> None:
    life = Life()
    opened(life)
    append(life, 0, 5, time=3)
    append(life, 1, 6, time=4)
    life.ask(m.Open(1, "u", "0", "x", 1, None, None), "x")
    life.ask(m.Abort(2, "0", (4,)), by)
    if "roll" in then:
        life.roll()
    if "restart" in then:
        life.restart()
    answer = opened(life, session=2)
    assert (answer.source, answer.torn) == (6, True)


@pytest.mark.rule("E50", "E2")
def test_an_abort_of_what_has_no_source_number_or_was_left_says_nothing() -> None:
    life = Life()
    opened(life)
    append(life, 0, 5, time=3)
    life.ask(m.Append("0", 1, 4, b"", 1, CRCS[b"a"], b"a"))
    life.ask(m.Hold(2, "0", (4,)))
    life.ask(m.Open(1, "u", "0", "x", 1, None, None), "x")
    life.ask(m.Abort(3, "0", (4,)))
    assert opened(life, session=2).torn is False


@pytest.mark.rule("E50", "E3")
@pytest.mark.parametrize("roll", [False, True])
def test_after_a_refused_number_no_higher_one_of_the_session_is_logged(roll: bool) -> None:
    life = Life()
    opened(life)
    append(life, 0, 4)
    life.ask(m.Hold(2, "0", (3,)))
    assert append(life, 1, 5, time=2).code == "capability"
    assert append(life, 2, 6).code == "usage"
    if roll:
        life.roll()
    life.restart()
    life.ask(m.Open(1, "u", "0", "w", 1, None, m.Resume(0, (3,), (3,)), sources=True))
    assert append(life, 3, 6).code == "usage", "the same session"
    assert opened(life, session=2).source == 4
    assert isinstance(append(life, 4, 5), m.Ack)


@pytest.mark.rule("E50", "E1")
def test_a_move_says_up_to_which_number_all_is_published_everywhere() -> None:
    life = Life()
    opened(life)
    append(life, 0, 5)
    life.ask(m.Hold(2, "0", (4,), 9))
    for _ in range(2):
        answer = opened(life, session=2)
        assert (answer.source, answer.whole) == (9, 9)
        life.restart()
    opened(life, session=2)
    assert append(life, 1, 8, time=4) == m.Ack("0", 1, answer.at, 1)


@pytest.mark.rule("E50")
def test_a_writer_that_has_no_source_numbers_is_not_answered_any() -> None:
    life = Life()
    (answer,) = life.ask(m.Open(1, "u", "0", "w", 1, None, None))
    assert (answer.source, answer.whole, answer.torn) == (None, -1, False)  # type: ignore[union-attr]


def answers(**given: Any) -> m.Opened:
    return m.Opened(1, "0", 1, (0,), (0,), 0, given.pop("touched", ()), (), 1, True, **given)


@pytest.mark.rule("E50")
def test_where_a_source_goes_on() -> None:
    for answered, expected in (
        ([(4, -1), (2, -1)], 2),
        ([(4, 3), (3, 1)], 3),
        ([(9, 2), (2, 2)], 2),
        ([(-1, -1), (5, -1)], -1),
    ):
        numbers = SourceNumbers()
        numbers.begin(answers(source=source, whole=whole) for source, whole in answered)
        assert numbers.resume_from == expected


@pytest.mark.rule("E50", "E3")
def test_where_a_source_goes_on_is_not_known_when_an_epoch_of_it_was_aborted() -> None:
    for answered, given_up, told in (
        ([answers(source=9, torn=True), answers(source=8)], False, False),
        ([answers(source=9, whole=2), answers(source=8)], True, False),
        ([answers(source=-1), answers(source=-1)], True, True),
        ([answers(source=4, whole=4), answers(source=4)], True, True),
    ):
        numbers = SourceNumbers()
        numbers.begin(answered)
        if given_up:
            numbers.given_up()
        if told:
            assert numbers.resume_from == numbers.check(numbers.resume_from + 1) - 1
        else:
            with pytest.raises(EpochAbortedError, match="another writer_id"):
                _ = numbers.resume_from
            with pytest.raises(EpochAbortedError):
                numbers.check(10)


@pytest.mark.rule("E50")
def test_a_number_that_cannot_be_is_refused_before_anything_is_sent() -> None:
    numbers = SourceNumbers()
    with pytest.raises(UsageError, match="keeps no source numbers"):
        numbers.check(0)
    numbers.begin([answers(source=-1), answers()])
    with pytest.raises(UsageError, match="keeps no source numbers"):
        numbers.check(0)
    numbers.begin([answers(source=-1)])
    for wrong in (-1, 2**63, 1.5, True, "1"):
        with pytest.raises(UsageError, match="whole number"):
            numbers.check(wrong)
    numbers.appended(3, numbers.check(4))
    with pytest.raises(UsageError, match="4 comes after 4"):
        numbers.check(4)
    numbers.refused(4, EpochAbortedError("the hour is gone"))
    with pytest.raises(UsageError, match=r"source number 4 was refused \(the hour is gone\)"):
        numbers.check(5)


@pytest.mark.rule("E50")
def test_a_move_counts_only_what_it_leaves_and_once_it_is_confirmed() -> None:
    numbers = SourceNumbers()
    numbers.begin([answers(source=6, whole=4, touched=(3,))])
    numbers.appended(4, 7)
    numbers.appended(5, 8)
    numbers.appended(4, 9)
    for ticket in (3, 4, 5, 6):
        numbers.moves(ticket, Antichain([ticket]))
    assert numbers.whole == 4
    seen = []
    for ticket in (3, 4, 5, 6):
        numbers.confirmed(ticket)
        seen.append(numbers.whole)
    assert seen == [4, 6, 7, 9], "what an earlier session had begun is above 4"
    numbers.moves(7, Antichain([7]))
    numbers.cancelled([7])
    numbers.appended(7, 10)
    numbers.confirmed(7)
    assert numbers.whole == 9


@pytest.mark.rule("E50")
def test_what_a_segment_has_is_not_sent_again_whatever_its_time() -> None:
    machine = WriterMachine("u", INT, ["0"], "w", 2, now=0.0, first=False, sources=True)
    machine.connected("0")
    (ask,) = machine.take()
    assert isinstance(ask, Send)
    held = (5,)
    machine.receive("0", m.Opened(1, "0", 3, held, held, 7, (), (), 1 << 20, False, 9, 40, 4))
    assert machine.resume_from == 9
    machine.reports()
    ticket = machine.appends.append("0", 3, b"", 1, b"a", m.Meta(source=8), awaited=True)
    assert machine.reports() == [Acked(ticket, "0", m.Position(3, 40))]
    assert machine.take() == []
    machine.appends.append("0", 5, b"", 1, b"a", m.Meta(source=10))
    (sent,) = machine.take()
    assert isinstance(sent, Send)
    assert isinstance(sent.message, m.Append)


@pytest.mark.rule("E50")
def test_writers_without_numbers_push_none_out_that_has_some(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writer_state, "REMEMBERED_WRITERS", 3)
    life = Life()
    opened(life)
    append(life, 0, 5)
    life.ask(m.Leave(2, "0", m.Leaving.CLOSE))
    for number in range(8):
        life.open(f"a{number}")
        life.ask(m.Leave(2, "0", m.Leaving.CLOSE), f"a{number}")
    assert opened(life, session=2).source == 5
    assert sum(isinstance(event, m.Data) for event in life.events) == 1
    assert append(life, 1, 5) == m.Ack("0", 1, 0, 1), "a repeat"


@pytest.mark.rule("E50", "E6")
def test_a_writer_that_comes_and_goes_often_is_not_taken_for_one_that_left_long_ago(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(writer_state, "REMEMBERED_WRITERS", 3)
    life = Life()
    for session in range(1, 12):
        assert opened(life, session).source == session - 2
        append(life, session - 1, session - 1, time=0)
        life.ask(m.Leave(2, "0", m.Leaving.CLOSE))


@pytest.mark.rule("E50")
def test_who_writes_under_another_has_no_source_numbers() -> None:
    life = Life()
    life.open("query")
    life.ask(m.Open(1, "u", "0", "task", 1, "query", None, sources=True), "task")
    for number in range(2):
        life.ask(m.Append("0", number, 3, b"", 1, CRCS[b"a"], b"a", m.Meta(source=5)), "task")
    assert sum(isinstance(event, m.Data) for event in life.events) == 2


@pytest.mark.rule("E50", "E2")
def test_an_abort_of_its_own_ends_the_numbers_at_once() -> None:
    for aborted, ends in ((4, True), (9, False)):
        numbers = SourceNumbers()
        numbers.begin([answers(source=-1)])
        numbers.appended(4, 0)
        numbers.aborted([aborted])
        if ends:
            with pytest.raises(EpochAbortedError):
                numbers.check(1)
        else:
            assert numbers.check(1) == 1
