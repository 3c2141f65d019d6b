"""The checker finds every fault that is put into a good history, under the rule that names it, and nothing else."""

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.chaos.checker import RULES, check
from tests.chaos.history import NEMESIS, Entry, Phase

EPOCHS, WRITERS, SEGMENTS = 4, ("w1", "w2"), ("0", "1")
READERS = ("s1", "s2")
History = list[Entry]


def good() -> History:
    """Two writers, four epochs, two segments; one reader reads all, the other is killed and resumes."""
    found: History = []

    def add(actor: str, op: str, phase: Phase = Phase.INFO, life: int = 0, **data: Any) -> None:
        found.append(Entry(float(len(found)), actor, life, op, phase, data))

    for reader in READERS:
        add(reader, "join", since="start")
        add(reader, "ready", frontier=[0])
    seqs = dict.fromkeys(SEGMENTS, 0)
    add(NEMESIS, "stop", target="catalog")
    for time in range(EPOCHS):
        parts: dict[str, list[list[object]]] = {segment: [] for segment in SEGMENTS}
        for writer in WRITERS:
            for segment in SEGMENTS:
                for part in range(2):
                    record = f"{writer}/{time}/{segment}/{part}"
                    fields: dict[str, Any] = {"ids": [record], "digests": [part], "segment": segment, "time": time}
                    add(writer, "append", Phase.INVOKE, **fields)
                    add(writer, "append", Phase.OK, **fields, position=[1, seqs[segment]])
                    seqs[segment] += 1
                    parts[segment].append([record, part])
            to = time + 1 if time < EPOCHS - 1 else None
            add(writer, "leave", Phase.INVOKE, n=time, to=to)
            add(writer, "leave", Phase.OK, n=time, to=to)
        frontier = [time + 1] if time < EPOCHS - 1 else []
        for reader in READERS:
            life = int(reader == "s2" and time >= 2)
            if life and time == 2:
                add(reader, "join", life=1, since="cursor")
            add(reader, "epoch", life=life, time=time, frontier=frontier, parts=parts)
            add(reader, "save", life=life, frontier=frontier)
    add(NEMESIS, "over")
    for reader in READERS:
        life = int(reader == "s2")
        add(reader, "whole", life=life, times=list(range(EPOCHS)))
        add(reader, "end", life=life, frontier=[])
    return found


def place(history: History, actor: str, op: str, phase: Phase = Phase.INFO, skip: int = 0) -> int:
    found = [n for n, e in enumerate(history) if (e.actor, e.op, e.phase) == (actor, op, phase)]
    return found[skip]


def change(history: History, at: int, **data: object) -> None:
    history[at] = history[at]._replace(data={**history[at].data, **data})


def parts_of(history: History, at: int) -> dict[str, list[list[object]]]:
    """A copy of what an epoch holds, put in its place."""
    parts = {segment: [list(pair) for pair in part] for segment, part in history[at].data["parts"].items()}
    change(history, at, parts=parts)
    return parts


def again(history: History, at: int, **data: object) -> None:
    """An entry once more, directly behind itself."""
    entry = history[at]
    history.insert(at + 1, entry._replace(at=entry.at + 0.5, data={**entry.data, **data}))


def damaged(h: History, n: int) -> None:
    parts_of(h, place(h, "s1", "epoch", skip=n))["0"][1][1] = 99


def unknown(h: History, n: int) -> None:
    parts_of(h, place(h, "s1", "epoch", skip=n))["1"].append(["nobody/0", 0])


def wrong_segment(h: History, n: int) -> None:
    parts = parts_of(h, place(h, "s1", "epoch", skip=n))
    parts["1"].append(parts["0"].pop())


def twice_in_an_epoch(h: History, n: int) -> None:
    part = parts_of(h, place(h, "s1", "epoch", skip=n))["0"]
    part.append(part[0])


def twice_after_a_saved_cursor(h: History, n: int) -> None:
    again(h, place(h, "s2", "epoch", skip=n))


def swapped(h: History, n: int) -> None:
    parts_of(h, place(h, "s1", "epoch", skip=n))["0"][:2] = parts_of(h, place(h, "s1", "epoch", skip=n))["0"][1::-1]


def torn(h: History, n: int) -> None:
    parts_of(h, place(h, "s1", "epoch", skip=n))["1"].clear()


def given_and_aborted(h: History, n: int) -> None:
    at = place(h, "s2", "epoch", skip=n)
    h.insert(at + 1, Entry(h[at].at + 0.5, "s2", h[at].life, "aborted", Phase.INFO, {"time": h[at].data["time"]}))


def refused(h: History, n: int) -> None:
    at = place(h, "w1", "append", Phase.OK, skip=n)
    h[at] = h[at]._replace(phase=Phase.FAIL)


def never_left(h: History, n: int) -> None:
    for m, entry in enumerate(h):
        if entry.actor == "w2" and entry.op == "leave" and entry.data["n"] >= n:
            h[m] = entry._replace(phase=Phase.INVOKE if entry.phase is Phase.INVOKE else Phase.FAIL)


def not_given(h: History, n: int) -> None:
    del h[place(h, "s1", "epoch", skip=n)]


def silently_skipped(h: History, n: int) -> None:
    not_given(h, n)
    change(h, place(h, "s1", "whole"), times=[])


def frontier_back(h: History, n: int) -> None:
    at = place(h, "s1", "epoch", skip=n)
    h.insert(at + 1, Entry(h[at].at + 0.5, "s1", 0, "frontier", Phase.INFO, {"frontier": [n]}))


def back_behind_the_cursor(h: History, n: int) -> None:
    at = place(h, "s2", "join", skip=1)
    h.insert(at + 1, Entry(h[at].at + 0.5, "s2", 1, "ready", Phase.INFO, {"frontier": [n % 2]}))


def too_early(h: History, n: int) -> None:
    change(h, place(h, "s1", "epoch", skip=n), frontier=[n])


def accepted_after_completion(h: History, n: int) -> None:
    at = place(h, "w1", "append", Phase.INVOKE, skip=4 * n)
    h.insert(at, Entry(h[at].at - 0.5, "s2", 0, "frontier", Phase.INFO, {"frontier": [n + 1]}))


def wrong_extension(h: History, n: int) -> None:
    at, other = place(h, "s1", "epoch", skip=n % 3), place(h, "s1", "epoch", skip=n % 3 + 1)
    first, second = h[at], h[other]
    h[at], h[other] = first._replace(data=second.data), second._replace(data=first.data)


def two_owners(h: History, n: int) -> None:
    at = place(h, "w1", "append", Phase.OK, skip=4 * n)
    change(h, at, position=[2, h[at].data["position"][1]])


def one_position_for_two(h: History, n: int) -> None:
    at = place(h, "w2", "append", Phase.OK, skip=4 * n)
    change(h, at, position=h[place(h, "w1", "append", Phase.OK, skip=4 * n)].data["position"])


def no_end(h: History, n: int) -> None:
    del h[place(h, READERS[n % 2], "end")]


FAULTS: dict[Callable[[History, int], None], str] = {
    damaged: "invented",
    unknown: "invented",
    wrong_segment: "invented",
    twice_in_an_epoch: "duplicate",
    twice_after_a_saved_cursor: "duplicate",
    swapped: "order",
    torn: "atomic",
    given_and_aborted: "atomic",
    refused: "atomic",
    never_left: "left",
    not_given: "lost",
    silently_skipped: "silent",
    frontier_back: "back",
    back_behind_the_cursor: "back",
    too_early: "dishonest",
    accepted_after_completion: "dishonest",
    wrong_extension: "extension",
    two_owners: "owners",
    one_position_for_two: "owners",
    no_end: "unfinished",
}


def rules(history: History) -> set[str]:
    return {violation.rule for violation in check(history)}


def test_a_good_history() -> None:
    assert check(good()) == []


@pytest.mark.parametrize(("fault", "rule"), FAULTS.items(), ids=lambda value: getattr(value, "__name__", value))
@pytest.mark.parametrize("where", range(EPOCHS))
def test_one_fault_anywhere(fault: Callable[[History, int], None], rule: str, where: int) -> None:
    history = good()
    fault(history, where)
    assert rule in rules(history)


def test_two_readers_that_were_given_different_epochs() -> None:
    history = good()
    for index, entry in enumerate(history):  # nobody knows whether it was done, so either is right, but not both
        if entry.op == "append" and entry.phase is Phase.OK and entry.data["ids"] == ["w1/1/0/0"]:
            del history[index]
            break
    assert check(history) == []
    parts_of(history, place(history, "s2", "epoch", skip=1))["0"].pop(0)
    assert rules(history) == {"same"}


def test_an_abort_needs_a_cause() -> None:
    history = [entry for entry in good() if entry.op != "stop"]
    at = place(history, "s1", "epoch", skip=1)
    aborted = history[at]._replace(op="aborted", data={"time": 1})
    assert rules([*history[:at], aborted, *history[at + 1 :]]) == {"causeless"}
    asked = Entry(0.5, "w1", 0, "abort", Phase.INVOKE, {"time": 1})
    assert check([asked, *history[:at], aborted, *history[at + 1 :]]) == []


def test_the_death_of_a_publisher_with_a_log_on_disk_is_no_cause() -> None:
    history = good()
    at = place(history, "s1", "epoch", skip=1)
    history[at] = history[at]._replace(op="aborted", data={"time": 1})
    kill = Entry(0.1, NEMESIS, 0, "kill", Phase.INFO, {"target": "p0"})
    stored = kill._replace(op="stored", data={"targets": ["p0"]})
    without = [entry for entry in history if entry.op != "stop"]
    assert rules([kill, *without]) == set()
    assert rules([stored, kill, *without]) == {"causeless"}
    assert rules([stored, kill, kill._replace(data={"target": "p0/ingest"}), *without]) == set()


@pytest.mark.parametrize("op", ["told", "error"])
def test_what_a_log_on_disk_must_keep(op: str) -> None:
    entry = Entry(2.5, "s1" if op == "error" else "w1", 0, op, Phase.INFO, {"code": "history_truncated", "text": "x"})
    history = sorted([*good(), entry], key=lambda entry: entry.at)
    assert check(history) == []
    stored = Entry(0.1, NEMESIS, 0, "stored", Phase.INFO, {"targets": ["p0"]})
    assert rules([stored, *history]) == {"kept"}


def test_every_rule_has_a_fault() -> None:
    assert {*FAULTS.values(), "same", "kept", "causeless"} == set(RULES)


def test_what_memory_may_lose_and_what_not() -> None:
    history = good()
    at = place(history, "s1", "epoch", skip=1)
    for reader in READERS:
        parts_of(history, place(history, reader, "epoch", skip=1))["0"].clear()
    assert "atomic" in rules(history)
    lost = Entry(history[at].at - 0.1, NEMESIS, 0, "lost", Phase.INFO, {"segments": ["0"]})
    assert rules([*history[:at], lost, *history[at:]]) == set()
    elsewhere = lost._replace(data={"segments": ["1"]})
    assert "atomic" in rules([*history[:at], elsewhere, *history[at:]])
    # Told of the loss before it left the time: the epoch must be aborted, whoever is asked.
    leave = place(history, "w2", "leave", Phase.INVOKE, skip=1)
    told = Entry(history[leave].at - 0.1, "w2", 0, "told", Phase.INFO, {})
    early = lost._replace(at=history[leave].at - 0.2)
    assert "atomic" in rules([*history[:leave], early, told, *history[leave:]])


def test_a_gap_excuses_only_what_was_not_over_before_it() -> None:
    for at, found in ((place(good(), "s1", "epoch", skip=1), False), (place(good(), "s1", "epoch", skip=2), True)):
        history = good()
        # Nobody was told of the loss, so that no record counts as forgotten.
        lost = Entry(history[at].at - 0.1, NEMESIS, 0, "lost", Phase.INFO, {"segments": ["elsewhere"]})
        silently_skipped(history, 1)
        assert ("silent" in rules(sorted([*history, lost], key=lambda entry: entry.at))) == found


@pytest.mark.parametrize("saved", [False, True])
def test_what_a_killed_reader_knew_to_be_over_counts_only_if_its_cursor_says_so(saved: bool) -> None:
    history = good()
    epoch = place(history, "s2", "epoch", skip=1)
    history[epoch] = history[epoch]._replace(op="frontier", data={"frontier": [2]})  # it came, and was not given yet
    if not saved:
        del history[place(history, "s2", "save", skip=1)]
    change(history, place(history, "s2", "whole"), times=[])
    join = place(history, "s2", "join", skip=1)
    lost = Entry(history[join].at + 0.1, NEMESIS, 0, "lost", Phase.INFO, {"segments": ["elsewhere"]})
    assert ("silent" in rules([*history[: join + 1], lost, *history[join + 1 :]])) == saved


def test_a_redelivery_after_a_kill_is_no_duplicate() -> None:
    history = good()
    save = place(history, "s2", "save", skip=1)
    del history[save]  # killed before it was written down
    join = place(history, "s2", "join", skip=1)
    epoch = history[place(history, "s2", "epoch", skip=1)]
    repeated = epoch._replace(at=history[join].at + 0.5, life=1)
    assert check([*history[: join + 1], repeated, *history[join + 1 :]]) == []


@given(st.permutations(range(len(FAULTS))), st.integers(0, EPOCHS - 1), st.data())
def test_a_fault_is_found_however_actors_interleave(order: list[int], where: int, data: st.DataObject) -> None:
    """Entries of different actors that nothing orders may stand otherwise: two readers, here, swap their times."""
    fault, rule = list(FAULTS.items())[order[0]]
    history = good()
    fault(history, where)
    renamed: dict[str, str] = dict(zip(READERS, data.draw(st.permutations(READERS)), strict=True))
    history = [entry._replace(actor=renamed.get(entry.actor, entry.actor)) for entry in history]
    assert rule in rules(history)
