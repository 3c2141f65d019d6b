"""Whole streams under seeded chance: every run keeps every rule, and a run that does not is told by its seed."""

import collections
import multiprocessing
import pickle
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from typing import Any

import pytest
from tests.scale import LONG
from tests.seeds import fresh_seed
from tests.simulation import Report, SimulationFailed, __main__, simulate

from epochal.errors import CapabilityError, EpochalError, StreamGone
from epochal.protocol import frontier
from epochal.protocol import messages as m
from epochal.protocol.log.history import History
from epochal.protocol.publisher.appends import AppendHandler
from epochal.protocol.publisher.event_log import EventLog
from epochal.protocol.publisher.horizon import Horizon
from epochal.protocol.publisher.machine import SegmentPublisher
from epochal.protocol.publisher.reserved_capability import ReservedCapability
from epochal.protocol.publisher.session_opening import SessionOpener
from epochal.protocol.publisher.writer_sessions import WriterSessions
from epochal.protocol.publisher.writer_state import WriterState
from epochal.protocol.subscriber.effects import Began, EpochBatches, EpochWasAborted
from epochal.protocol.subscriber.join_filter import JoinFilter
from epochal.protocol.subscriber.machine import SubscriberMachine
from epochal.protocol.times import Time
from epochal.protocol.writer.capabilities import Moves
from epochal.protocol.writer.machine import WriterMachine
from epochal.protocol.writer.segment_session import SegmentSession

FRESH = 100
STORED = 100
DURABLE: dict[str, Any] = {"durable": True, "longest_sync": 0.1}
INTERVAL: dict[str, Any] = {**DURABLE, "interval": True}
LOSSES: dict[str, Any] = {**INTERVAL, "crash_rate": 0.3, "power_losses": 0.9}
CHANGED = 50
RELAYS = 20
MANY = 1_000 * LONG
FIXED, MANY_FIXED = 12, 40 * LONG
"""Seeds from 0 on for each kind of fault that is made frequent."""
OF_LOGS = MANY * 3 // 5
"""So many that what happens in 2 of 100 runs with logs on disk happens."""
CHUNK = 125

CHECKED = (
    *(
        [
            "S1",
            "S2",
            "S4",
            "S5",
            "S8",
            "S9",
            "S10",
            "S13",
            "S14",
            "S15",
            "S16",
            "S17",
            "S18",
            "S19",
            "S20",
            "S22",
            "S33",
            "S35",
        ]
    ),
    *(
        [
            "E1",
            "E2",
            "E3",
            "E4",
            "E5",
            "E6",
            "E7",
            "E8",
            "E9",
            "E11",
            "E12",
            "E13",
            "E14",
            "E15",
            "E16",
            "E17",
            "E18",
            "E20",
        ]
    ),
    *(["Q1", "Q5", "Q7", "Q8", "Q10", "Q15", "Q16"]),
)
"""The rules that every run is checked against, or that a run cannot pass without."""


TRIED = (
    "logged", "yielded", "aborted", "gaps", "resumed", "crashes", "stops", "stalls", "deaths", "hangs", "hurries",
    "breaks", "pauses", "dropped", "misled", "pulling", "switched", "asked", "skipped", "together", "away", "gathered",
    "claims", "interrupts", "product order", "an empty segment", "several segments", "several in a process",
)  # fmt: skip
"""What must have happened in enough runs, whatever keeps the logs."""
TRIED_ON_DISK = ("crashes", "stops", "restored", "volumes lost", "gathered", "read")
OFTEN = ("logged", "yielded", "crashes", "stops")
"""What cannot fail to happen in a hundred fresh runs; the rest is looked for in the long test, which has more."""


def tried(reports: list[Report]) -> Counter[str]:
    """What happened in all of these runs together."""
    total: Counter[str] = Counter()
    for report in reports:
        total.update(report.counts)
        total["product order"] += report.scenario.shape != "int"
        total["an empty segment"] += 0 in report.scenario.skew
        total["several segments"] += report.scenario.segments > 1
        total["several in a process"] += min(report.scenario.segments, report.scenario.per_process) > 1
    return total


def check_tried(reports: list[Report], *names: str) -> None:
    """Each of these things has happened, be it once."""
    total = tried(reports)
    never = [name for name in names if not total[name]]
    assert not never, f"never tried: {never}; {total}"


@pytest.mark.rule(*CHECKED)
def test_fresh_seeds_keep_every_rule() -> None:
    base = fresh_seed(2**40)
    print(f"seeds {base} to {base + FRESH - 1}")
    reports = [simulate(seed) for seed in range(base, base + FRESH)]  # SimulationFailed tells the seed and its replay
    check_tried(reports, *OFTEN)


CHANGING: dict[str, Any] = {"filtering": 1.0, "change_rate": 0.5}
TOLD: dict[str, Any] = {"hello_entries": 0, "whole_filter": True}
"""Every filter is too long for a hello."""


@pytest.mark.rule("E16", "E18", "E19", "F6", "F7", "F8", "F9", "F10")
@pytest.mark.parametrize("more", [{}, DURABLE, TOLD], ids=["in memory", "on disk", "long filters"])
def test_fresh_seeds_keep_every_rule_while_readers_change_their_topics(more: dict[str, Any]) -> None:
    base = fresh_seed(2**40)
    changing = {**CHANGING, "whole_filter": base % 3 > 0, **more}
    print(f"seeds {base} to {base + CHANGED - 1} with {changing}")
    reports = [simulate(seed, **changing) for seed in range(base, base + CHANGED)]
    check_tried(reports, *OFTEN, "changed", "widened", "rejoined")
    assert more is not TOLD or tried(reports)["told"]


RELAYED: dict[str, Any] = {"relays": 2, "relay_faults": 0.05, "filtering": 0.95, "change_rate": 1.5, "subscribers": 6}
"""Readers connect to publishers and to relays that follow each other, stall, die, stop and change their way.

So many, and changing so often, that topics are asked for again while a relay is about to give them up.
"""
CHAINED: dict[str, Any] = {**RELAYED, "relays": 3, "relay_faults": 0.2, "change_rate": 0.3, "whole_filter": False}
RELAY_TRIED = (
    "yielded", "gaps", "relayed", "passed on", "from memory", "runs ended", "loops refused", "ways changed",
    "relays killed", "relays stopped", "relays stalled", "relays know more", "widened", "rejoined",
)  # fmt: skip


@pytest.mark.rule("E16", "E17", "E24", "F8", "F13", "F14", "F15", "F16", "F17", "N18")
@pytest.mark.parametrize(
    "way",
    [RELAYED, CHAINED, {**RELAYED, **DURABLE}, {**RELAYED, **TOLD}],
    ids=["two", "three", "on disk", "long filters"],
)
def test_fresh_seeds_keep_every_rule_while_readers_go_through_relays(way: dict[str, Any]) -> None:
    base = fresh_seed(2**40)
    print(f"seeds {base} to {base + RELAYS - 1} with {way}")
    reports = [simulate(seed, **way) for seed in range(base, base + RELAYS)]
    check_tried(reports, *OFTEN, "relayed", "passed on", "from memory", "runs ended")


@pytest.mark.rule("E6", "E7", "E9", "E10", "E12", "E16", "Q5", "Q7", "Q15")
def test_fresh_seeds_keep_every_rule_with_logs_on_disk() -> None:
    """What the disk had when a publisher died is there afterwards, what was told above all; nothing is told before."""
    base = fresh_seed(2**40)
    print(f"seeds {base} to {base + STORED - 1} with {DURABLE}")
    check_tried([simulate(seed, **DURABLE) for seed in range(base, base + STORED)], *OFTEN)


@pytest.mark.rule("E9", "E10", "E16", "E17")
def test_fresh_seeds_keep_every_rule_where_a_crash_loses_what_was_published_before_it_was_synced() -> None:
    """Policy `interval`: only further data of active epochs goes, and whoever had it is told."""
    base = fresh_seed(2**40)
    print(f"seeds {base} to {base + STORED - 1} with {LOSSES}")
    check_tried([simulate(seed, **LOSSES) for seed in range(base, base + STORED)], *OFTEN)


@pytest.mark.long
@pytest.mark.rule(*CHECKED)
def test_many_fresh_seeds_keep_every_rule() -> None:
    base = fresh_seed(2**40)
    print(f"seeds {base} to {base + MANY - 1}")
    spawn = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(2, mp_context=spawn) as pool:
        reports = list(pool.map(simulate, range(base, base + MANY), chunksize=CHUNK))
        stored = list(pool.map(partial(simulate, **DURABLE), range(base, base + OF_LOGS), chunksize=CHUNK))
        lax = list(pool.map(partial(simulate, **INTERVAL), range(base, base + OF_LOGS), chunksize=CHUNK))
        changing = list(pool.map(partial(simulate, **CHANGING), range(base, base + MANY // 3), chunksize=CHUNK))
        changing += pool.map(partial(simulate, **CHANGING, **TOLD), range(base, base + MANY // 6), chunksize=CHUNK)
        relayed = list(pool.map(partial(simulate, **RELAYED), range(base, base + MANY // 4), chunksize=CHUNK))
        relayed += pool.map(partial(simulate, **CHAINED), range(base, base + MANY // 8), chunksize=CHUNK)
        relayed += pool.map(partial(simulate, **{**RELAYED, **TOLD}), range(base, base + MANY // 8), chunksize=CHUNK)
    check_tried(reports, *TRIED)
    check_tried(stored, *TRIED_ON_DISK)
    check_tried(lax, *TRIED_ON_DISK, "lost")
    check_tried(changing, "changed", "widened", "rejoined", "resumed with other topics", "yielded", "gaps")
    check_tried(relayed, *RELAY_TRIED)


FREQUENT: list[Any] = [
    pytest.param({"crash_rate": 0.4, "seconds": 8.0}, ["crashes", "gaps"], id="publishers crash all the time"),
    pytest.param(
        {"death_rate": 0.5, "hang_rate": 0.3, "writers": 3, "skew": (1, 1), "segments": 2},
        ["deaths", "hangs"],
        id="writers die",
    ),
    pytest.param({"break_rate": 1.0, "all_finish": True}, ["breaks"], id="connections break"),
    pytest.param(
        {"lost_at_end": 1, "all_finish": True, "writers": 3, "min_writers": 1, "crash_rate": 0.2},
        ["vanished", "crashes"],
        id="some vanish while the others finish",
    ),
    pytest.param({"crash_rate": 0.4, **DURABLE}, ["crashes"], id="publishers with logs on disk crash all the time"),
    pytest.param({"crash_rate": 0.4, **INTERVAL}, ["crashes", "lost"], id="machines crash all the time"),
    pytest.param({"retention_bytes": 6_000, "subscribers": 6, **DURABLE}, ["read", "resumed"], id="history is on disk"),
    pytest.param({"subscriber_crash_rate": 1.0, "subscribers": 6}, ["resumed"], id="subscribers crash"),
    pytest.param(
        {"subscriber_crash_rate": 0.5, "interrupt_rate": 0.5, "subscribers": 6},
        ["resumed", "interrupts"],
        id="calls are interrupted",
    ),
    pytest.param(
        {"together_rate": 0.3, "per_process": 2, "segments": 4, "skew": (1, 1, 1, 1), **DURABLE},
        ["together"],
        id="machines die with their writers",
    ),
    pytest.param(
        {"catalog_away_rate": 0.5, "crash_rate": 0.1, **DURABLE}, ["away", "crashes"], id="the catalog is away"
    ),
    pytest.param(
        {"catalog_away_rate": 0.5, "crash_rate": 0.1},
        ["away", "crashes"],
        id="the catalog is away and memory is lost",
    ),
    pytest.param(
        {"catalog_restored_rate": 0.2, "crash_rate": 0.1, **DURABLE},
        ["restored", "crashes"],
        id="older catalogs are put back",
    ),
    pytest.param({"pulling": 1.0, "switch_rate": 0.0, "break_rate": 0.2}, ["pulling"], id="nothing is pushed"),
    pytest.param(
        {"switch_rate": 3.0, "break_rate": 0.2, "crash_rate": 0.1}, ["switched", "breaks"], id="pushes come and go"
    ),
    pytest.param(
        {"high_water": 2, "pause_rate": 0.5, "retention_bytes": 4_000},
        ["dropped", "pauses", "gaps"],
        id="pushes drop, history is short",
    ),
    pytest.param({"retention_age": 2.0, "pause_rate": 0.5}, ["pauses", "gaps"], id="history is soon too old"),
    pytest.param({"stop_rate": 0.4, "slow_reports": 0.3}, ["stops"], id="publishers stop in order"),
    pytest.param({"stop_rate": 0.4, **INTERVAL}, ["stops"], id="publishers with logs on disk stop in order"),
    pytest.param(
        {"unknown_horizons": 1.0, "crash_rate": 0.2, "stop_rate": 0.1}, ["gathered"], id="no horizon is recorded"
    ),
    pytest.param(
        {"unknown_horizons": 1.0, "crash_rate": 0.2, "catalog_restored_rate": 0.0, **DURABLE},
        ["volumes lost", "gathered"],
        id="volumes are lost",
    ),
    pytest.param(
        {"wrong_address_rate": 0.3, "break_rate": 0.2, "crash_rate": 0.1},
        ["misled"],
        id="addresses are those of another stream",
    ),
    pytest.param(
        {"hurry_rate": 0.3, "record_trip": 0.05, "writers": 2, "min_writers": 1},
        ["hurries"],
        id="writers move faster than the catalog records",
    ),
]


@pytest.mark.parametrize(("overrides", "happens"), FREQUENT)
def test_the_rules_hold_where_one_kind_of_fault_is_frequent(overrides: dict[str, Any], happens: list[str]) -> None:
    check_tried([simulate(seed, **overrides) for seed in range(FIXED)], *happens)


@pytest.mark.long
@pytest.mark.parametrize(("overrides", "happens"), FREQUENT)
def test_they_hold_there_with_many_seeds(overrides: dict[str, Any], happens: list[str]) -> None:
    check_tried([simulate(seed, **overrides) for seed in range(FIXED, MANY_FIXED)], *happens)


def test_a_seed_is_replayed_exactly() -> None:
    first: list[str] = []
    second: list[str] = []
    assert simulate(7, trace=first.append) == simulate(7, trace=second.append) == simulate(7)
    assert first == second
    assert len(first) > 100


@pytest.mark.pure("breaks a machine by replacing a method")
def test_a_broken_rule_is_reported_with_the_command_that_replays_it(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(JoinFilter, "admits", lambda self, time: True)
    with pytest.raises(SimulationFailed, match=r"seed \d+: Violation: .* python -m tests.simulation \d+") as told:
        collections.deque(map(simulate, range(100)), maxlen=0)
    assert str(pickle.loads(pickle.dumps(told.value))) == str(told.value)  # as it comes from another process
    assert __main__.main([str(told.value.seed)]) == 1
    printed = capsys.readouterr()
    assert "Scenario(" in printed.out
    assert str(told.value) in printed.err


def test_the_command_reports_a_run_and_explains_itself(capsys: pytest.CaptureFixture[str]) -> None:
    assert __main__.main(["1"]) == 0
    assert "Report(seed=1" in capsys.readouterr().out
    assert __main__.main(["no seed"]) == 2
    assert "usage:" in capsys.readouterr().err


def _takes_nothing_in_hand(patch: pytest.MonkeyPatch) -> None:
    hand_out = SubscriberMachine.hand_out_epoch

    def handed_out(self: SubscriberMachine) -> EpochBatches | EpochWasAborted | None:
        epoch = hand_out(self)
        if epoch is not None:
            self.pass_epoch(epoch)
        return epoch

    patch.setattr(SubscriberMachine, "hand_out_epoch", handed_out)


def _drops_records(patch: pytest.MonkeyPatch) -> None:
    data = SubscriberMachine._data
    patch.setattr(
        SubscriberMachine, "_data", lambda self, name, segment, one: one.seq % 7 and data(self, name, segment, one)
    )


def _gives_epochs_twice(patch: pytest.MonkeyPatch) -> None:
    hand_out, last = SubscriberMachine.hand_out_epoch, dict[int, Any]()

    def again(self: SubscriberMachine) -> EpochBatches | EpochWasAborted | None:
        epoch = hand_out(self)
        if epoch is None:
            return last.pop(id(self), None)
        last[id(self)] = epoch
        return epoch

    patch.setattr(SubscriberMachine, "hand_out_epoch", again)


def _believes_it_saw_all(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(SubscriberMachine, "saw_whole", lambda self, time: self.ready and not self.frontier.less_equal(time))


def _aborts_all_after_a_gap(patch: pytest.MonkeyPatch) -> None:
    gap, complete, doubtful = SubscriberMachine._gap, SubscriberMachine._complete, list[SubscriberMachine]()

    def after_a_gap(self: SubscriberMachine, name: str, began: Began) -> None:
        gap(self, name, began)
        doubtful.append(self)

    def aborts(self: SubscriberMachine) -> None:
        if any(self is each for each in doubtful):
            for time in [time for time in self._queue.open if not self._merged.less_equal(time)]:
                self._drop_epoch(time, report=True)
        complete(self)

    patch.setattr(SubscriberMachine, "_gap", after_a_gap)
    patch.setattr(SubscriberMachine, "_complete", aborts)


def _keeps_too_few_events(patch: pytest.MonkeyPatch) -> None:
    init = History.__init__
    patch.setattr(
        History, "__init__", lambda self, start, max_bytes, max_age: init(self, start, max_bytes=600, max_age=max_age)
    )


def _keeps_events_too_briefly(patch: pytest.MonkeyPatch) -> None:
    init = History.__init__
    patch.setattr(
        History, "__init__", lambda self, start, max_bytes, max_age: init(self, start, max_bytes=max_bytes, max_age=0.5)
    )


def _forgets_earlier_lives(patch: pytest.MonkeyPatch) -> None:
    def end_of(self: History, incarnation: int) -> int | None:
        return self.last if self.incarnations[-1][0] == incarnation else None

    patch.setattr(History, "end_of", end_of)


def _reports_only_in_a_quiet_moment(patch: pytest.MonkeyPatch) -> None:
    publish = EventLog.publish

    def waits(self: EventLog) -> None:
        if self.horizon is None or self.horizon.allows(self.held.frontier):
            publish(self)
        else:
            self.horizon.urgent = True

    patch.setattr(EventLog, "publish", waits)


def _leaves_who_opens_in_line(patch: pytest.MonkeyPatch) -> None:
    must_wait = SessionOpener._must_wait

    def waits(self: SessionOpener, peer: bytes, ask: m.Open) -> bool:
        if ask.session % 4:
            return must_wait(self, peer, ask)
        self.waiting[peer] = ask
        return True

    patch.setattr(SessionOpener, "_must_wait", waits)


def _refuses_who_comes_back(patch: pytest.MonkeyPatch) -> None:
    refusal = AppendHandler._refusal

    def refuses(self: AppendHandler, holder: WriterState | None, time: Time) -> EpochalError | None:
        forgot = self._log.history.incarnations[-1][0] > 1 and time not in self._log.progress.upper
        return CapabilityError("it forgot") if forgot else refusal(self, holder, time)

    patch.setattr(AppendHandler, "_refusal", refuses)


def _records_nothing_as_it_stops(patch: pytest.MonkeyPatch) -> None:
    last_record = Horizon.last_record
    patch.setattr(Horizon, "last_record", lambda self, lower, aborted, *rest: last_record(self, lower, (), *rest))


def _waits_for_nobody(patch: pytest.MonkeyPatch) -> None:
    gather = SegmentPublisher._gather_when_all_ask

    def at_once(self: SegmentPublisher, now: float) -> None:
        self._started = now - self.settings.writer_timeout
        gather(self, now)

    patch.setattr(SegmentPublisher, "_gather_when_all_ask", at_once)


def _ends_at_a_wrong_address(patch: pytest.MonkeyPatch) -> None:
    refused = WriterMachine._refused

    def ends(self: WriterMachine, segment: str, lane: SegmentSession, answer: m.Refused) -> None:
        if answer.code == StreamGone.code:
            self._end(StreamGone(answer.detail), except_segment=segment)
        else:
            refused(self, segment, lane, answer)

    patch.setattr(WriterMachine, "_refused", ends)


def _moves_before_appends_are_acknowledged(patch: pytest.MonkeyPatch) -> None:
    take = Moves.take
    patch.setattr(Moves, "take", lambda self, oldest: take(self, 2**62))


def _aborts_nothing_of_lost_writers(patch: pytest.MonkeyPatch) -> None:
    depart = WriterSessions.depart

    def departs(self: WriterSessions, state: WriterState, *, abort: bool, finish: bool, replaced: bool = False) -> None:
        depart(self, state, abort=False, finish=finish)

    patch.setattr(WriterSessions, "depart", departs)


def _forgets_who_has_closed(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(ReservedCapability, "left_by", lambda self, lost: lost)


def _opens_fenced_sessions(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(SessionOpener, "_is_fenced", lambda self, ask: False)


def _orders_tuples_as_python_does(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(frontier, "less_equal", lambda a, b: a <= b)


@pytest.mark.pure("breaks a machine by replacing a method")
@pytest.mark.parametrize(
    ("break_it", "rule", "overrides"),
    [
        (
            _takes_nothing_in_hand,
            "history, silent",
            {"subscriber_crash_rate": 0.5, "interrupt_rate": 0.8, "seconds": 12.0},
        ),
        (_drops_records, "history, (atomic|whole|same|silent)|I2", {}),
        (_gives_epochs_twice, "E16", {}),
        (_aborts_all_after_a_gap, "E16|history, (causeless|agree|once)", {"crash_rate": 0.2, "seconds": 8.0}),
        (_keeps_too_few_events, "I2|E13", {"retention_bytes": 1 << 30}),
        (_keeps_events_too_briefly, "I2|E13", {"retention_age": 3600.0}),
        (_forgets_earlier_lives, "I2|E10", {"crash_rate": 0.2, **DURABLE}),
        (_reports_only_in_a_quiet_moment, "liveness", {"hurry_rate": 0.5, "record_trip": 0.05}),
        (_leaves_who_opens_in_line, "liveness", {"death_rate": 0.5, "seconds": 12.0}),
        (_refuses_who_comes_back, "E5", {"crash_rate": 0.2}),
        (_records_nothing_as_it_stops, "E11|history, (atomic|same|silent|whole)", {"stop_rate": 0.4}),
        (_waits_for_nobody, "E11", {"crash_rate": 0.2, "unknown_horizons": 1.0}),
        (_ends_at_a_wrong_address, "E48", {"wrong_address_rate": 0.5}),
        (_believes_it_saw_all, "history, (whole|agree)", {}),
        (_moves_before_appends_are_acknowledged, "E1", {}),
        (_aborts_nothing_of_lost_writers, "E3", {"death_rate": 0.3}),
        (_forgets_who_has_closed, "E3", {"all_finish": False, "writers": 3}),
        (_opens_fenced_sessions, "E6", {"hang_rate": 0.5}),
        (_orders_tuples_as_python_does, "I6|E14|S35|S5|E1|E3|E11|history, .*", {"shape": "(int, int)"}),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_a_machine_that_breaks_a_promise_is_found_out(
    monkeypatch: pytest.MonkeyPatch,
    break_it: Callable[[pytest.MonkeyPatch], None],
    rule: str,
    overrides: dict[str, Any],
) -> None:
    break_it(monkeypatch)
    fixed = {"crash_rate": 0.0, "together_rate": 0.0, **overrides}
    with pytest.raises(SimulationFailed, match=f"Violation: ({rule})[:,]"):
        collections.deque(map(partial(simulate, **fixed), range(60)), maxlen=0)


def test_a_field_of_the_scenario_can_be_fixed() -> None:
    fixed = partial(simulate, segments=1, writers=1, crash_rate=0.0, together_rate=0.0, skew=(1,), min_writers=1)
    assert all(fixed(seed).scenario.segments == 1 and fixed(seed).counts["crashes"] == 0 for seed in range(3))
