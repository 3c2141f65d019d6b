"""The sidecar's decisions over any order of what can happen: one writer a connection, nothing counted twice."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from epochal.protocol import messages as m
from epochal_publisher.sidecar.lanes import MOST_ADDRESSES, Close, Connect, Lanes, Limits, SendToWriter

LIMITS = Limits(held=1000, held_each=400, lanes=3, silence=50.0, warm=20.0, warm_most=2)
PEERS, ADDRESSES = [b"a", b"b", b"c", b"d", b"e"], ["tcp://one:1", "tcp://two:1"]
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("pass"), st.sampled_from(PEERS), st.sampled_from([*ADDRESSES, "tcp://strange:1"])),
        st.tuples(st.just("send"), st.sampled_from(PEERS), st.integers(1, 200)),
        st.tuples(st.just("take"), st.sampled_from(PEERS), st.none()),
        st.tuples(st.just("free"), st.sampled_from(PEERS), st.none()),
        st.tuples(st.just("gone"), st.sampled_from(PEERS), st.none()),
        st.tuples(st.just("lost"), st.integers(0, 6), st.none()),
        st.tuples(st.just("time"), st.floats(1, 60), st.none()),
        st.tuples(st.just("drain"), st.none(), st.none()),
    ),
    max_size=40,
)


class World:
    """Carries out what the lanes decide, and keeps its own account of it."""

    def __init__(self) -> None:
        self.lanes = Lanes("me", LIMITS)
        self.lanes.know(ADDRESSES)
        self.now = 0.0
        self.address: dict[int, str] = {}
        self.serves: dict[int, bytes] = {}
        self.waiting: dict[int, list[int]] = {}
        self.clean: set[int] = set()
        """Connections whose last writer left with all its answers."""
        self.told: list[tuple[bytes, m.Message]] = []

    def do(self) -> None:
        for effect in self.lanes.take():
            match effect:
                case Connect():
                    assert effect.number not in self.address
                    self.address[effect.number] = effect.address
                case Close():
                    del self.address[effect.number]
                    self.serves.pop(effect.number, None)
                    self.waiting.pop(effect.number, None)
                    self.clean.discard(effect.number)
                case SendToWriter():
                    self.told.append((effect.peer, effect.message))

    def connection(self, peer: bytes) -> int | None:
        return next((number for number, known in self.serves.items() if known == peer), None)

    def step(self, what: str, who: object, more: object) -> None:
        lanes, now = self.lanes, self.now
        if what == "pass":
            self.passes(who, more)  # type: ignore[arg-type]
        elif what == "send":
            assert isinstance(who, bytes)
            connection = lanes.came(who, now)
            assert connection == self.connection(who)
            if connection is not None:
                assert isinstance(more, int)
                self.waiting.setdefault(connection, []).append(more)
                lanes.waits_for(connection, more)
        elif what == "take":
            assert isinstance(who, bytes)
            connection = self.connection(who)
            if connection is not None and self.waiting.get(connection):
                lanes.taken(connection, self.waiting[connection].pop(0))
        elif what == "free":
            assert isinstance(who, bytes)
            connection = self.connection(who)
            lanes.freed(who, now)
            if connection is not None:
                del self.serves[connection]
                if not self.waiting.get(connection):
                    self.clean.add(connection)
        elif what == "gone":
            assert isinstance(who, bytes)
            lanes.gone(who)
        elif what == "lost":
            assert isinstance(who, int)
            lanes.lost(who)
        elif what == "time":
            assert isinstance(who, float)
            self.now += who
            lanes.tick(self.now)
        else:
            lanes.drain()
        self.do()

    def passes(self, peer: bytes, address: str) -> None:
        before = self.connection(peer), len(self.serves)
        self.lanes.passes(peer, m.Pass(1, "me", address), self.now)
        self.do()
        number = self.lanes.came(peer, self.now)
        if before[0] is not None or address not in ADDRESSES or before[1] == LIMITS.lanes or self.lanes.draining:
            assert number == before[0]
            assert self.told[-1][0] == peer
            return
        assert number is not None
        assert self.told[-1] == (peer, m.Passed(1))
        assert self.address[number] == address
        assert number not in self.serves, "one writer at a time"
        assert number in self.clean or number not in self.waiting, "what the last writer left must have been clean"
        self.clean.discard(number)
        self.serves[number] = peer


@settings(max_examples=300)
@given(STEPS)
def test_a_connection_serves_one_writer_and_only_a_clean_one_serves_another(
    steps: list[tuple[str, object, object]],
) -> None:
    world = World()
    for step in steps:
        world.step(*step)
        assert world.lanes.count == len(world.serves)
        assert world.lanes.held == sum(sum(sizes) for sizes in world.waiting.values())
        assert set(world.address) - set(world.serves) <= world.clean
        assert world.lanes.warm == len(set(world.address) - set(world.serves)) <= LIMITS.warm_most
        assert all(sum(world.waiting.get(number, ())) <= LIMITS.held_each for number in world.serves)
        if world.lanes.held > LIMITS.held:
            assert world.lanes.full
        if world.lanes.held <= LIMITS.held // 2:
            assert not world.lanes.full


def test_a_peer_that_is_silent_for_long_is_cut_and_notified() -> None:
    world = World()
    world.step("pass", b"a", ADDRESSES[0])
    world.step("time", 51.0, None)
    _, told = world.told
    assert told[0] == b"a"
    assert isinstance(told[1], m.Cut)
    assert world.address == {}


@pytest.mark.rule("E6")
def test_a_connection_that_was_not_left_cleanly_never_serves_another() -> None:
    world = World()
    world.step("pass", b"a", ADDRESSES[0])
    world.step("gone", b"a", None)
    world.step("pass", b"b", ADDRESSES[0])
    assert list(world.address) == [1]


@pytest.mark.rule("E6")
def test_of_two_warm_connections_the_one_that_broke_is_closed_and_the_other_serves_the_next_writer() -> None:
    world = World()
    for peer in (b"a", b"b"):
        world.step("pass", peer, ADDRESSES[0])
    for peer in (b"a", b"b"):
        world.step("free", peer, None)
    world.lanes.lost(1)  # the one that the next writer would get
    assert list(world.lanes.take()) == [Close(1)]
    world.lanes.passes(b"c", m.Pass(1, "me", ADDRESSES[0]), world.now)
    assert world.lanes.take() == [SendToWriter(b"c", m.Passed(1))], "no new connection is made"
    assert world.lanes.came(b"c", world.now) == 0


@pytest.mark.rule("S24")
@pytest.mark.parametrize("end", ["cut for its silence", "gone", "cut for what it sent"])
def test_what_waited_for_a_writer_that_is_cut_no_longer_stops_the_others(end: str) -> None:
    lanes = Lanes("me", Limits(held=100, held_each=400, silence=50.0))
    lanes.know(ADDRESSES)
    for peer in (b"a", b"b"):
        lanes.passes(peer, m.Pass(1, "me", ADDRESSES[0]), 0.0)
    connection = lanes.came(b"a", 0.0)
    assert connection is not None
    lanes.waits_for(connection, 300)
    lanes.came(b"b", 40.0)
    assert (lanes.full, lanes.held) == (True, 300)
    match end:
        case "gone":
            lanes.gone(b"a")
        case "cut for its silence":
            lanes.tick(60.0)
        case _:
            lanes.waits_for(connection, 200)
    assert (lanes.full, lanes.held, lanes.count) == (False, 0, 1)


@pytest.mark.rule("S27")
def test_the_addresses_that_the_catalog_named_longest_ago_are_forgotten_first() -> None:
    lanes = Lanes("me", Limits())
    lanes.know([f"tcp://h:{port}" for port in range(MOST_ADDRESSES)])
    lanes.know(["tcp://h:0"])  # named again
    lanes.know(["tcp://new:1"])
    for number, (address, is_known) in enumerate([("tcp://h:0", True), ("tcp://h:1", False), ("tcp://new:1", True)]):
        lanes.passes(b"%d" % number, m.Pass(1, "me", address), 0.0)
        assert (lanes.came(b"%d" % number, 0.0) is not None) == is_known, address


@pytest.mark.rule("E6")
def test_a_sidecar_that_stops_keeps_no_connection_warm() -> None:
    world = World()
    for peer in (b"a", b"b"):
        world.step("pass", peer, ADDRESSES[0])
    world.step("free", b"a", None)
    world.step("drain", None, None)
    assert list(world.address) == [1], "that of the writer that is still there"
    world.step("free", b"b", None)
    assert world.address == {}
    assert world.lanes.warm == 0
