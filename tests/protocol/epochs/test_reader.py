"""Readers of whole epochs at any speed, on rings that drop: each epoch once, whole, in an order that time allows.

Streams, subscriptions and cursors are those of the protocol's machines, wired together without a network.
"""

import itertools
import random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.protocol.conftest import Wiring
from tests.protocol.epochs.rings import cursor, ring_of

from epochal.protocol import messages as m
from epochal.protocol.epochs.reader import ReaderStep, RingReader
from epochal.protocol.epochs.ring import EpochRing, EpochRings
from epochal.protocol.subscriber.cursor import Cursor
from epochal.protocol.subscriber.effects import EpochBatches
from epochal.protocol.subscriber.since import From
from epochal.protocol.times import join, less_than


@pytest.mark.rule("F18")
def test_the_cursor_after_an_outcome_is_before_the_next() -> None:
    _, ring = ring_of(("four", cursor(5)), ("five", cursor(6)), start=cursor(4))
    for number, expected in ((4, ["four", "five"]), (5, ["five"]), (6, [])):
        reader = RingReader(ring, cursor(number), cursor(number).to_json())
        found = []
        while reader.step() is ReaderStep.TAKE:
            found.append(reader.take())
        assert found == expected


def looks(reader: RingReader[str], at: Cursor, *, gap: bool = False, item: bool = False) -> ReaderStep:
    return reader.look(at, gap=gap, item=item, complete=False)


def test_a_reader_that_the_ring_has_overtaken_continues_from_its_cursor() -> None:
    rings, ring = ring_of(("four", cursor(5)), ("five", cursor(6)), start=cursor(4), most=6_000)
    reader = RingReader(ring, cursor(4))
    assert (reader.step(), reader.take()) == (ReaderStep.TAKE, "four")
    rings.append(ring, "six", 1, cursor(7))
    rings.append(ring, "seven", 1, cursor(8))
    assert ring.first > 1
    assert (reader.step(), reader.since) == (ReaderStep.ALONE, cursor(5))
    assert looks(reader, cursor(5)) is ReaderStep.WAIT
    assert looks(reader, cursor(5), item=True) is ReaderStep.TAKE
    reader.took(cursor(6))
    assert looks(reader, cursor(7)) is ReaderStep.FOLLOW
    assert (reader.step(), reader.take()) == (ReaderStep.TAKE, "seven")
    assert reader.step() is ReaderStep.WAIT


@pytest.mark.rule("S24")
def test_a_reader_is_overtaken_when_the_ring_drops_the_outcome_that_it_took_last() -> None:
    rings, ring = ring_of(("four", cursor(5)), ("five", cursor(6)), start=cursor(4), most=7_000)
    reader = RingReader(ring, cursor(4))
    assert (reader.step(), reader.take(), reader.overtaken) == (ReaderStep.TAKE, "four", False)
    rings.append(ring, "six", 1, cursor(7))
    assert (ring.first, reader.overtaken) == (1, True), "what it is being sent is not in the ring any more"
    assert (reader.step(), reader.take(), reader.overtaken) == (ReaderStep.TAKE, "five", False)


@pytest.mark.rule("E17")
def test_a_gap_of_its_own_is_reported_before_a_reader_follows_the_ring() -> None:
    _, ring = ring_of(("four hundred", cursor(401)), start=cursor(400))
    reader = RingReader(ring, cursor(128))
    assert (reader.step(), reader.alone) == (ReaderStep.ALONE, True)
    assert looks(reader, cursor(400), gap=True, item=True) is ReaderStep.GAP
    assert reader.since == cursor(128), "one that is lost here finds the gap again"
    assert looks(reader, cursor(400), item=True) is ReaderStep.FOLLOW
    assert (reader.step(), reader.take()) == (ReaderStep.TAKE, "four hundred")


@pytest.mark.rule("E17", "F18")
def test_a_reader_that_stops_before_the_notice_of_a_gap_is_not_past_the_gap() -> None:
    rings, ring = ring_of(("four", cursor(5)), start=cursor(4))
    rings.move(ring, cursor(6))
    rings.move(ring, cursor(9, seen_from=(9,)), [("a gap", 10), ("another", 10)])
    reader = RingReader(ring, cursor(4))
    assert (reader.step(), reader.take()) == (ReaderStep.TAKE, "four")
    for notice in ("a gap", "another"):
        assert reader.since == cursor(6), "one that is lost here finds the gap again"
        again = RingReader(ring, reader.since, cursor(6).to_json())
        assert (again.step(), again.take()) == (ReaderStep.TAKE, "a gap")
        assert (reader.step(), reader.take()) == (ReaderStep.TAKE, notice)
    assert reader.since == cursor(9, seen_from=(9,))
    assert reader.step() is ReaderStep.WAIT


@pytest.mark.rule("E17")
def test_a_reader_that_the_ring_overtakes_at_a_gap_finds_the_gap_by_itself() -> None:
    rings, ring = ring_of(("four", cursor(5)), start=cursor(4), most=7_000)
    after = cursor(9, seen_from=(9,))
    reader = RingReader(ring, cursor(4))
    rings.move(ring, after, [("a gap", 10)])
    assert (reader.step(), reader.take()) == (ReaderStep.TAKE, "four")
    rings.append(ring, "nine", 10, cursor(10))
    rings.append(ring, "ten", 10, cursor(11))
    assert 1 not in ring, "the ring has dropped the notice"
    assert (reader.step(), reader.since) == (ReaderStep.ALONE, cursor(5))
    assert looks(reader, after, gap=True) is ReaderStep.GAP


def test_a_reader_ends_with_its_own_subscription_or_with_the_ring() -> None:
    rings, ring = ring_of(("four", cursor(5)), start=cursor(4))
    alone, follower = RingReader(ring, cursor(2)), RingReader(ring, None)
    assert alone.look(cursor(3), gap=False, item=False, complete=True) is ReaderStep.END
    assert follower.step() is ReaderStep.WAIT
    rings.move(ring, cursor(7))
    ring.complete = True
    assert (follower.step(), follower.since) == (ReaderStep.END, cursor(7))


# ---- all together ----


class Own:
    """A subscription of the protocol's machines, from `since` on."""

    def __init__(self, wiring: Any, since: Cursor | From, **options: Any) -> None:
        self.wiring = wiring
        if isinstance(since, Cursor):
            self.reader = wiring.reader(cursor=since, **options)
        else:
            self.reader = wiring.reader(since, **options)
        self.machine = self.reader.machine
        self._hand: Any = None

    def fetch(self) -> bool:
        """Whether there is something to hand out; the cursor is before it until `take`."""
        self._hand = self._hand or self.machine.hand_out_epoch()
        return self._hand is not None

    def take(self) -> Any:
        item, self._hand = self._hand, None
        self.machine.pass_epoch(item)
        if isinstance(item, EpochBatches):
            return (item.time, sorted(data.payload for _, data in item.batches))
        return (item.time, None)

    def close(self) -> None:
        self.wiring.readers.remove(self.reader)


class Web:
    """A reader: it takes now and then, disconnects, and comes back with the id of the outcome that it took last."""

    def __init__(self, wiring: Any, ring: EpochRing[Any], since: Cursor | From | None) -> None:
        self.wiring, self.ring = wiring, ring
        self.machine = RingReader[Any](ring, since)
        self.own: Own | None = None
        self.id = (
            ring.newest.cursor.to_json() if since is None else since if isinstance(since, From) else since.to_json()
        )
        self.begins = since if since is not None else ring.newest.cursor
        self.given: list[Any] = []
        self.alone = self.followed = 0

    def once(self) -> bool:
        """Take one outcome, if there is one."""
        match self.machine.step():
            case ReaderStep.TAKE:
                (item, after) = self.machine.take()
                self.given.append(item)
                self.id = after
                self.followed += 1
                return True
            case ReaderStep.ALONE:
                return self._alone()
            case _:
                return False

    def _alone(self) -> bool:
        since = self.machine.since
        if self.own is None:
            self.own = Own(self.wiring, From.START if isinstance(since, str) else since)
        found = self.own.fetch()
        at, complete = self.own.machine.cursor(), self.own.machine.complete
        match self.machine.look(at, gap=False, item=found, complete=complete):
            case ReaderStep.FOLLOW:
                self._leave()
                return self.once()
            case ReaderStep.TAKE:
                self.given.append(self.own.take())
                self.alone += 1
                self.machine.took(self.own.machine.cursor())
                self.id = self.own.machine.cursor().to_json()
                return True
            case _:
                return False

    def _leave(self) -> None:
        if self.own is not None:
            self.own.close()
            self.own = None

    def reconnect(self) -> None:
        """With the id of the last outcome, as a browser does."""
        self._leave()
        since = From(self.id) if self.id in list(From) else Cursor.from_json(self.id)
        self.machine = RingReader(self.ring, since, self.id)


class World:
    """One stream with two segments, a ring that follows it, and its readers."""

    def __init__(self, shape: str, most: int) -> None:
        self.wiring = Wiring(shape, segments="01", min_writers=2)
        self.writers = [self.wiring.writer("w1"), self.wiring.writer("w2")]
        self.feed = Own(self.wiring, From.LIVE)
        self.rings = EpochRings[Any](most)
        self.ring = self.rings.open(self.feed.machine.cursor())
        self.webs: list[Web] = []

    def follow(self, most: int = 10**6) -> None:
        """The ring's subscription goes on by at most so many outcomes."""
        while most and self.feed.fetch():
            self.rings.move(self.ring, self.feed.machine.cursor())
            item = self.feed.take()
            after = self.feed.machine.cursor()
            self.rings.append(self.ring, (item, after.to_json()), 100, after)
            most -= 1
        if most:
            self.rings.move(self.ring, self.feed.machine.cursor())
            self.ring.complete = self.feed.machine.complete


ACTS = {
    "append": 6, "advance": 2, "advance both": 4, "abort": 1, "follow": 2, "follow one": 3, "read": 8, "read all": 1,
    "reconnect": 2, "come now": 1, "come at start": 1, "come late": 1,
}  # fmt: skip


class Story(World):
    """What happens by chance to one stream and to those who read it."""

    def __init__(self, seed: int, shape: str, most: int) -> None:
        super().__init__(shape, most)
        self.chance = random.Random(seed)
        self.pair = shape != "int"
        self.lows: list[Any] = [(0, 0) if self.pair else 0] * 2
        self.expected: dict[Any, list[bytes]] = {}
        self.aborted: set[Any] = set()
        self.numbers = itertools.count()

    def later(self, low: Any, by: int) -> Any:
        steps = [self.chance.randint(0, by) for _ in "ab"]
        return (low[0] + steps[0], low[1] + steps[1]) if self.pair else low + steps[0]

    def advance(self, which: int, low: Any) -> None:
        self.lows[which] = low
        self.writers[which].advance(low)

    def act(self) -> None:
        which = self.chance.randint(0, 1)
        act = self.chance.choices([*ACTS], [*ACTS.values()])[0]
        match act:
            case "append":
                time, payload = self.later(self.lows[which], 2), b"%03d" % next(self.numbers)
                if time not in self.aborted:
                    self.writers[which].append(self.chance.choice("01"), time, payload)
                    self.expected.setdefault(time, []).append(payload)
            case "advance":
                self.advance(which, self.later(self.lows[which], 1))
            case "advance both":
                joined = join(*self.lows)
                later = self.later(joined, 1)
                self.advance(0, later)
                self.advance(1, later)
            case "abort":
                self.writers[which].machine.abort(self.lows[which])
                self.wiring.run()
                self.aborted.add(self.lows[which])
            case "follow":
                self.follow()
            case "follow one":
                self.follow(1)
            case "come now":
                self.webs.append(Web(self.wiring, self.ring, None))
            case "come at start":
                self.webs.append(Web(self.wiring, self.ring, From.START))
            case _ if self.webs:
                self.read(act, self.chance.choice(self.webs))

    def read(self, act: str, web: Web) -> None:
        match act:
            case "read":
                web.once()
            case "read all":
                while web.once():
                    pass
            case "reconnect":
                web.reconnect()
            case "come late" if web.id not in list(From):
                self.webs.append(Web(self.wiring, self.ring, Cursor.from_json(web.id)))


@pytest.mark.rule("F18", "E15", "E16", "E17", "E18")
@settings(max_examples=60, deadline=None)
@given(
    st.integers(0, 2**32), st.sampled_from(["int", "(int, int)"]), st.sampled_from([0, 12_000, 10**9]),
    st.integers(10, 100),
)  # fmt: skip
def test_each_reader_is_given_each_epoch_once_and_whole_in_an_order_that_time_allows(
    seed: int, shape: str, most: int, acts: int
) -> None:
    story = Story(seed, shape, most)
    for _ in range(acts):
        story.act()
    # another subscription from the beginning of each reader says what that should have been given
    oracles = [Own(story.wiring, web.begins) for web in story.webs]
    for writer in story.writers:
        writer.leave(m.Leaving.FINISH)
    story.follow()
    for web, oracle in zip(story.webs, oracles, strict=True):
        while web.once():
            pass
        assert web.machine.step() is ReaderStep.END
        wanted = []
        while oracle.fetch():
            wanted.append(oracle.take())
        assert sorted(web.given, key=repr) == sorted(wanted, key=repr)
        whole = [(time, payloads) for time, payloads in web.given if payloads is not None]
        assert all(sorted(story.expected[time]) == payloads for time, payloads in whole)
        order = [time for time, _ in whole]
        assert not any(less_than(after, time) for n, time in enumerate(order) for after in order[n:])
        assert story.aborted.isdisjoint(order)
