"""A publisher over its log, when its process ends and when its machine does: what was acknowledged stays or is told."""

import random
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import google_crc32c
import pytest

from epochal.errors import LogFailed, LogFull, Superseded
from epochal.logfiles import SegmentLog
from epochal.logfiles.disk import boot_id
from epochal.logfiles.owner import LogOwner
from epochal.logfiles.survey import summarize, verify
from epochal.protocol import messages as m
from epochal.protocol.log.file_format import LogCheckpoint
from epochal.protocol.log.frames import decode_entry, entries
from epochal.protocol.log.history import SegmentState
from epochal.protocol.publisher.effects import Log, Push, Reply
from epochal.protocol.publisher.limits import PublisherSettings
from epochal.protocol.publisher.machine import SegmentPublisher
from epochal.protocol.times import Time, TimeShape
from epochal_publisher.segments.store import QUIET, Commit, SegmentStore
from epochal_publisher.settings import Settings

QUIET_AT_THE_END = (5, 8)
"""Seeds of the test below after which the log is quiet when its machine dies."""
SETTINGS = Settings(catalog="http://127.0.0.1:1", stream="test/s", segments=("0",), publisher="p", sync_interval=60.0)


class Forgetful(random.Random):
    """A machine that loses all that it may."""

    def random(self) -> float:
        return 0.0

    def choice(self, seq: Any) -> Any:
        return seq[0]


class Machine:
    """A machine with a disk, and the publisher process on it."""

    def __init__(self, directory: Path, disk: Any, policy: str, **limits: Any) -> None:
        self.directory, self.disk, self.policy = directory, disk, policy
        self.limits = PublisherSettings(shape=TimeShape.parse("int"), durable=True, **limits)
        self.boot: str | None = "first boot"
        self.start()

    def start(self) -> None:
        """The next incarnation, up to what it has to do before it serves anybody."""
        self.log = SegmentLog.open(
            self.directory, "u", "0", instance="a test", disk=self.disk, boot=lambda: self.boot
        )  # fmt: skip
        self.store = SegmentStore(self.log, SETTINGS, always_sync=self.policy == "batch")
        incarnation = self.log.incarnation + 1
        self.publisher = SegmentPublisher(
            "u", "0", self.limits, incarnation=incarnation, now=0.0, restored=self.store.restored
        )
        self.store.begin(incarnation, self.publisher)
        assert self.store.commit is not None
        self.begun = self.carry_out(self.store.commit)
        self.now = self.store._written

    def carry_out(self, commit: Commit) -> list[Any]:
        commit.run()
        self.store.commit = None
        return list(commit.effects)

    def ask(self, message: m.Message, writer: str = "w") -> list[Any]:
        """What a writer is answered, once the policy allows."""
        self.publisher.receive(writer.encode(), message, 0.0)
        effects = self.publisher.take()
        if effects and isinstance(effects[-1], Log):
            effects = self.carry_out(self.store.prepare(self.publisher, effects[:-1], effects[-1]))
        return [effect.message for effect in effects if isinstance(effect, Reply)]

    def open(self, session: int, resume: m.Resume | None = None, writer: str = "w") -> m.Opened:
        (opened,) = self.ask(m.Open(1, "u", "0", writer, session, None, resume), writer)
        assert isinstance(opened, m.Opened)
        return opened

    def append(self, number: int, time: int, payload: bytes = b"x", writer: str = "w") -> Any:
        crc = google_crc32c.value(payload)
        (reply,) = self.ask(m.Append("0", number, time, b"", 1, crc, payload), writer)
        return reply

    def hold(self, time: Time, writer: str = "w") -> None:
        assert self.ask(m.Hold(9, "0", (time,)), writer) == [m.Done(9, "0")]

    def roll(self) -> None:
        """Begin a new file, as it happens when one is large enough."""
        object.__setattr__(self.log, "_settings", self.log._settings.__class__(file_bytes=0))
        self.hold(min(self.publisher.state().lower))

    def quiet(self, seconds: float) -> None:
        """Let nothing happen for a while."""
        self.now = max(self.now, self.store._written) + seconds
        commit = self.store.sweep(self.publisher, self.now)
        if commit is not None:
            self.carry_out(commit)

    def kill(self) -> None:
        """End the process; the kernel has what it wrote."""
        self.abandon()
        self.disk.broken.clear()

    def abandon(self) -> None:
        self.disk.broken |= {"write", "truncate", "sync"}  # a log that is closed in order would say so
        with suppress(LogFailed):
            self.log.close()

    def lose_power(self, chance: random.Random | None = None) -> None:
        """End the machine, and start it again."""
        self.abandon()
        self.disk.crash(chance or Forgetful())
        self.boot = f"after {self.boot}"

    def logged(self) -> list[m.Event]:
        """What is on disk and can be read."""
        found: list[m.Event] = []
        while (batch := self.log.read(len(found) - 1, 1000, 2**20)) is not None:
            found += [decode_entry(raw) for data in batch.data for raw in entries(data)]
        return found


@pytest.fixture
def machine(bench: Any) -> Iterator[Callable[..., Machine]]:
    made: list[Machine] = []

    def make(policy: str = "interval", **limits: int) -> Machine:
        made.append(Machine(bench.directory, bench.disk, policy, **limits))
        return made[-1]

    yield make
    for each in made:
        each.log.close()


def aborts(events: list[Any]) -> list[Time]:
    return [time for event in events if isinstance(event, m.Aborted) for time in event.times]


def with_two_unsynced(machine: Machine) -> None:
    """Epoch 5 holds an append that is on disk, and two that were acknowledged and are not."""
    machine.open(1)
    for number in range(3):
        assert isinstance(machine.append(number, 5), m.Ack)


# ---- E11(e): a machine that dies under `interval` ----


@pytest.mark.rule("E11", "E10")
def test_an_epoch_that_may_lack_what_a_machine_took_with_it_is_aborted_before_anybody_is_served(machine: Any) -> None:
    """The program died with the machine too, and opens anew under the same id: nobody else can know of the loss."""
    at = machine()
    with_two_unsynced(at)
    at.lose_power()
    at.start()
    assert len(at.logged()) == 2, "the append that was secured, and the abort, on disk before anything is served"
    assert aborts(at.logged()) == [5]
    assert at.publisher.state().aborted == (5,)
    assert aborts([effect.message for effect in at.begun if isinstance(effect, Push)]) == [5], "readers are told"
    opened = at.open(2)
    assert (opened.number, opened.touched) == (0, ())
    refused = at.append(1, 5)
    assert (refused.code, refused.number) == ("epoch_aborted", 1)
    assert isinstance(at.append(2, 6), m.Ack)
    at.hold(7)
    assert aborts(at.logged()) == [5]


@pytest.mark.rule("E11")
@pytest.mark.parametrize("seed", range(20))
def test_whatever_part_a_machine_takes_an_epoch_is_whole_or_aborted(machine: Any, seed: int) -> None:
    chance = random.Random(seed)
    at = machine()
    at.open(1)
    at.open(1, writer="v")
    acknowledged: dict[int, int] = {}
    numbers = {"v": 0, "w": 0}
    completed = 0
    vouched = False
    for _ in range(chance.randint(1, 30)):
        writer = chance.choice("vw")
        vouched = False
        if chance.random() < 0.2:
            completed += 1
            at.hold(completed, "v")
            at.hold(completed, "w")
        elif chance.random() < 0.1:
            at.quiet(QUIET + 0.1)
            vouched = True
        else:
            time = completed + chance.randint(0, 2)
            assert isinstance(at.append(numbers[writer], time, writer=writer), m.Ack)
            numbers[writer] += 1
            acknowledged[time] = acknowledged.get(time, 0) + 1
    at.lose_power(random.Random(seed))
    at.start()
    found: dict[Time, int] = {}
    for event in at.logged():
        if isinstance(event, m.Data):
            found[event.time] = found.get(event.time, 0) + 1
    lost = aborts(at.logged())
    for time, count in acknowledged.items():
        assert found.get(time, 0) == count or time in lost, f"epoch {time}"
    assert set(lost) <= {time for time in acknowledged if time >= completed}, "only what was active"
    assert vouched == (seed in QUIET_AT_THE_END), "both are tried"
    if vouched:
        assert lost == [], "the disk had all of it"


@pytest.mark.rule("E11")
def test_the_log_says_so_once_also_when_the_start_is_cut_short(machine: Any) -> None:
    """Killed between claiming the log and beginning: the next start of the same boot must not take it for sound."""
    at = machine()
    with_two_unsynced(at)
    at.lose_power()
    log = SegmentLog.open(at.directory, "u", "0", instance="killed", disk=at.disk, boot=lambda: at.boot)
    log._owner.claim(log.incarnation + 1)
    log._owner.leave()
    at.start()
    assert aborts(at.logged()) == [5]
    at.open(2)
    assert isinstance(at.append(1, 6), m.Ack)
    at.kill()
    at.start()
    assert aborts(at.logged()) == [5], "its process alone died: 6 goes on"
    assert at.publisher.state().active == (6,)


@pytest.mark.rule("E10", "E11")
def test_a_process_that_dies_takes_nothing_with_it(machine: Any) -> None:
    at = machine()
    with_two_unsynced(at)
    at.kill()
    at.start()
    assert (aborts(at.logged()), at.publisher.state().active) == ([], (5,))
    assert at.open(1, m.Resume(2, (0,), (5,))).lost == ()


@pytest.mark.rule("E11")
@pytest.mark.parametrize("how", ["no file", "not readable now", "garbage"])
def test_where_it_cannot_be_known_whether_the_machine_has_started_again_it_has(machine: Any, how: str) -> None:
    at = machine()
    with_two_unsynced(at)
    at.kill()
    match how:
        case "no file":
            (at.directory / "boot").unlink()  # as a full disk leaves it
        case "garbage":
            (at.directory / "boot").write_text("{}")
        case _:
            at.boot = None
    at.start()
    assert aborts(at.logged()) == [5]
    at.open(2)
    assert isinstance(at.append(3, 6), m.Ack)
    at.kill()
    at.start()
    assert aborts(at.logged()) == ([5, 6] if at.boot is None else [5])


@pytest.mark.rule("E10", "E11")
def test_a_log_that_is_vouched_for_lacks_nothing(machine: Any) -> None:
    """A quiet stream loses no epoch with its machine, and neither does one that was stopped in order."""
    at = machine()
    with_two_unsynced(at)
    at.quiet(2 * SETTINGS.sync_interval)
    at.quiet(QUIET + 0.1)
    at.lose_power()
    at.start()
    assert (aborts(at.logged()), at.publisher.state().active) == ([], (5,))
    at.open(2)
    at.append(3, 5)
    at.append(4, 5)
    at.log.close()
    at.lose_power()
    at.start()
    assert (aborts(at.logged()), at.publisher.state().active) == ([], (5,))


@pytest.mark.rule("E11")
def test_a_process_that_never_began_vouches_for_nothing(machine: Any) -> None:
    """It ends in order before the catalog has granted it anything: what its machine lost before is still in doubt."""
    at = machine()
    with_two_unsynced(at)
    at.lose_power()
    SegmentLog.open(at.directory, "u", "0", instance="it waits", disk=at.disk, boot=lambda: at.boot).close()
    at.start()
    assert aborts(at.logged()) == [5]


@pytest.mark.rule("E10", "E11")
def test_the_first_append_after_what_is_vouched_for_is_synced(machine: Any) -> None:
    """Else a machine that dies leaves a log that vouches for its end, and lacks what was acknowledged behind it."""
    at = machine()
    with_two_unsynced(at)
    at.quiet(2 * SETTINGS.sync_interval)
    at.quiet(QUIET + 0.1)
    syncs = at.disk.syncs
    assert isinstance(at.append(3, 5), m.Ack)
    assert at.disk.syncs == syncs + 1
    assert isinstance(at.append(4, 5), m.Ack)
    assert at.disk.syncs == syncs + 1, "the others wait for the interval"
    at.lose_power()
    at.start()
    assert aborts(at.logged()) == [5]


@pytest.mark.rule("E10")
def test_under_batch_nothing_is_aborted_with_a_machine(machine: Any) -> None:
    at = machine("batch")
    with_two_unsynced(at)
    at.lose_power()
    at.start()
    assert (aborts(at.logged()), at.publisher.state().active) == ([], (5,))
    assert at.open(2).number == 2
    at.policy = "interval"  # the policy of the next life says nothing of what the last one kept
    at.lose_power()
    at.start()
    assert aborts(at.logged()) == []


@pytest.mark.rule("E11")
def test_what_interval_may_have_lost_is_aborted_also_where_the_policy_is_batch_by_now(machine: Any) -> None:
    at = machine()
    with_two_unsynced(at)
    at.lose_power()
    at.policy = "batch"
    at.start()
    assert aborts(at.logged()) == [5]


@pytest.mark.rule("E11")
@pytest.mark.parametrize("room", range(0, 240, 30))
def test_on_a_full_disk_the_abort_waits_for_space_with_the_incarnation(
    machine: Any, room: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Wherever it becomes full: at the claim, at the frame, or at the note of the boot, without which it is unknown."""
    at = machine()
    with_two_unsynced(at)
    at.lose_power()
    with monkeypatch.context() as patched:
        patched.setattr(Machine, "carry_out", lambda _, commit: list(commit.effects))
        at.start()
    at.disk.room = room
    try:
        at.store.commit.run()
    except LogFull:
        assert aborts(at.logged()) == []
        at.disk.room = None
        at.store.commit.run()
    at.disk.room = None
    at.store.commit = None
    assert aborts(at.logged()) == [5]
    assert at.log.incarnations[-1] == (at.log.incarnation, 1), "the abort is the first event of the incarnation"
    at.kill()
    at.start()
    assert aborts(at.logged()) == [5]


@pytest.mark.rule("E11")
def test_on_a_full_disk_no_note_of_an_earlier_owner_is_taken_for_this_one(bench: Any) -> None:
    """It might say that nothing was acknowledged before it was synced, or name this very start of the machine."""
    bench.directory.mkdir()
    owner = LogOwner(bench.directory, "a test", bench.disk)
    owner.note_boot("first", relaxed=False)
    assert owner.last() == ("first", False)
    bench.disk.room = 0
    owner.note_boot("second", relaxed=True)
    assert owner.last() == (None, None)
    owner.leave()


@pytest.mark.rule("E12")
def test_one_that_waited_for_space_to_begin_does_not_begin_once_another_has_claimed_the_volume(bench: Any) -> None:
    with bench.begin() as log:
        bench.append(log, 10)
    log = bench.open()
    incarnation = log.incarnation + 1
    bench.disk.room = 64  # the claim fits, the frame does not
    with pytest.raises(LogFull):
        log.begin(incarnation, LogCheckpoint(SegmentState(log.last, (0,), (), ()), b""))
    bench.disk.room = None
    claim = bench.directory / "incarnation"
    assert f'"incarnation": {incarnation}' in claim.read_text()
    other = claim.with_name("aside")
    other.write_text(f'{{"incarnation": {incarnation + 1}, "instance": "another machine"}}')
    other.rename(claim)
    with pytest.raises(Superseded):
        log.begin(incarnation, LogCheckpoint(SegmentState(log.last, (0,), (), ()), b""))
    log.close()


def test_this_machine_says_which_start_it_is(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert boot_id() == boot_id() is not None
    monkeypatch.setattr("epochal.logfiles.disk.BOOT_ID", tmp_path / "none")
    assert boot_id() is None


# ---- E49: what was logged is known again ----


@pytest.mark.rule("E49", "E10")
@pytest.mark.parametrize("rolled", [False, True], ids=["from events", "from a checkpoint"])
@pytest.mark.parametrize("policy", ["batch", "interval"])
def test_repeats_are_judged_by_what_the_log_on_disk_has(machine: Any, rolled: bool, policy: str) -> None:
    at = machine(policy)
    at.open(1)
    for number in range(5):
        at.append(number, 5, b"%d" % number)
    if rolled:
        at.roll()
        assert len(list(at.directory.glob("*.log"))) == 2
    for crash in (at.kill, at.kill, at.lose_power if policy == "batch" else at.kill):
        crash()
        at.start()
        at.open(at.log.incarnation)
        for number in range(5):
            assert at.append(number, 5, b"%d" % number) == m.Ack("0", number, number, 1)
            assert at.append(number, 5, b"other").code == "repeat_differs"
            assert at.append(number, 6, b"%d" % number).code == "repeat_differs"
    assert at.append(5, 5) == m.Ack("0", 5, 5, 1)


@pytest.mark.rule("E49", "E10")
def test_a_number_whose_append_the_machine_took_with_it_is_not_acknowledged_again(machine: Any) -> None:
    """Its writer has heard that it was logged; a task of it that runs again must not hear so once more."""
    at = machine()
    with_two_unsynced(at)
    at.lose_power()
    at.start()
    assert at.open(1, m.Resume(2, (0,), (5,))).lost == (5,)
    assert at.append(2, 5).code == "repeat_differs"
    assert at.append(0, 5) == m.Ack("0", 0, 0, 1)


@pytest.mark.rule("E13")
@pytest.mark.parametrize("rolled", [False, True], ids=["from events", "from a checkpoint"])
def test_an_epoch_may_not_outgrow_the_retention_by_a_restart(machine: Any, rolled: bool) -> None:
    at = machine("batch", retention_bytes=5000)
    at.open(1)
    assert isinstance(at.append(0, 5, bytes(3000)), m.Ack)
    if rolled:
        at.roll()
    at.kill()
    at.start()
    at.open(2)
    assert at.append(1, 5, bytes(3000)).code == "epoch_too_large"
    assert isinstance(at.append(2, 5, bytes(100)), m.Ack)
    assert isinstance(at.append(3, 6, bytes(3000)), m.Ack)


@pytest.mark.rule("E10")
def test_under_interval_a_machine_takes_neither_frontiers_nor_aborts_nor_beginnings(machine: Any) -> None:
    at = machine()
    at.open(1)
    at.append(0, 5)
    at.append(1, 5)
    at.hold(6)
    at.lose_power()
    at.start()
    assert (at.publisher.state().lower, aborts(at.logged())) == ((6,), []), "5 is complete, with all before it on disk"
    assert [event.seq for event in at.logged() if isinstance(event, m.Data)] == [0, 1]
    at.open(2)
    at.append(2, 7)
    at.ask(m.Abort(3, "0", (7,)))
    at.append(3, 8)
    at.lose_power()
    at.start()
    assert aborts(at.logged()) == [7, 8]
    assert [event.time for event in at.logged() if isinstance(event, m.Data)] == [5, 5, 7, 8]


def test_a_log_that_begins_with_aborts_and_fingerprints_can_be_looked_into(machine: Any) -> None:
    at = machine()
    with_two_unsynced(at)
    at.roll()
    at.append(3, 6)
    at.append(4, 6)
    at.lose_power()
    at.start()
    assert aborts(at.logged()) == [5, 6]
    assert [checked.damage for checked in verify(at.directory)] == [(), ()]
    first, last = sorted(at.directory.glob("*.log"))
    assert summarize(first, is_last=False).events == 3
    summary = summarize(last, is_last=True)
    assert (summary.events, summary.incarnations[-1]) == (2, (at.log.incarnation, 4))
