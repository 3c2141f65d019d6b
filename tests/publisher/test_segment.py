"""A segment as a process begins to serve it: what was declared and granted is what its machines go by."""

from typing import Any

import google_crc32c
import pytest

from epochal.catalog_api.answers import SegmentGrant, SegmentInfo, StreamInfo
from epochal.protocol import messages as m
from epochal.protocol.publisher.effects import AskRecord, Push, Reply, ReportFinishing, SendAnswers
from epochal.protocol.publisher.views import ViewMemory
from epochal_publisher.segments.segment import HostedSegment
from epochal_publisher.settings import Settings

SETTINGS = Settings.read(catalog="http://127.0.0.1:9", stream="test/s", segments="0", publisher="p", stall=1000.0)


def served(
    *,
    incarnation: int = 1,
    lower: Any = None,
    writers: Any = (),
    finishing: bool = False,
    sessions: Any = (),
    horizon: Any = (),
    marks: Any = (),
    settings: Settings = SETTINGS,
    **spec: Any,
) -> HostedSegment:
    manifest = {
        "apiVersion": "epochal.dev/v1alpha1",
        "kind": "Stream",
        "metadata": {"name": "s", "namespace": "test"},
        "spec": {"time": {"shape": "int"}, "payload": {"encoding": "bytes"}, **spec},
    }
    segment = SegmentInfo("0", 0, 2**64, "open", incarnation, lower, finishing=finishing)
    stream = StreamInfo("test", "s", "u", 1, "Ready", manifest, segments=(segment,))
    grant = SegmentGrant("0", incarnation, 0, 2**64, lower, horizon, marks, writers)
    return HostedSegment.start(stream, grant, dict(sessions), settings, None, ViewMemory(), 0.0)


def opened(at: HostedSegment, writer: str, now: float = 0.0) -> list[Any]:
    """What an open of a writer's first session leads to."""
    at.publisher.receive(writer.encode(), m.Open(1, "u", "0", writer, 1, None, None), now)
    return at.publisher.take()


def advanced(at: HostedSegment, writer: str, time: int) -> list[Any]:
    """The events that an advance of a writer leads to, once the catalog has stored what is reported."""
    at.publisher.receive(writer.encode(), m.Hold(2, "0", (time,)), 0.0)
    number = at.report(0.0).number
    assert number is not None
    at.publisher.recorded(number, 0.0)
    return [effect.message for effect in at.publisher.take() if isinstance(effect, Push)]


def appended(at: HostedSegment, writer: str, time: int) -> list[Any]:
    """What a writer's first append leads to."""
    append = m.Append("0", 0, time, b"", 1, google_crc32c.value(b"x"), b"x")
    at.publisher.receive(writer.encode(), append, 0.0)
    return at.publisher.take()


@pytest.mark.rule("E5")
def test_nothing_completes_before_as_many_writers_as_were_declared_have_come() -> None:
    at = served(progress={"minWriters": 2})
    opened(at, "a")
    assert advanced(at, "a", 5) == []
    opened(at, "b")
    (moved,) = advanced(at, "b", 3)
    assert set(moved.changes) == {(0, -1), (3, 1)}


@pytest.mark.rule("E3")
def test_a_writer_is_given_up_after_the_time_that_was_declared_and_no_sooner() -> None:
    at = served(progress={"writerTimeout": "77s"})
    opened(at, "a")
    at.tick(76.0)
    assert at.publisher.writers == ["a"]
    at.tick(78.0)
    assert at.publisher.writers == []
    (lost,) = [effect.message for effect in at.publisher.take() if isinstance(effect, Reply)]
    assert isinstance(lost, m.Lost)


@pytest.mark.rule("E7")
def test_who_opens_at_a_segment_that_was_finishing_waits_until_the_catalog_has_said_that_it_is_not() -> None:
    effects = opened(served(incarnation=2, lower=(7,), finishing=True), "a")
    assert [type(effect) for effect in effects] == [ReportFinishing]
    effects = opened(served(incarnation=2, lower=(7,)), "a")
    assert [type(effect) for effect in effects] == [Reply]


@pytest.mark.rule("E26", "E12")
def test_each_incarnation_pushes_on_a_channel_of_its_own() -> None:
    channels = [served(incarnation=number, lower=(0,)).server.channels.everything.token for number in (1, 1, 2, 3)]
    assert len(set(channels)) == len(channels), "also where two processes take themselves for one incarnation"


@pytest.mark.rule("E11")
def test_a_report_names_the_writers_that_a_next_incarnation_waits_for() -> None:
    at = served(incarnation=2, lower=(7,), writers=("b",))
    opened(at, "a")
    assert list(at.report(0.0).writers or ()) == ["a", "b"]


@pytest.mark.rule("E11")
def test_a_report_is_a_record_of_what_may_become_active_and_says_whether_it_is_the_last() -> None:
    at = served(progress={"minWriters": 2}, incarnation=2, lower=(3,))
    opened(at, "a")
    assert AskRecord() in appended(at, "a", 5)
    report = at.report(0.0)
    assert (report.number, report.lower, report.horizon, report.final) == (0, [3], [5], False)
    at.publisher.drain()
    last = at.report(0.0, final=True)
    assert (last.number, last.lower, last.horizon, last.final) == (1, [3], [], True)


@pytest.mark.rule("E5", "E47")
def test_a_report_has_the_marks_that_the_next_incarnation_is_granted() -> None:
    at = served(progress={"minWriters": 2}, marks=("finished", "opened:a"))
    assert at.report(0.0).marks == ["finished", "opened:a"]
    opened(at, "b")
    assert at.report(0.0).marks == ["finished", "enough"]


@pytest.mark.rule("E11")
def test_what_may_have_been_active_in_the_last_incarnation_is_aborted_and_reported() -> None:
    at = served(incarnation=2, lower=(3,), horizon=(5,))
    opened(at, "a")
    (refused,) = [effect.message for effect in appended(at, "a", 5) if isinstance(effect, Reply)]
    assert isinstance(refused, m.AppendRefused)
    assert (refused.code, at.report(0.0).below) == ("epoch_aborted", [5])


@pytest.mark.rule("E6", "E11")
def test_a_session_older_than_the_newest_that_the_catalog_gave_out_is_not_admitted() -> None:
    (refused,) = opened(served(incarnation=2, lower=(3,), sessions={"a": 2}), "a")
    assert refused.message.code == "writer_fenced"


@pytest.mark.rule("E46")
def test_a_lost_writer_is_held_for_where_that_was_declared() -> None:
    at = served(progress={"writerTimeout": "77s", "whenLost": "hold"})
    opened(at, "a")
    for now in (76.0, 78.0):
        at.tick(now)
    assert at.publisher.writers == ["a"]


def joined(at: HostedSegment, number: int, topics: m.Prefixes | None) -> None:
    """A subscriber of these topics, None for all."""
    nonce = number.to_bytes(16, "big")
    at.server.receive(b"s%d" % number, m.Hello(1, (1,), "u", "0", nonce, topics), 0.0)
    (answer,) = [effect for effect in at.publisher.take() if isinstance(effect, SendAnswers)]
    (welcome,) = answer.messages
    assert isinstance(welcome, m.Welcome)
    at.channels.hears(welcome.channel, True)
    at.server.subscribed(nonce, 0.0)


def shown(at: HostedSegment, now: float, most: int = 64) -> list[tuple[Any, ...]]:
    channels = at.report(now, most_channels=most).channels
    return [(each.filter, each.subscribers, each.share, each.coarse) for each in channels]


@pytest.mark.rule("F12")
def test_a_report_has_the_channels_with_subscribers_first_those_that_carry_most() -> None:
    at = served(settings=SETTINGS.model_copy(update={"max_channels": 3}))
    assert shown(at, 0.0) == []
    joined(at, 1, ((b"a",), (b"ab",)))
    joined(at, 2, ((b"b",), ()))
    joined(at, 3, ((b"bb",), ()))  # there is no channel left for it
    for seq, topic in enumerate((b"a", b"b", b"b", b"c")):
        at.channels.push(m.Data(seq, seq - 1, 0, topic, 1, 0, bytes(100)))
    assert shown(at, 0.5) == [], "a report is good for a second"
    assert shown(at, 1.0) == [("b", 2, 0.5, 1), ("a -ab", 1, 0.25, 0)]
    assert shown(at, 2.0, most=1) == [("b", 2, 0.5, 1)]
    counters = at.report(2.0).counters
    assert (counters["channels"], counters["coarse"]) == (3, 1)


def test_a_filter_is_cut_in_a_report() -> None:
    at = served()
    joined(at, 1, (tuple(b"%04d" % number for number in range(256)), ()))
    ((text, *_),) = shown(at, 0.0)
    assert (len(text), text[:9], text[-3:]) == (60, "0000 0001", "...")
