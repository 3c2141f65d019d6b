"""Whole streams under seeded chance: every run keeps every rule, and a run that does not is told by its seed."""

import collections
import multiprocessing
import pickle
import random
from collections import Counter
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from typing import Any

import pytest

from epochal.protocol.filters import JoinFilter
from epochal.protocol.simulation import Report, SimulationFailed, __main__, simulate

FRESH = 700
STORED = 200
DURABLE: dict[str, Any] = {"durable": True, "longest_sync": 0.1}
INTERVAL: dict[str, Any] = {**DURABLE, "interval": True}
LONG = 10_000
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
        ):
            total[name] += getattr(report, name)
        total["product order"] += report.scenario.shape != "int"
        total["an empty segment"] += 0 in report.scenario.skew
        total["several segments"] += report.scenario.segments > 1
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
def test_ten_thousand_fresh_seeds_keep_every_rule() -> None:
    base = random.SystemRandom().randrange(2**40)
    print(f"seeds {base} to {base + LONG - 1}")
    spawn = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(2, mp_context=spawn) as pool:
        reports = list(pool.map(simulate, range(base, base + LONG), chunksize=CHUNK))
        stored = list(pool.map(partial(simulate, **DURABLE), range(base, base + LONG // 4), chunksize=CHUNK))
        lax = list(pool.map(partial(simulate, **INTERVAL), range(base, base + LONG // 4), chunksize=CHUNK))
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
        pytest.param({"crash_rate": 0.4, **DURABLE}, id="publishers with logs on disk crash all the time"),
        pytest.param({"crash_rate": 0.4, **INTERVAL}, id="machines crash all the time"),
        pytest.param({"retention_bytes": 6_000, "subscribers": 6, **DURABLE}, id="history is on disk"),
        pytest.param({"subscriber_crash_rate": 1.0, "subscribers": 6}, id="subscribers crash"),
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


def test_a_field_of_the_scenario_can_be_fixed() -> None:
    fixed = partial(simulate, segments=1, writers=1, crash_rate=0.0, skew=(1,), min_writers=1)
    assert all(fixed(seed).scenario.segments == 1 and fixed(seed).crashes == 0 for seed in range(3))
