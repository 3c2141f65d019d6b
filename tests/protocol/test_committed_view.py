"""What readers see of a publisher that is ahead of its disk."""

from typing import Any

import google_crc32c
import pytest

from epochal.protocol import messages as m
from epochal.protocol.publisher.channels import Channels
from epochal.protocol.publisher.committed_view import CommittedView
from epochal.protocol.publisher.effects import Private, Push, SendAnswers
from epochal.protocol.publisher.journal import Restoring, encode_notes
from epochal.protocol.publisher.limits import PublisherSettings
from epochal.protocol.publisher.machine import SegmentPublisher
from epochal.protocol.publisher.server import SegmentServer, ServingSettings
from epochal.protocol.times import TimeShape

NONCE = bytes(16)


def ahead(told: int = 1, **settings: Any) -> tuple[SegmentPublisher, CommittedView, SegmentServer]:
    """A publisher with four events at time 0 and one at 3, of which only those up to `told` are on disk."""
    publisher = SegmentPublisher(
        "uid", "0", PublisherSettings(TimeShape.parse("int"), durable=True, **settings), incarnation=1, now=0.0
    )
    view = CommittedView(publisher, -1)
    publisher.receive(b"w", m.Open(1, "uid", "0", "w", 1, None, None), 0.0)
    for number, time in enumerate((0, 0, 0, 0, 3)):
        payload = b"%1000d" % number
        publisher.receive(b"w", m.Append("0", number, time, b"", 1, google_crc32c.value(payload), payload), 0.0)
    view.seq = told
    return publisher, view, SegmentServer(view, Channels(lambda: b"channel0"), ServingSettings(), 0.0)


@pytest.mark.rule("E9", "E14")
def test_a_snapshot_is_of_the_last_published_event_and_waits_for_nothing() -> None:
    publisher, view, server = ahead()
    server.receive(b"p", m.Hello(1, (1,), "uid", "0", NONCE), 0.0)
    server.subscribed(NONCE, 0.0)
    server.tick(2.0)
    welcome, snapshot, beat = view.take()
    assert isinstance(welcome, SendAnswers)
    assert [message.seq for message in welcome.messages if isinstance(message, m.Welcome)] == [1]
    assert snapshot == Private(NONCE, m.Snapshot(1, 1, NONCE, (0,), (0,), ()))
    assert beat == Push(m.Heartbeat(1))
    assert not [effect for effect in publisher.take() if isinstance(effect, SendAnswers | Private)]


@pytest.mark.rule("E9", "Q2")
def test_history_ends_where_the_disk_does() -> None:
    _, view, server = ahead()
    server.receive(b"p", m.Since(1, "0", None, 8), 0.0)
    (opening,), (chunk, *events) = [effect.messages for effect in view.take() if isinstance(effect, SendAnswers)]
    assert opening.position == (1, -1)  # type: ignore[union-attr]
    assert chunk == m.Chunk(1, 2, True)
    assert [event.seq for event in events] == [0, 1]  # type: ignore[union-attr]
    server.receive(b"p", m.Since(2, "0", m.Position(1, 4), 8), 0.0)
    (refused,) = [effect.messages[0] for effect in view.take() if isinstance(effect, SendAnswers)]
    assert isinstance(refused, m.Refused), "nobody can know of event 4 yet"


@pytest.mark.rule("E9", "E20")
def test_what_is_passed_over_for_a_wanted_time_ends_where_the_disk_does() -> None:
    _, view, server = ahead()
    server.receive(b"p", m.Since(1, "0", None, 8, (3,)), 0.0)
    (opening,), chunk = [effect.messages for effect in view.take() if isinstance(effect, SendAnswers)]
    assert opening.position == (1, 1), "events 2 and 3 are not wanted either, and not told"  # type: ignore[union-attr]
    assert chunk == (m.Chunk(1, 0, True),)


def test_what_is_on_no_disk_yet_stays_in_memory_whatever_its_bounds() -> None:
    publisher, view, _ = ahead(memory_bytes=1000)
    publisher.tick(0.5)
    assert publisher.history.truncated_at == 1
    assert [event.seq for event in publisher.history.since(1)] == [2, 3, 4]
    view.seq = 4
    publisher.tick(0.6)
    assert publisher.history.truncated_at == 4, "and no longer than that"


@pytest.mark.rule("E9", "E14")
def test_a_restarted_publisher_without_room_for_history_keeps_what_it_logs_first_until_the_disk_has_it() -> None:
    settings = PublisherSettings(TimeShape.parse("int"), durable=True, retention_bytes=0)
    first = SegmentPublisher("uid", "0", settings, incarnation=1, now=0.0)
    restored = Restoring.after(first.state(), encode_notes(first.checkpoint())).end()
    again = SegmentPublisher("uid", "0", settings, incarnation=2, now=0.0, restored=restored, complete=True)
    view = CommittedView(again, restored.state.seq)
    assert again.seq == 0, "it has logged that the stream is complete"
    assert view.state() == restored.state
