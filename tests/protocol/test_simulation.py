"""Whole streams under seeded chance: every run keeps every rule, and a run that does not is told by its seed."""

import collections
import multiprocessing
import pickle
import random
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from typing import Any

import pytest

from epochal.protocol import frontier
from epochal.protocol.filters import JoinFilter
from epochal.protocol.moves import Moves
from epochal.protocol.publishing import SegmentPublisher
from epochal.protocol.sessions import WriterState
from epochal.protocol.simulation import Report, SimulationFailed, __main__, simulate
from epochal.protocol.subscribing import EpochBatches, EpochWasAborted, Subscriber

FRESH = 700
STORED = 200
DURABLE: dict[str, Any] = {"durable": True, "longest_sync": 0.1}
INTERVAL: dict[str, Any] = {**DURABLE, "interval": True}
LONG = 12_000
CHUNK = 250

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


def tried(reports: list[Report]) -> Counter[str]:
    """What happened in all of these runs together."""
    total: Counter[str] = Counter()
    for report in reports:
        for name in (
            "logged",
            "yielded",
            "aborted",
            "gaps",
            "resumed",
            "crashes",
            "stalls",
            "deaths",
            "hangs",
            "lost",
            "pulling",
            "switched",
            "asked",
            "skipped",
            "together",
            "away",
            "claims",
            "interrupts",
        ):
            total[name] += getattr(report, name)
        total["product order"] += report.scenario.shape != "int"
        total["an empty segment"] += 0 in report.scenario.skew
        total["several segments"] += report.scenario.segments > 1
        total["several in a process"] += min(report.scenario.segments, report.scenario.per_process) > 1
    return total


@pytest.mark.rule(*CHECKED)
def test_hundreds_of_fresh_seeds_keep_every_rule() -> None:
    base = random.SystemRandom().randrange(2**40)
    print(f"seeds {base} to {base + FRESH - 1}")
    reports = [simulate(seed) for seed in range(base, base + FRESH)]  # SimulationFailed tells the seed and its replay
    total = tried(reports)
    del total["lost"]  # by disks alone
    assert all(total.values()), f"some kind of fault was never tried: {total}"


@pytest.mark.rule("E6", "E7", "E9", "E10", "E12", "E16", "Q5", "Q7", "Q15")
def test_fresh_seeds_keep_every_rule_with_logs_on_disk() -> None:
    """What the disk had when a publisher died is there afterwards, what was told above all; nothing is told before."""
    base = random.SystemRandom().randrange(2**40)
    print(f"seeds {base} to {base + STORED - 1} with {DURABLE}")
    reports = [simulate(seed, **DURABLE) for seed in range(base, base + STORED)]
    assert tried(reports)["crashes"]


@pytest.mark.rule("E9", "E10", "E16", "E17")
def test_fresh_seeds_keep_every_rule_where_a_crash_loses_what_was_told_before_it_was_synced() -> None:
    """Policy `interval`: only further data of active epochs goes, and whoever had it is told."""
    base = random.SystemRandom().randrange(2**40)
    print(f"seeds {base} to {base + STORED - 1} with {INTERVAL}")
    reports = [simulate(seed, **INTERVAL) for seed in range(base, base + STORED)]
    assert tried(reports)["lost"]


@pytest.mark.long
@pytest.mark.rule(*CHECKED)
def test_twenty_thousand_fresh_seeds_keep_every_rule() -> None:
    base = random.SystemRandom().randrange(2**40)
    print(f"seeds {base} to {base + LONG - 1}")
    spawn = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(2, mp_context=spawn) as pool:
        reports = list(pool.map(simulate, range(base, base + LONG), chunksize=CHUNK))
        stored = list(pool.map(partial(simulate, **DURABLE), range(base, base + LONG // 3), chunksize=CHUNK))
        lax = list(pool.map(partial(simulate, **INTERVAL), range(base, base + LONG // 3), chunksize=CHUNK))
    total = tried(reports)
    del total["lost"]  # by disks alone
    assert all(total.values())
    assert tried(stored)["crashes"]
    assert tried(lax)["lost"]


@pytest.mark.parametrize(
    "overrides",
    [
        pytest.param({"crash_rate": 0.4, "seconds": 8.0}, id="publishers crash all the time"),
        pytest.param(
            {"death_rate": 0.5, "hang_rate": 0.3, "writers": 3, "skew": (1, 1), "segments": 2}, id="writers die"
        ),
        pytest.param({"break_rate": 1.0, "all_finish": True}, id="connections break"),
        pytest.param(
            {"lost_at_end": 1, "all_finish": True, "writers": 3, "min_writers": 1, "crash_rate": 0.2},
            id="some vanish while the others finish",
        ),
        pytest.param({"crash_rate": 0.4, **DURABLE}, id="publishers with logs on disk crash all the time"),
        pytest.param({"crash_rate": 0.4, **INTERVAL}, id="machines crash all the time"),
        pytest.param({"retention_bytes": 6_000, "subscribers": 6, **DURABLE}, id="history is on disk"),
        pytest.param({"subscriber_crash_rate": 1.0, "subscribers": 6}, id="subscribers crash"),
        pytest.param(
            {"subscriber_crash_rate": 0.5, "interrupt_rate": 0.5, "subscribers": 6}, id="calls are interrupted"
        ),
        pytest.param(
            {"together_rate": 0.3, "per_process": 2, "segments": 4, "skew": (1, 1, 1, 1), **DURABLE},
            id="machines die with their writers",
        ),
        pytest.param({"catalog_away_rate": 0.5, "crash_rate": 0.1, **DURABLE}, id="the catalog is away"),
        pytest.param({"catalog_away_rate": 0.5, "crash_rate": 0.1}, id="the catalog is away and memory is lost"),
        pytest.param({"catalog_restored_rate": 0.2, "crash_rate": 0.1, **DURABLE}, id="older catalogs are put back"),
        pytest.param({"pulling": 1.0, "switch_rate": 0.0, "break_rate": 0.2}, id="nothing is pushed"),
        pytest.param({"switch_rate": 3.0, "break_rate": 0.2, "crash_rate": 0.1}, id="pushes come and go"),
        pytest.param(
            {"high_water": 2, "pause_rate": 0.5, "retention_bytes": 4_000}, id="pushes drop, history is short"
        ),
    ],
)
def test_the_rules_hold_where_one_kind_of_fault_is_frequent(overrides: dict[str, Any]) -> None:
    for seed in range(60):
        simulate(seed, **overrides)


def test_a_seed_is_replayed_exactly() -> None:
    first: list[str] = []
    second: list[str] = []
    assert simulate(7, trace=first.append) == simulate(7, trace=second.append) == simulate(7)
    assert first == second
    assert len(first) > 100


def test_a_broken_rule_is_told_with_the_command_that_replays_it(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(JoinFilter, "admits", lambda self, time: True)
    with pytest.raises(
        SimulationFailed, match=r"seed \d+: Violation: .* python -m epochal.protocol.simulation \d+"
    ) as told:
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
    hand_out = Subscriber.hand_out_epoch

    def handed_out(self: Subscriber) -> EpochBatches | EpochWasAborted | None:
        epoch = hand_out(self)
        if epoch is not None:
            self.pass_epoch(epoch)
        return epoch

    patch.setattr(Subscriber, "hand_out_epoch", handed_out)


def _drops_records(patch: pytest.MonkeyPatch) -> None:
    data = Subscriber._data
    patch.setattr(Subscriber, "_data", lambda self, name, segment, one: one.seq % 7 and data(self, name, segment, one))


def _gives_epochs_twice(patch: pytest.MonkeyPatch) -> None:
    hand_out, last = Subscriber.hand_out_epoch, dict[int, Any]()

    def again(self: Subscriber) -> EpochBatches | EpochWasAborted | None:
        epoch = hand_out(self)
        if epoch is None:
            return last.pop(id(self), None)
        last[id(self)] = epoch
        return epoch

    patch.setattr(Subscriber, "hand_out_epoch", again)


def _believes_it_saw_all(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Subscriber, "saw_whole", lambda self, time: self.ready and not self.frontier.less_equal(time))


def _moves_before_appends_are_acknowledged(patch: pytest.MonkeyPatch) -> None:
    take = Moves.take
    patch.setattr(Moves, "take", lambda self, oldest: take(self, 2**62))


def _aborts_nothing_of_lost_writers(patch: pytest.MonkeyPatch) -> None:
    depart = SegmentPublisher._depart

    def departs(self: SegmentPublisher, state: WriterState, *, abort: bool, finish: bool) -> None:
        depart(self, state, abort=False, finish=finish)

    patch.setattr(SegmentPublisher, "_depart", departs)


def _opens_fenced_sessions(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(SegmentPublisher, "_is_fenced", lambda self, ask: False)


def _orders_tuples_as_python_does(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(frontier, "less_equal", lambda a, b: a <= b)


@pytest.mark.parametrize(
    ("break_it", "rule", "overrides"),
    [
        (_takes_nothing_in_hand, "I2|E16", {"subscriber_crash_rate": 0.5, "interrupt_rate": 0.5}),
        (_drops_records, "I1|I2|E18", {}),
        (_gives_epochs_twice, "E16", {}),
        (_believes_it_saw_all, "E18", {}),
        (_moves_before_appends_are_acknowledged, "E1", {}),
        (_aborts_nothing_of_lost_writers, "E3", {"death_rate": 0.3}),
        (_opens_fenced_sessions, "E6", {"hang_rate": 0.5}),
        (_orders_tuples_as_python_does, "I6|I1|E14|E15|S35|S5|E1", {"shape": "(int, int)"}),
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
    with pytest.raises(SimulationFailed, match=f"Violation: ({rule})[:,]"):
        collections.deque(map(partial(simulate, crash_rate=0.0, together_rate=0.0, **overrides), range(60)), maxlen=0)


def test_a_field_of_the_scenario_can_be_fixed() -> None:
    fixed = partial(simulate, segments=1, writers=1, crash_rate=0.0, together_rate=0.0, skew=(1,), min_writers=1)
    assert all(fixed(seed).scenario.segments == 1 and fixed(seed).crashes == 0 for seed in range(3))
