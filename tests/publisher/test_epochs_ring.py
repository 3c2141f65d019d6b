"""Readers of whole epochs at any speed, on rings that drop: each epoch once, whole, in an order that time allows.

Streams, subscriptions and cursors are those of the protocol's machines, wired together without a network.
"""

import importlib.util
import itertools
import random
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from epochal.protocol import messages as m
from epochal.protocol.messages import Position
from epochal.protocol.subscriber.cursor import Cursor
from epochal.protocol.subscriber.effects import EpochBatches
from epochal.protocol.subscriber.since import From
from epochal.protocol.times import join, less_than
from epochal.protocol.topics.filter import TopicFilter
from epochal_publisher.relay.epochs.reader import Reader, Step
from epochal_publisher.relay.epochs.ring import Ring, Rings


def load(path: Path, name: str) -> Any:
    """A module by its path: directories of tests are no packages."""
    if name not in sys.modules:
        spec = importlib.util.spec_from_file_location(name, path)
        assert spec is not None
        assert spec.loader is not None
        sys.modules[name] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(sys.modules[name])
    return sys.modules[name]


wire_up: Callable[..., Any] = load(Path(__file__).parents[1] / "protocol" / "conftest.py", "epochs_wiring").Wiring


def cursor(*frontier: Any, **more: Any) -> Cursor:
    return Cursor("uid", {"0": Position(1, 5)}, frontier, **more)


def ring_of(*outcomes: tuple[str, Cursor], start: Cursor, most: int = 2**20) -> tuple[Rings[str], Ring[str]]:
    rings = Rings[str](most)
    ring = rings.open(start)
    for outcome, after in outcomes:
        rings.append(ring, outcome, 1, after)
    return rings, ring


# ---- where a reader goes on ----


@pytest.mark.rule("F18")
def test_the_cursor_after_an_outcome_is_before_the_next() -> None:
    _, ring = ring_of(("four", cursor(5)), ("five", cursor(6)), start=cursor(4))
    for number, expected in ((4, ["four", "five"]), (5, ["five"]), (6, [])):
        reader = Reader(ring, cursor(number), cursor(number).to_json())
        found = []
        while reader.step() is Step.TAKE:
            found.append(reader.take())
        assert found == expected


def test_a_reader_goes_on_anywhere_between_two_outcomes() -> None:
    rings, ring = ring_of(("four", cursor(5)), start=cursor(4))
    ring.moved(cursor(9))
    rings.append(ring, "nine", 1, cursor(10))
    assert [ring.place(cursor(time)) for time in range(3, 12)] == [None, 0, 1, 1, 1, 1, 1, 2, None]


@pytest.mark.parametrize(
    ("reader", "why"),
    [
        (cursor(5, unreported_aborts=(7,)), "an abort is still to be reported to him"),
        (cursor(5, aborted=(7,)), "one was reported to him that the ring may report again"),
        (cursor(5, seen_from=(8,)), "he asked for what comes after 7 only, and the ring has what is before"),
        (cursor(5, topics=TopicFilter([b"a"])), "his epochs have other topics"),
        (cursor((5, 1), (4, 2)), "his frontier is another one"),
    ],
)
@pytest.mark.rule("E15", "E16", "E17")
def test_a_reader_who_lacks_something_else_does_not_go_on_in_the_ring(reader: Cursor, why: str) -> None:
    start = cursor((5, 1)) if reader.frontier[0] == (5, 1) else cursor(5)
    _, ring = ring_of(start=start)
    assert ring.place(reader) is None, why
    assert ring.place(start) == 0


@pytest.mark.rule("E15", "E17")
@pytest.mark.parametrize(
    ("ring_at", "reader_at"),
    [
        (cursor(5, seen_from=(8,)), cursor(5)),  # what the ring's subscription could not see whole, he can
        (cursor(5, aborted=(7,)), cursor(5)),  # the ring will not report an abort that he does not know
    ],
)
def test_a_ring_that_lacks_something_is_not_gone_on_in(ring_at: Cursor, reader_at: Cursor) -> None:
    _, ring = ring_of(start=ring_at)
    assert ring.place(reader_at) is None
    ring.moved(cursor(9))
    assert ring.place(cursor(7)) is None, "he could see 7 whole, and would have been told that it was aborted"
    assert ring.place(cursor(9)) == 0


@pytest.mark.rule("E17")
def test_what_the_ring_has_lost_a_reader_of_his_own_may_still_have() -> None:
    _, ring = ring_of(start=cursor(5))
    ring.moved(cursor(5, seen_from=(8,)))
    assert ring.place(cursor(5)) is None


@pytest.mark.rule("E17")
def test_an_abort_that_waits_to_be_handed_out_is_not_reported_twice_and_not_left_out() -> None:
    rings, ring = ring_of(start=cursor(5))
    ring.moved(cursor(9, unreported_aborts=(7,)))
    assert ring.place(cursor(9)) is None, "it was reported to him before"
    rings.append(ring, "7 aborted", 1, cursor(9))
    assert ring.place(cursor(5)) == ring.place(cursor(7)) == 0
    assert ring.place(cursor(9)) == 1


# ---- what is kept ----


def test_the_oldest_outcomes_of_all_rings_go_first_and_the_newest_stays() -> None:
    rings = Rings[str](9_000)
    one, other = rings.open(cursor(0)), rings.open(cursor(0))
    rings.append(one, "a", 1_000, cursor(1))
    rings.append(other, "b", 1_000, cursor(1))
    assert (one.first, other.first) == (0, 0)
    rings.append(other, "c", 1_000, cursor(2))
    assert (one.first, other.first, other[0]) == (1, 0, "b")
    rings.append(one, "large", 50_000, cursor(2))
    assert (one[1], 1 in one, 1 in other) == ("large", True, False)
    rings.close(one)
    assert rings.bytes == 0
    rings.append(other, "d", 10, cursor(3))
    assert 0 < rings.bytes < 9_000


def test_a_reader_whom_the_ring_has_left_behind_goes_on_from_his_cursor() -> None:
    rings, ring = ring_of(("four", cursor(5)), ("five", cursor(6)), start=cursor(4), most=6_000)
    reader = Reader(ring, cursor(4))
    assert (reader.step(), reader.take()) == (Step.TAKE, "four")
    rings.append(ring, "six", 1, cursor(7))
    rings.append(ring, "seven", 1, cursor(8))
    assert ring.first > 1
    assert (reader.step(), reader.since) == (Step.ALONE, cursor(5))
    assert not reader.at(cursor(5))
    reader.given(cursor(6))
    assert reader.at(cursor(7))
    assert (reader.step(), reader.take()) == (Step.TAKE, "seven")
    assert reader.step() is Step.WAIT


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
    """A reader: he takes now and then, disconnects, and comes back with the id of what he took last."""

    def __init__(self, wiring: Any, ring: Ring[Any], since: Cursor | From | None) -> None:
        self.wiring, self.ring = wiring, ring
        self.machine = Reader[Any](ring, since)
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
            case Step.TAKE:
                (item, after) = self.machine.take()
                self.given.append(item)
                self.id = after
                self.followed += 1
                return True
            case Step.ALONE:
                return self._alone()
            case _:
                return False

    def _alone(self) -> bool:
        since = self.machine.since
        if self.own is None:
            self.own = Own(self.wiring, From.START if isinstance(since, str) else since)
        found = self.own.fetch()
        if self.machine.at(self.own.machine.cursor()):
            self._leave()
            return self.once()
        if not found:
            return False
        self.given.append(self.own.take())
        self.alone += 1
        self.machine.given(self.own.machine.cursor())
        self.id = self.own.machine.cursor().to_json()
        return True

    def _leave(self) -> None:
        if self.own is not None:
            self.own.close()
            self.own = None

    def reconnect(self) -> None:
        """With the id of the last outcome, as a browser does."""
        self._leave()
        since = From(self.id) if self.id in list(From) else Cursor.from_json(self.id)
        self.machine = Reader(self.ring, since, self.id)


class World:
    """One stream with two segments, a ring that follows it, and its readers."""

    def __init__(self, shape: str, most: int) -> None:
        self.wiring = wire_up(shape, segments="01", min_writers=2)
        self.writers = [self.wiring.writer("w1"), self.wiring.writer("w2")]
        self.feed = Own(self.wiring, From.LIVE)
        self.rings = Rings[Any](most)
        self.ring = self.rings.open(self.feed.machine.cursor())
        self.webs: list[Web] = []

    def follow(self, most: int = 10**6) -> None:
        """The ring's subscription goes on by at most so many outcomes."""
        while most and self.feed.fetch():
            self.ring.moved(self.feed.machine.cursor())
            item = self.feed.take()
            after = self.feed.machine.cursor()
            self.rings.append(self.ring, (item, after.to_json()), 100, after)
            most -= 1
        if most:
            self.ring.moved(self.feed.machine.cursor())
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
    # another subscription from each one's beginning says what he should have been given
    oracles = [Own(story.wiring, web.begins) for web in story.webs]
    for writer in story.writers:
        writer.leave(m.Leaving.FINISH)
    story.follow()
    for web, oracle in zip(story.webs, oracles, strict=True):
        while web.once():
            pass
        assert web.machine.step() is Step.END
        wanted = []
        while oracle.fetch():
            wanted.append(oracle.take())
        assert sorted(web.given, key=repr) == sorted(wanted, key=repr)
        whole = [(time, payloads) for time, payloads in web.given if payloads is not None]
        assert all(sorted(story.expected[time]) == payloads for time, payloads in whole)
        order = [time for time, _ in whole]
        assert not any(less_than(after, time) for n, time in enumerate(order) for after in order[n:])
        assert story.aborted.isdisjoint(order)
