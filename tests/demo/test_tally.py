"""The demo's verdict: it accepts what is right and names every kind of wrong."""

from typing import Any

import pytest
from examples.demo.tally import (
    Join,
    Kill,
    Sums,
    Tally,
    check_bytes,
    check_early,
    check_kill,
    check_late,
    only,
)

HOURS = [2013010105, 2013010106, 2013010205, 2013010206, 2013010305, 2013010306]
TRUTH = {hour: {"JFK": Sums(2, 1, hour % 7)} for hour in HOURS}
JOIN = Join(complete=2, total=6, active=(2013010205,))


def tally(*hours: int) -> Tally:
    taken = Tally()
    for hour in hours:
        delays: list[Any] = [hour % 7, None]
        taken.add(hour, [{"origin": "JFK", "dep_delay": delay} for delay in delays])
    return taken


def test_what_is_right_is_accepted() -> None:
    assert check_early(TRUTH, tally(*HOURS)) == []
    assert check_late(TRUTH, tally(*HOURS[3:]), JOIN) == []


def test_sums_count_unknown_delays_as_flights_only() -> None:
    assert tally(HOURS[0]).hours == {HOURS[0]: {"JFK": Sums(2, 1, HOURS[0] % 7)}}


@pytest.mark.parametrize(
    ("taken", "word"),
    [
        (tally(*HOURS[:-1]), "never complete"),
        (tally(*HOURS, HOURS[0]), "twice"),
        (tally(*HOURS, 2013123123), "plain Spark says nothing"),
    ],
)
def test_wrong_sums_of_the_early_subscriber_are_named(taken: Tally, word: str) -> None:
    assert any(word in fault for fault in check_early(TRUTH, taken))


def test_a_single_wrong_number_is_named() -> None:
    taken = tally(*HOURS)
    taken.hours[HOURS[2]]["JFK"] = Sums(2, 1, 99)
    (fault,) = check_early(TRUTH, taken)
    assert fault.startswith("2013-01-02 05:00: delivered JFK (2, 1, 99)")


@pytest.mark.parametrize(
    ("taken", "join", "word"),
    [
        (tally(*HOURS[3:]), None, "no moment to join"),
        (tally(*HOURS[2:]), JOIN, "part of 2013-01-02 05:00 was out"),
        (tally(HOURS[3], HOURS[5]), JOIN, "2013-01-03 05:00 came after the join"),
        (tally(HOURS[5]), JOIN, "fewer than a quarter"),
        (tally(*HOURS[5:]), JOIN, "2013-01-03 05:00 was not under way"),
        (tally(*HOURS[3:]), JOIN._replace(complete=1), "not 30 to 70 %"),
        (tally(), JOIN, "fewer than a quarter"),
    ],
)
def test_what_the_late_subscriber_must_not_do_is_named(taken: Tally, join: Join | None, word: str) -> None:
    assert any(word in fault for fault in check_late(TRUTH, taken, join))


@pytest.mark.parametrize(
    ("kill", "back_after", "faults"),
    [
        (Kill("1", 3, 6, (2013010206,)), 0.5, []),
        (None, None, ["no publisher was killed"]),
        (Kill("1", 3, 6, (2013010206,)), None, ["the publisher that was killed did not come back"]),
        (Kill("1", 3, 6, ()), 0.5, ["the publisher was killed while no hour was under way"]),
    ],
)
def test_a_publisher_must_be_killed_within_an_hour_and_come_back(
    kill: Kill | None, back_after: float | None, faults: list[str]
) -> None:
    assert check_kill(kill, back_after) == faults


def test_a_subscriber_of_one_airport_has_that_ones_sums_and_its_hours_only() -> None:
    truth = {hour: {**sums, "LGA": Sums(3, 3, 9)} for hour, sums in TRUTH.items()}
    truth[HOURS[4]] = {"LGA": Sums(3, 3, 9)}  # nothing leaves JFK
    join = JOIN._replace(airport="JFK", ways=("relay:flights",))
    assert only(truth, None) == truth
    assert check_late(truth, tally(HOURS[3], HOURS[5]), join) == []
    assert any("2013-01-03 06:00 came after the join" in fault for fault in check_late(truth, tally(HOURS[3]), join))
    for ways in ((), ("direct",), ("direct", "relay:flights")):
        (fault,) = check_late(truth, tally(HOURS[3], HOURS[5]), join._replace(ways=ways))
        assert "did not read through a relay" in fault
    wrong = tally(HOURS[3], HOURS[5])
    wrong.hours[HOURS[3]]["LGA"] = Sums(3, 3, 9)  # it did not ask for it
    assert any("LGA (3, 3, 9), plain Spark says JFK" in fault for fault in check_late(truth, wrong, join))


@pytest.mark.parametrize(
    ("sent", "fault"),
    [(400, None), (500, None), (501, "sent 501 of 1,000 bytes"), (0, "sent 0 of"), (None, "not reported")],
)
def test_what_one_airport_takes_is_less_than_half_of_the_bytes(sent: int | None, fault: str | None) -> None:
    faults = check_bytes(sent, 1000)
    assert [found for found in faults if fault is None or fault not in found] == []
    assert len(faults) == (fault is not None)
