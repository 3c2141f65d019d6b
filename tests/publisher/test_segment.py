"""A segment as a process begins to serve it: what was declared and granted is what its machines go by."""

from typing import Any

import pytest

from epochal.client.catalog_types import SegmentGrant, SegmentInfo, StreamInfo
from epochal.protocol import messages as m
from epochal.protocol.effects import Push, Reply, ReportFinishing
from epochal_publisher.segment import Served
from epochal_publisher.settings import Settings

SETTINGS = Settings.read(catalog="http://127.0.0.1:9", stream="test/s", segments="0", publisher="p", stall=1000.0)


def served(
    *, incarnation: int = 1, lower: Any = None, writers: Any = (), finishing: bool = False, **spec: Any
) -> Served:
    manifest = {
        "apiVersion": "epochal.dev/v1alpha1",
        "kind": "Stream",
        "metadata": {"name": "s", "namespace": "test"},
        "spec": {"time": {"shape": "int"}, "payload": {"encoding": "bytes"}, **spec},
    }
    segment = SegmentInfo("0", 0, 2**64, "open", incarnation, lower, finishing, None, {})
    stream = StreamInfo("test", "s", "u", 1, "Ready", manifest, (segment,), (), "")
    grant = SegmentGrant("0", incarnation, 0, 2**64, lower, writers, False, horizon=())
    return Served.start(stream, grant, {}, SETTINGS, None, 0.0)


def opened(at: Served, writer: str, now: float = 0.0) -> list[Any]:
    """What an open of a writer's first session leads to."""
    at.publisher.receive(writer.encode(), m.Open(1, "u", "0", writer, 1, None, None), now)
    return at.publisher.take()


def advanced(at: Served, writer: str, time: int) -> list[Any]:
    """The events that an advance of a writer leads to."""
    at.publisher.receive(writer.encode(), m.Hold(2, "0", (time,)), 0.0)
    return [effect.message for effect in at.publisher.take() if isinstance(effect, Push)]


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
    channels = [served(incarnation=number, lower=(0,)).server.channel for number in (1, 1, 2, 3)]
    assert len(set(channels)) == len(channels), "also where two processes take themselves for one incarnation"


@pytest.mark.rule("E11")
def test_a_report_names_the_writers_that_a_next_incarnation_waits_for() -> None:
    at = served(incarnation=2, lower=(7,), writers=("b",))
    opened(at, "a")
    assert at.report(0.0).writers == ["a", "b"]
