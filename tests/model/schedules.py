"""Makes random schedules, shrinks one that fails to the steps that matter, and puts it into words."""

import random
from collections.abc import Collection, Iterable, Sequence
from typing import Any, NamedTuple

from tests.model.clauses import Clause
from tests.model.order import Order, order
from tests.model.world import Broken, Step, World

WRITERS = ("a", "b", "c")
READERS = ("r", "s")


class Scene(NamedTuple):
    """The shape of a world."""

    size: int = 4
    pairs: bool = False
    segments: int = 2

    @property
    def order(self) -> Order:
        return order(self.size, self.pairs)


class Found(NamedTuple):
    """A schedule that breaks a promise."""

    scene: Scene
    steps: list[Step]
    broken: str

    def __str__(self) -> str:
        shape = "pairs of ints" if self.scene.pairs else "ints"
        lines = [f"{number:3}. {words(step)}" for number, step in enumerate(self.steps, 1)]
        return "\n".join([self.broken, f"({self.scene.segments} segment(s), times are {shape})", *lines, "     (calm)"])


def outcome(scene: Scene, steps: Iterable[Step], off: Collection[Clause] = ()) -> str:
    """The promise that the schedule breaks, with a calm ending; empty if none."""
    world = World(scene.order, scene.segments, off)
    try:
        world.run(steps)
        world.calm()
    except Broken as broken:
        return str(broken)
    return ""


# ---- random ----

WEIGHTS = {
    "deliver": 12,
    "flush": 10,
    "append": 12,
    "advance": 6,
    "release": 2,
    "leave": 1,
    "abort": 1,
    "open": 4,
    "die": 0.5,
    "lose": 1,
    "ask": 3,
    "record": 5,
    "give_up": 1,
    "overtake": 1,
    "arrive": 8,
    "drop": 0.7,
    "catalog": 0.5,
    "crash": 1.5,
    "start": 3,
    "stop": 0.6,
    "complete": 0.5,
    "join": 2,
    "read": 8,
    "forget": 0.5,
    "resume": 0.7,
}
"""The relative probability of each. `flush`, `record` and `overtake` take several steps at once: with single steps,
few epochs would ever be whole."""


class Chance:
    """Steps drawn from one seed; a step that cannot be taken is dropped."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.scene = Scene(
            *self.random.choice([(3, False, 2), (5, False, 2), (4, False, 1), (2, True, 2), (3, True, 2)])
        )
        self.writers = WRITERS[: self.random.choice([1, 2, 2, 3])]
        # Each run changes the probabilities: else no run would have three crashes in a row, and none would lack aborts.
        weights = {kind: weight * self.random.choice([0.3, 1, 1, 2]) for kind, weight in WEIGHTS.items()}
        self.kinds, self.weights = list(weights), list(weights.values())
        self.world: World

    def steps(self, tries: int, world: World) -> list[Step]:
        """The steps taken of `tries` drawn ones. `Broken` comes through with them, as its second argument."""
        self.world = world
        taken: list[Step] = []
        try:
            for kind in (
                "record",
                "open",
                "flush",
                "open",
                "flush",
                *self.random.choices(self.kinds, self.weights, k=tries),
            ):
                drawn: Step | list[Step] = getattr(self, "_" + kind, tuple)()
                for step in drawn if isinstance(drawn, list) else [(kind, *drawn)]:
                    taken.append(step)
                    if not world.do(step):
                        taken.pop()
            world.calm()
        except Broken as broken:
            raise Broken(str(broken), taken) from None
        return taken

    def _who(self) -> str:
        return self.random.choice(self.writers) + ("'" if self.random.random() < 0.1 else "")

    def _segment(self) -> int:
        return self.random.randrange(self.scene.segments)

    def _time(self) -> Any:
        times = self.scene.order.written
        return self.random.choice(times)

    def _held(self, who: str) -> Any:
        """A time that the writer holds, more often an early one."""
        sessions = self.world.clients[who.rstrip("'")]
        held = sorted(sessions[-1].held.intersection(self.scene.order.written)) if sessions else []
        return held[min(self.random.randrange(len(held)), self.random.randrange(len(held)))] if held else self._time()

    def _deliver(self) -> Step:
        return self._who(), self._segment(), *(["lost"] if self.random.random() < 0.2 else [])

    def _flush(self) -> list[Step]:
        """Everything that one session, or all sessions, still have to send to one segment or to all."""
        who = self.random.choice([*self.writers, ""])
        segments = [self._segment()] if self.random.random() < 0.3 else range(self.scene.segments)
        return [("deliver", w, s) for _ in range(4) for w in self.writers for s in segments if who in ("", w)]

    def _record(self) -> list[Step]:
        """A record, and its answer."""
        return [("ask", *self._ask()), ("arrive", 0), ("arrive", 0)]

    def _overtake(self) -> list[Step]:
        """A record that is stored and answered while the one before it is still on its way."""
        (segment, *ahead), last = self._ask(), len(self.world.mail)
        asked: list[Step] = [("ask", segment), ("give_up", segment), ("ask", segment, *ahead)]
        return [*asked, ("arrive", last + 1), ("arrive", last + 1)]

    def _append(self) -> Step:
        who = self._who()
        return who, self._segment(), self._held(who)

    def _advance(self) -> Step:
        who = self._who()
        return who, self._held(who)

    _release = _abort = _advance

    def _leave(self) -> Step:
        return self._who(), self.random.choice(["close", "close", "finish", "abort"])

    def _open(self) -> Step | list[Step]:
        idle = [w for w in self.writers if not (s := self.world.clients[w]) or s[-1].phase == "over"]
        if self.random.random() < 0.1:
            return (self.random.choice(self.writers),)
        return (self.random.choice(idle),) if idle else []

    def _die(self) -> Step:
        return (self._who(),)

    def _lose(self) -> Step:
        return self.random.choice(self.writers), self._segment()

    def _ask(self) -> Step:
        return self._segment(), *([self._time()] if self.random.random() < 0.4 else [])

    def _give_up(self) -> Step:
        return (self._segment(),)

    _crash = _start = _stop = _give_up

    def _arrive(self) -> Step:
        index = 0 if self.random.random() < 0.6 else self.random.randrange(4)
        return index, *(["twice"] if self.random.random() < 0.05 else [])

    def _drop(self) -> Step:
        return (self.random.randrange(3),)

    def _catalog(self) -> Step:
        return (self.random.choice(["away", "back", "back"]),)

    def _join(self) -> Step:
        return self.random.choice(READERS), *(["start"] if self.random.random() < 0.4 else [])

    def _read(self) -> Step:
        return self.random.choice(READERS), self._segment(), *([1] if self.random.random() < 0.3 else [])

    def _resume(self) -> Step:
        return (self.random.choice(READERS),)

    def _forget(self) -> Step:
        return self.random.choice(READERS), self._segment()


def search(seeds: Iterable[int], off: Collection[Clause] = (), tries: int = 150) -> Found | None:
    """The first of the seeds that breaks a promise."""
    for seed in seeds:
        chance = Chance(seed)
        try:
            chance.steps(tries, World(chance.scene.order, chance.scene.segments, off))
        except Broken as broken:
            return Found(chance.scene, broken.args[1], f"seed {seed}: {broken.args[0]}")
    return None


# ---- shrinking ----


def shrink(found: Found, off: Collection[Clause] = ()) -> Found:
    """Take out what is not needed, in ever smaller pieces, until no single step can go."""
    steps, piece = found.steps, max(len(found.steps) // 2, 1)
    while True:
        begin, shorter = 0, False
        while begin < len(steps):
            without = [*steps[:begin], *steps[begin + piece :]]
            if outcome(found.scene, without, off):
                steps, shorter = without, True
            else:
                begin += piece
        if piece == 1 and not shorter:
            return Found(found.scene, steps, outcome(found.scene, steps, off))
        piece = max(piece // 2, 1)


# ---- in words ----

SENTENCES = {
    "open": "{0} asks the catalog for a session and opens",
    "append": "{0} appends at {2} to segment {1}",
    "advance": "{0} advances to {1}",
    "release": "{0} gives up {1} alone",
    "abort": "{0} aborts {1}",
    "leave": "{0} leaves: {1}",
    "die": "{0} dies",
    "deliver": "{0}'s next message reaches segment {1}",
    "lose": "segment {1} loses {0}: its time-out is over",
    "ask": "segment {0} asks the catalog to record what is true",
    "give_up": "segment {0} gives up waiting for the catalog's answer",
    "arrive": "the catalog and its publishers: piece {0} of what is on its way arrives",
    "drop": "the catalog and its publishers: piece {0} of what is on its way is lost",
    "catalog": "the catalog is {0}",
    "crash": "the publisher of segment {0} dies",
    "start": "the publisher of segment {0} starts again, without memory",
    "stop": "the publisher of segment {0} is told to stop",
    "complete": "the catalog finds that all have finished",
    "join": "reader {0} joins",
    "read": "reader {0} reads segment {1}",
    "resume": "reader {0} dies, and goes on from its cursor",
    "forget": "segment {1} no longer has what reader {0} would read next",
}
EXTRAS = {
    ("ask", 2): ", and the times up to {1} ahead",
    ("deliver", 3): "; the answer is {2}",
    ("arrive", 2): ", and will arrive {1}",
    ("join", 2): ", since={1}",
    ("read", 3): ", {2} event",
}


def words(step: Sequence[Any]) -> str:
    """One step as a sentence."""
    kind, args = step[0], step[1:]
    return (SENTENCES[kind] + EXTRAS.get((kind, len(args)), "")).format(*args)
