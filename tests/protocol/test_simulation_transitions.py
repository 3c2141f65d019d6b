"""What the simulation takes of the machines' state tables: all that can happen there, but for a declared list."""

from typing import Any

from tests.simulation import simulate
from tests.simulation.transitions import TABLES, Transition, never_taken, watched

CHANGING: dict[str, Any] = {"filtering": 1.0, "change_rate": 0.5}
LONG_FILTERS: dict[str, Any] = {"hello_entries": 0, "whole_filter": True}
RELAYS: dict[str, Any] = {
    "relays": 3, "relay_faults": 0.3, "filtering": 0.95, "change_rate": 1.3, "subscribers": 6, "switch_rate": 1.0,
}  # fmt: skip
RUNS: list[tuple[dict[str, Any], int]] = [
    (CHANGING, 12),
    (CHANGING | LONG_FILTERS, 12),
    (CHANGING | LONG_FILTERS | {"switch_rate": 3.0, "break_rate": 0.2, "crash_rate": 0.1}, 12),
    (CHANGING | {"high_water": 2, "pause_rate": 0.5, "retention_bytes": 4_000, "pulling": 0.3}, 12),
    (RELAYS, 12),
    (RELAYS | LONG_FILTERS, 12),
    ({"durable": True, "interval": True, "all_finish": True, "crash_rate": 0.4, "lost_at_end": 1}, 6),
]
"""Fields of the scenario, and how many seeds from 0 on are run with them."""

NO_WRONG_MESSAGES = "the simulated publishers keep the rules; tests/hostile has those that do not"
NO_GIVING_UP = "simulated programs wait for their open, and go on as long as they can; test_writer_machine gives it up"
NO_LIMITS = "the simulated publishers have room for every filter; tests/hostile fills them"
NEVER = {
    **{Transition("follower", state, "RULE_BROKEN"): NO_WRONG_MESSAGES
       for state in ("GREETING", "NAMING", "JOINING", "PULLING", "LIVE", "WAITING")},
    Transition("follower", "LIVE", "DAMAGE_SEEN"): "no payload is damaged on the way",
    Transition("follower", "GREETING", "FILTER_REFUSED"): NO_LIMITS,
    Transition("follower", "NAMING", "FILTER_REFUSED"): NO_LIMITS,
    Transition("follower", "NAMING", "REFUSED"): NO_LIMITS,
    Transition("follower", "JOINING", "REFUSED"): "no hello is so late that the publisher has forgotten its id",
    Transition("follower", "LIVE", "REFUSED"): "a pull that is refused has not ended before",
    Transition("follower", "GREETING", "NOT_THERE"): "no reader begins after the number of an event",
    Transition("follower", "JOINING", "NOT_THERE"): "no reader begins after the number of an event",
    Transition("follower", "PULLING", "LOOKED_TOO_LATE"): "no history is so short that a reader of pushes is before it",
    Transition("follower", "PULLING", "OVERTAKEN"): "answers are complete before retention can overtake them",
    **{Transition("writer", state, "WITHDRAWN"): NO_GIVING_UP for state in ("OPENING", "JOINING", "OPEN")},
    **{Transition("writer", state, "GIVEN_UP"): NO_GIVING_UP
       for state in ("OPENING", "JOINING", "OPEN", "LEAVING", "WITHDRAWING")},
    **{Transition("writer", "WITHDRAWING", event): NO_GIVING_UP
       for event in ("NOTHING_LEFT", "SOMETHING_LEFT", "FAILED")},
    Transition("writer", "OPENING", "ANSWERED_UNDER"): "no simulated writer uses the capability of another",
    Transition("writer", "LEAVING", "LEFT_BY_EXCEPTION"): "no simulated program fails while it leaves",
    Transition("presence", "LOST", "OPENED"): "simulated streams release what a lost writer holds at once",
    Transition("completion", "ACTIVE", "RECORDED"): "no older copy of the catalog is put back in these runs",
}  # fmt: skip
"""What no run takes, and why. Most of it is taken by tests of that machine alone."""

RARE = {
    Transition("follower", state, event)
    for state, event in [
        ("GREETING", "RUN_ENDED"), ("NAMING", "RUN_ENDED"), ("JOINING", "RUN_ENDED"), ("PULLING", "RUN_ENDED"),
        ("GREETING", "UNFIT"), ("GREETING", "SILENCE"), ("JOINING", "SILENCE"), ("LIVE", "SILENCE"),
        ("WAITING", "REFUSED"), ("PULLING", "PUSHES_FAILED"), ("LIVE", "CHANGED_WITH_LOSS"),
    ]
} | {
    Transition(machine, state, event)
    for machine, state, event in [
        ("writer", "OPENING", "FAILED"), ("writer", "JOINING", "FAILED"), ("writer", "LEAVING", "FAILED"),
        ("writer", "LEAVING", "COMPLETED"), ("presence", "RELEASED", "OPENED"),
        ("presence", "PRESENT", "REPLACED"), ("presence", "LOST", "REPLACED"), ("presence", "LEFT", "REPLACED"),
        ("presence", "RELEASED", "REPLACED"), ("completion", "FINISHING", "LAST_FINISHED"),
        ("completion", "FINISHING", "RESTORED"), ("completion", "COMPLETE", "RESTORED"),
    ]
}  # fmt: skip
"""What fewer than one in ten of these runs take: a change that moves the draws may leave one of them out."""


def test_what_the_simulation_never_takes_is_what_is_declared() -> None:
    taken = {row for fixed, seeds in RUNS for seed in range(seeds) for row in simulate(seed, **fixed).transitions}
    never = set(never_taken(taken))
    print("never taken:", *sorted(never), sep="\n  ")
    assert never - RARE == set(NEVER)


def test_the_declared_rows_are_rows_of_a_table() -> None:
    assert RARE | set(NEVER) <= set(never_taken(()))


def test_tables_are_watched_only_meanwhile() -> None:
    with watched() as taken:
        assert all(table.watch is not None for table in TABLES.values())
    assert all(table.watch is None for table in TABLES.values())
    assert taken == set()


def test_a_run_is_replayed_with_the_same_transitions() -> None:
    assert simulate(3, **CHANGING).transitions == simulate(3, **CHANGING).transitions
