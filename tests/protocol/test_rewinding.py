"""A log that comes back shorter than what was told of it, as the policy `interval` allows: E10."""

import pytest

from epochal.errors import WriterLost
from epochal.protocol import messages as m
from epochal.protocol.publisher.journal import Restored, Restoring, encode_notes
from epochal.protocol.publisher.machine import SegmentPublisher
from epochal.protocol.subscriber.effects import Arrived, EpochWasAborted, RewoundTo
from epochal.protocol.writer.effects import Over


def on_disk(publisher: SegmentPublisher) -> Restored:
    """What a restart finds, had the disk got no further than this."""
    return Restoring.after(publisher.state(), encode_notes(publisher.checkpoint())).end()


@pytest.mark.rule("E10", "E17")
def test_readers_are_led_back_and_give_up_the_epochs_of_which_they_hold_what_is_lost(wire_up):
    wiring = wire_up(durable=True)
    writer, reader, events = wiring.writer(), wiring.reader(), wiring.reader()
    writer.append("0", 5, b"kept")
    writer.append("0", 6, b"kept too")
    disk = on_disk(wiring.publishers["0"])
    last = wiring.publishers["0"].seq
    writer.append("0", 6, b"lost")
    writer.append("0", 7, b"lost with it")
    writer.cut("0")
    wiring.start_publisher("0", 2, restored=disk, incarnations=[(1, 0), (2, last + 1)])
    reader.rejoin("0")
    events.rejoin("0")
    assert RewoundTo("0", 2, last) in events.events()
    assert reader.machine.position("0") == (2, last)
    writer.connect("0")
    with pytest.raises(Exception, match=r"epochs \[5, 6, 7\] are aborted"):
        writer.machine.raise_failure()
    writer.append("0", 8, b"after")
    writer.advance(9)
    assert reader.epochs() == [EpochWasAborted(5), EpochWasAborted(6), EpochWasAborted(7), (8, [b"after"])]


@pytest.mark.rule("E10")
def test_an_epoch_that_holds_nothing_of_what_is_lost_goes_on(wire_up):
    wiring = wire_up(durable=True)
    writer, reader = wiring.writer(), wiring.reader()
    writer.append("0", 5, b"kept")
    disk = on_disk(wiring.publishers["0"])
    last = wiring.publishers["0"].seq
    other = wiring.writer("other")
    other.append("0", 6, b"lost")
    other.cut("0")
    writer.cut("0")
    wiring.start_publisher("0", 2, restored=disk, incarnations=[(1, 0), (2, last + 1)])
    reader.rejoin("0")
    writer.connect("0")
    writer.append("0", 5, b"more")
    writer.advance(7)
    assert reader.epochs() == [(5, [b"kept", b"more"]), EpochWasAborted(6)]


@pytest.mark.rule("E10", "E16")
def test_a_position_is_good_in_every_later_incarnation_that_has_what_came_before_it(wire_up):
    wiring = wire_up(durable=True)
    writer, reader = wiring.writer(), wiring.reader()
    writer.append("0", 5, b"a")
    writer.cut("0")
    publisher = wiring.publishers["0"]
    wiring.start_publisher("0", 2, restored=on_disk(publisher), incarnations=[(1, 0), (2, publisher.seq + 1)])
    reader.rejoin("0")
    writer.connect("0")
    writer.append("0", 5, b"b")
    writer.advance(6)
    assert reader.machine.position("0").incarnation == 2
    assert reader.epochs() == [(5, [b"a", b"b"])]
    assert m.Position(1, 0) < reader.machine.position("0")


@pytest.mark.rule("E10", "Q10")
def test_a_new_incarnation_is_not_reported_before_events_of_the_old_one(wire_up):
    """They wait until every segment has begun; who was given nothing of the segment yet need not hear of its lives."""
    wiring = wire_up(segments="01", durable=True)
    writer, reader = wiring.writer(), wiring.reader(None)
    reader.join("0")
    writer.append("0", 5, b"a")
    writer.cut("0")
    publisher = wiring.publishers["0"]
    wiring.start_publisher("0", 2, restored=on_disk(publisher), incarnations=[(1, 0), (2, publisher.seq + 1)])
    reader.rejoin("0")
    reader.join("1")
    told = reader.events()
    assert [event.data.payload for event in told if isinstance(event, Arrived)] == [b"a"]
    assert not [event for event in told if isinstance(event, RewoundTo)]


@pytest.mark.rule("E10", "E11")
def test_a_publisher_that_lost_its_log_gives_up_the_writers_it_had(wire_up):
    """Others may have appended under this one: it must not go on as if all of it were there."""
    wiring = wire_up(durable=True)
    writer, reader = wiring.writer(), wiring.reader()
    writer.append("0", 5, b"lost")
    writer.cut("0")
    wiring.start_publisher("0", 2, lower=[0], known_writers=["w"])
    reader.rejoin("0")
    writer.connect("0")
    (over,) = writer.of(Over)
    assert isinstance(over.error, WriterLost)
    wiring.writer("w", session=2).advance(6)
    assert reader.epochs() == [EpochWasAborted(5)]
