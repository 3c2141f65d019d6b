"""What each kind of death takes with it: the table of docs/concepts.md, tried cell by cell."""

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import google_crc32c
import pytest
from tests.logfiles.test_restarts import Machine

from epochal.protocol import messages as m
from epochal.protocol.progress import EpochState
from epochal.protocol.publisher.effects import AskRecord, Push, Reply
from epochal.protocol.publisher.horizon import Record
from epochal.protocol.publisher.limits import PublisherSettings
from epochal.protocol.publisher.machine import SegmentPublisher
from epochal.protocol.times import TimeShape

PAGE = Path(__file__).parents[2] / "docs" / "concepts.md"
POLICIES = ("memory", "interval", "batch")
LIMITS: dict[str, Any] = {"min_writers": 2, "writer_timeout": 30.0}


def table() -> dict[tuple[str, str], str]:
    """(What dies, durability) -> what the page says."""
    text = PAGE.read_text().partition("### What each kind of death takes with it")[2]
    rows = [
        [cell.strip() for cell in line.strip("|").split("|")] for line in re.findall(r"^\|.*\|$", text, re.MULTILINE)
    ]
    head, _, *body = rows
    assert head[1:] == [f"`{policy}`" for policy in POLICIES]
    return {(row[0], policy): cell for row in body for policy, cell in zip(POLICIES, row[1:], strict=True)}


@dataclass
class Memory:
    """A publisher without a log, with a catalog that stores its records unless it is away; speaks as a `Machine`."""

    policy: str = "memory"
    stored: Record | None = None
    away: bool = False
    events: list[m.Event] = field(default_factory=list)
    incarnation: int = 0
    now: float = 0.0

    def __post_init__(self) -> None:
        self.start()

    def start(self) -> None:
        known = self.stored
        given: dict[str, Any] = {}
        if known is not None:
            given = {
                "lower": known.lower,
                "horizon": known.horizon,
                "known_writers": known.writers,
                "marks": known.marks,
            }
        self.incarnation, self.events = self.incarnation + 1, []
        limits = PublisherSettings(shape=TimeShape.parse("int"), **LIMITS)
        self.publisher = SegmentPublisher("u", "0", limits, incarnation=self.incarnation, now=self.now, **given)

    def ask(self, message: m.Message, writer: str = "w") -> list[Any]:
        self.publisher.receive(writer.encode(), message, self.now)
        return self.take()

    def take(self) -> list[Any]:
        replies: list[Any] = []
        while effects := self.publisher.take():
            self.events += [
                e.message for e in effects if isinstance(e, Push) and not isinstance(e.message, m.Heartbeat)
            ]
            replies += [effect.message for effect in effects if isinstance(effect, Reply)]
            if AskRecord() in effects and not self.away:
                self.report()
        return replies

    def report(self, *, final: bool = False) -> None:
        self.stored = self.publisher.record(final=final)
        assert self.stored is not None
        self.publisher.recorded(self.stored.number, self.now)

    def logged(self) -> list[m.Event]:
        return self.events


def opened(at: Any, writer: str, session: int, resume: m.Resume | None = None) -> m.Opened | None:
    replies = at.ask(m.Open(1, "u", "0", writer, session, None, resume), writer)
    return next((reply for reply in replies if isinstance(reply, m.Opened)), None)


def appended(at: Any, writer: str, number: int, time: int) -> Any:
    payload = f"{writer}{number}".encode()
    append = m.Append("0", number, time, b"", 1, google_crc32c.value(payload), payload)
    return at.ask(append, writer)[-1]


def lived(at: Any) -> None:
    """Epoch 1 is complete; 2 is active, with records of both writers, of which `v` has left it; nothing is beyond."""
    for writer in "vw":
        assert opened(at, writer, 1)
    for writer in "vw":
        assert isinstance(appended(at, writer, 0, 1), m.Ack)
        at.ask(m.Hold(2, "0", (2,)), writer)
        assert isinstance(appended(at, writer, 1, 2), m.Ack)
    at.ask(m.Hold(3, "0", (3,)), "v")
    assert isinstance(appended(at, "w", 2, 2), m.Ack)  # under `interval` not synced yet


def returned(at: Any) -> None:
    """Both writers come back with what they hold."""
    for writer, resume in {"v": m.Resume(1, (3,), ()), "w": m.Resume(2, (2,), (2,))}.items():
        answer = opened(at, writer, 1, resume)
        assert answer is not None, writer
        assert answer.held == resume.held


def judged(at: Any, was_open: bool) -> str:
    """What became of the epochs, in the words of the page; `was_open`: so was one that had completed.

    Both writers then leave epoch 2, which is completed with all of it, or stays aborted.
    """
    publisher, before = at.publisher, [event for event in at.logged() if isinstance(event, m.Data)]
    aborted = publisher.progress.state(2) is EpochState.ABORTED
    for writer in "vw":
        assert m.Done(4, "0") in at.ask(m.Hold(4, "0", (3,)), writer)
    assert publisher.progress.state(2) is EpochState.COMPLETED, "nobody can write at it any more"
    kept = {event.payload for event in before if event.time == 2}
    told = [event.times for event in at.logged() if isinstance(event, m.Aborted)]
    if aborted:
        assert told == ([(2,)] if kept else []), "readers of what is left must not take it for whole"
        lost = ("open" if was_open else "active") + " epochs aborted"
    else:
        assert (told, kept >= {b"v1", b"w1", b"w2"}) == ([], True)
        lost = "nothing lost"
    return lost + ("" if any(event.time == 1 for event in before) else ", history gone")


# ---- deaths ----


def starts_again(at: Any) -> bool:
    """Returns whether an epoch that had completed is among those that were lost."""
    at.start()
    was_open = at.publisher.progress.state(1) is EpochState.ABORTED
    returned(at)
    return was_open


def process(at: Any) -> bool:
    if isinstance(at, Machine):
        at.kill()
    return starts_again(at)


def in_order(at: Any) -> bool:
    at.publisher.drain()
    if isinstance(at, Memory):
        at.take()
        at.report(final=True)
    else:
        at.quiet(2.0)
        at.log.close()
    return starts_again(at)


def machine_dies(at: Any) -> bool:
    if isinstance(at, Machine):
        at.lose_power()
    return starts_again(at)


def catalog_dies(at: Any) -> bool:
    if isinstance(at, Memory):
        at.away = True
        assert isinstance(appended(at, "w", 3, 2), m.Ack), "what the horizon covers goes on"
        at.away = False
    return False


DEATHS: dict[str, Callable[[Any], bool]] = {
    "the publisher's process or pod (`kill -9`, out of memory)": process,
    "the publisher, stopped in order (`SIGTERM`, a rolling update)": in_order,
    "its machine (power, kernel)": machine_dies,
    "the catalog's process": catalog_dies,
}


@pytest.fixture
def live(bench: Any) -> Any:
    made: list[Any] = []

    def make(policy: str) -> Any:
        at: Any = Memory() if policy == "memory" else Machine(bench.directory, bench.disk, policy, **LIMITS)
        made.append(at)
        return at

    yield make
    for at in made:
        if isinstance(at, Machine):
            at.log.close()


@pytest.mark.rule("E10", "E11")
@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("death", DEATHS)
def test_what_a_death_takes_is_what_the_page_says(live: Callable[[str], Any], death: str, policy: str) -> None:
    at = live(policy)
    lived(at)
    assert judged(at, DEATHS[death](at)) == table()[death, policy]


@pytest.mark.rule("E3")
@pytest.mark.parametrize("policy", POLICIES)
def test_a_writer_that_dies_takes_its_own_open_epochs(live: Callable[[str], Any], policy: str) -> None:
    at = live(policy)
    lived(at)
    appended(at, "v", 2, 3)
    step = 0.5
    while at.publisher._writers.get("w").present:
        at.now += step
        at.publisher.receive(b"v", m.Alive("0"), at.now)
        at.publisher.tick(at.now)
    assert at.publisher.progress.state(2) is not EpochState.ACTIVE
    assert at.publisher.progress.state(3) is EpochState.ACTIVE
    assert table()["a writer's process", policy] == "its own open epochs aborted"


@pytest.mark.rule("E11")
@pytest.mark.parametrize("policy", POLICIES)
def test_a_volume_that_is_lost_takes_what_a_lost_memory_takes(live: Callable[[str], Any], policy: str) -> None:
    """The catalog has no horizon of a publisher with a log: its writers say what may be missing."""
    assert table()["its volume", policy] == "open epochs aborted, history gone"
    limits = PublisherSettings(shape=TimeShape.parse("int"), durable=policy != "memory", **LIMITS)
    publisher = SegmentPublisher(
        "u", "0", limits, incarnation=2, now=0.0, lower=(1,), horizon=None, known_writers=["v", "w"]
    )
    assert publisher.gathering
    for writer, resume in {"v": m.Resume(1, (3,), ()), "w": m.Resume(2, (2,), (2,))}.items():
        publisher.receive(writer.encode(), m.Open(1, "u", "0", writer, 1, None, resume), 0.1)
    publisher.tick(0.2)
    if policy == "memory":
        record = publisher.record()
        assert record is not None
        publisher.recorded(record.number, 0.3)
    assert not publisher.gathering
    assert publisher.progress.state(2) is EpochState.ABORTED
    assert publisher.progress.state(3) is EpochState.LATENT, "nobody can have appended at it"
