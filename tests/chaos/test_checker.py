"""The checker finds every fault that is put into a good history, under the rule that names it, and nothing else."""

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.chaos.checker import RULES, check, counts, faults
from tests.chaos.history import NEMESIS, Entry, Phase
from tests.chaos.story import reaches

EPOCHS, WRITERS, SEGMENTS = 4, ("w1", "w2"), ("0", "1")
READERS = ("s1", "s2")
History = list[Entry]


def good() -> History:
    """Two writers, four epochs, two segments; one reader reads all, the other is killed and resumes."""
    found: History = []
    saves = dict.fromkeys(READERS, 0)

    def add(actor: str, op: str, phase: Phase = Phase.INFO, life: int = 0, **data: Any) -> None:
        found.append(Entry(float(len(found)), actor, life, op, phase, data))

    for reader in READERS:
        add(reader, "join", since="start")
        add(reader, "ready", frontier=[0])
        add(reader, "whole", frontier=[0], times=[])
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
            held = [time + 1] if time < EPOCHS - 1 else []
            add(writer, "leave", Phase.INVOKE, n=time, held=held)
            add(writer, "leave", Phase.OK, n=time, held=held)
        frontier = [time + 1] if time < EPOCHS - 1 else []
        for reader in READERS:
            life = int(reader == "s2" and time >= 2)
            if life and time == 2:
                add(reader, "join", life=1, since="cursor", n=saves[reader])
                add(reader, "ready", life=1, frontier=[time])
            add(reader, "epoch", life=life, time=time, frontier=frontier, parts=parts)
            add(reader, "whole", life=life, frontier=frontier, times=[time])
            saves[reader] += 1
            add(reader, "save", life=life, n=saves[reader], frontier=frontier)
    add(NEMESIS, "over")
    for reader in READERS:
        life = int(reader == "s2")
        add(reader, "whole", life=life, frontier=[], times=list(range(2 * life, EPOCHS)))
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


def in_another_order_than_logged(h: History, n: int) -> None:
    """Records of two writers, whose positions say which came first."""
    part = parts_of(h, place(h, "s1", "epoch", skip=n))["0"]
    part[:] = part[2:] + part[:2]


def in_another_order_than_for_others(h: History, n: int) -> None:
    """Their positions are not known."""
    in_another_order_than_logged(h, n)
    unacknowledged(h, n)


def unacknowledged(h: History, n: int) -> None:
    h[:] = [e for e in h if not (e.op == "append" and e.phase is Phase.OK and e.data["time"] == n)]


def given_in_two_parts(h: History, n: int) -> None:
    parts = parts_of(h, place(h, "s1", "epoch", skip=n))
    again(h, place(h, "s1", "epoch", skip=n), parts={"1": parts.pop("1")})


def not_asked_for(h: History, n: int) -> None:
    change(h, place(h, "s1", "join"), times=[n + 1])


def torn(h: History, n: int) -> None:
    parts_of(h, place(h, "s1", "epoch", skip=n))["1"].clear()


def torn_for_everybody(h: History, n: int) -> None:
    """What a publisher takes with it that had no log: nothing excuses it."""
    for reader in READERS:
        parts_of(h, place(h, reader, "epoch", skip=n))["0"].pop()
    lose(h, place(h, "s1", "epoch", skip=n), "0")


def half_a_batch(h: History, n: int) -> None:
    """One call with two records, of which one arrives; its outcome is unknown."""
    at = place(h, "w1", "append", Phase.INVOKE, skip=4 * n)
    change(h, at, ids=[*h[at].data["ids"], "w1/more"], digests=[0, 1])
    del h[at + 1]


def aborted_entry(h: History, at: int, time: int) -> Entry:
    """Told directly after another entry, by the same actor."""
    return h[at]._replace(at=h[at].at + 0.3, op="aborted", data={"time": time, "frontier": h[at].data["frontier"]})


def given_and_aborted(h: History, n: int) -> None:
    at = place(h, "s2", "epoch", skip=n)
    h.insert(at + 1, aborted_entry(h, at, n))


def aborted_in_place_of(h: History, actor: str, n: int) -> int:
    """Nothing of an epoch is given, and that is told; where that stands."""
    at = place(h, actor, "epoch", skip=n)
    h[at] = aborted_entry(h, at, n)._replace(at=h[at].at)
    for m, entry in enumerate(h):
        if entry.actor == actor and entry.op == "whole":
            change(h, m, times=[time for time in entry.data["times"] if time != n])
    return at


def aborted_twice(h: History, n: int) -> None:
    at = aborted_in_place_of(h, "s2", n)
    h.insert(at + 1, aborted_entry(h, at, n))


def aborted_again_after_a_saved_cursor(h: History, n: int) -> None:
    at = aborted_in_place_of(h, "s2", n % 2)
    join = place(h, "s2", "join", skip=1)
    h.insert(join + 2, aborted_entry(h, at, n % 2)._replace(at=h[join].at + 0.7, life=1))


def given_to_one_who_joined_after_a_reader_was_told(h: History, n: int) -> None:
    at = aborted_in_place_of(h, "s1", n)
    h[at], first = h[at]._replace(at=-1.0), h[at]
    h.insert(0, h[at])
    del h[h.index(first._replace(at=-1.0), 1)]
    h.insert(0, Entry(-2.0, "s1", 0, "join", Phase.INFO, {"since": "start"}))


def given_to_one_who_joined_after_a_writer_was_told(h: History, n: int) -> None:
    told = {"ids": ["w1/refused"], "digests": [0], "segment": "0", "time": n}
    fields = {**told, "code": "epoch_aborted"}
    h.insert(0, Entry(-1.0, "w1", 0, "append", Phase.FAIL, fields))
    h.insert(0, Entry(-2.0, "w1", 0, "append", Phase.INVOKE, told))


def given_to_one_who_joined_after_an_abort(h: History, n: int) -> None:
    h.insert(0, Entry(-1.0, "w1", 0, "abort", Phase.OK, {"time": n}))
    h.insert(0, Entry(-2.0, "w1", 0, "abort", Phase.INVOKE, {"time": n}))


def aborted_for_one_alone(h: History, n: int) -> None:
    """A writer was killed in the middle of it, so that the epoch may be aborted; but then for everybody."""
    aborted_in_place_of(h, "s1", n)
    at = place(h, "w1", "append", Phase.OK, skip=4 * n)
    h.insert(at + 1, Entry(h[at].at + 0.5, NEMESIS, 0, "kill writer", Phase.INFO, {"target": "w1"}))


def seen_whole_before_it_was_complete(h: History, n: int) -> None:
    """Asked as the reader joined."""
    change(h, place(h, "s1", "whole"), times=[n])


def seen_whole_and_aborted(h: History, n: int) -> None:
    """Nothing of it was acknowledged or given, so that only the word is wrong."""
    for reader in READERS:
        aborted_in_place_of(h, reader, n)
    unacknowledged(h, n)
    change(h, place(h, "s1", "whole", skip=n + 1), times=[n])


def seen_whole_by_one_that_was_told_before_it_was_killed(h: History, n: int) -> None:
    seen_whole_and_aborted(h, n % 2)
    change(h, place(h, "s1", "whole", skip=n % 2 + 1), times=[])
    change(h, place(h, "s2", "whole", skip=4), times=[n % 2])


def seen_whole_and_aborted_later(h: History, n: int) -> None:
    """The word was given before, by the same subscription."""
    at = aborted_in_place_of(h, "s1", n)
    h.insert(at, h[at]._replace(at=h[at].at - 0.1, op="whole", data={"frontier": [n + 1], "times": [n]}))


def seen_whole_and_aborted_for_another(h: History, n: int) -> None:
    """Of which nobody has anything."""
    aborted_in_place_of(h, "s1", n)
    del h[place(h, "s2", "epoch", skip=n)]
    unacknowledged(h, n)


def aborted_and_not_reported_to_all(h: History, n: int) -> None:
    seen_whole_and_aborted_for_another(h, n)
    claims_nothing(h, "s2")


def seen_whole_after_a_gap(h: History, n: int) -> None:
    """Nothing of it came, which may be: its publisher lost its memory. But then it was not seen."""
    lose(h, place(h, "s1", "epoch", skip=n), "0")
    del h[place(h, "s1", "epoch", skip=n)]


def seen_whole_by_all_and_given_to_none(h: History, n: int) -> None:
    for reader in READERS:
        del h[place(h, reader, "epoch", skip=n)]
    lose(h, 0, "0")


def seen_whole_without_a_record(h: History, n: int) -> None:
    """Which was never acknowledged, but the other one was given it."""
    at = place(h, "w2", "append", Phase.OK, skip=4 * n)
    (record,) = h[at].data["ids"]
    del h[at]
    part = parts_of(h, place(h, "s1", "epoch", skip=n))["0"]
    part.remove([record, 0])


def lose(h: History, at: int, *segments: str) -> None:
    """Directly before an entry, the publisher of these ended with all that it remembered."""
    lost = {"target": "p0", "segments": list(segments)}
    h.insert(at, Entry(h[at].at - 0.05, NEMESIS, 0, "lost", Phase.INFO, lost))


def refused(h: History, n: int) -> None:
    at = place(h, "w1", "append", Phase.OK, skip=n)
    h[at] = h[at]._replace(phase=Phase.FAIL)


def never_left(h: History, n: int) -> None:
    for m, entry in enumerate(h):
        if entry.actor == "w2" and entry.op == "leave" and entry.data["n"] >= n:
            h[m] = entry._replace(phase=Phase.INVOKE if entry.phase is Phase.INVOKE else Phase.FAIL)


def left_after_it_was_given(h: History, n: int) -> None:
    for m, entry in enumerate(h):
        if entry.actor == "w2" and entry.op == "leave":
            h[m] = entry._replace(at=entry.at + 1000)


def left_by_an_earlier_life_only(h: History, n: int) -> None:
    for m, entry in enumerate(h):
        if entry.actor == "w2" and entry.op == "append" and entry.data["time"] == n:
            h[m] = entry._replace(life=1)


def finished_by_a_life_that_could_not(h: History, n: int) -> None:
    """The next life of a writer never came to hold the time."""
    for m, entry in enumerate(h):
        if entry.actor == "w2" and entry.op == "leave" and entry.data["n"] >= n:
            h[m] = entry._replace(life=1)
    h.insert(0, Entry(-1.0, "w2", 1, "holds", Phase.INFO, {"times": [n + 1]}))


def not_given(h: History, n: int) -> None:
    del h[place(h, "s1", "epoch", skip=n)]


def silently_skipped(h: History, n: int) -> None:
    not_given(h, n)
    claims_nothing(h, "s1")


def silently_skipped_by_one_that_saves_nothing(h: History, n: int) -> None:
    silently_skipped(h, n)
    h[:] = [entry for entry in h if (entry.actor, entry.op) != ("s1", "save")]


def claims_nothing(h: History, reader: str) -> None:
    for m, entry in enumerate(h):
        if entry.actor == reader and entry.op == "whole":
            change(h, m, times=[])


def skipped_by_the_cursor(h: History, n: int) -> None:
    """An interrupt meets an epoch that was fetched, and not handed over: the cursor that is saved passes it."""
    del h[place(h, "s2", "epoch", skip=n)]
    claims_nothing(h, "s2")


def skipped_by_one_that_began_again(h: History, n: int) -> None:
    """It never came to the end, but its cursor says what it had."""
    skipped_by_the_cursor(h, n)
    end = place(h, "s2", "end")
    h[end] = h[end]._replace(op="join", data={"since": "start"})


def begun_after_the_gap_was_over(h: History, n: int) -> None:
    """A reader that is back at a publisher is given what begins after that (E15)."""
    lose(h, place(h, "s1", "join"), "0")
    silently_skipped(h, n)


def frontier_back(h: History, n: int) -> None:
    at = place(h, "s1", "epoch", skip=n)
    h.insert(at + 1, Entry(h[at].at + 0.5, "s1", 0, "frontier", Phase.INFO, {"frontier": [n]}))


def back_behind_the_cursor(h: History, n: int) -> None:
    at = place(h, "s2", "join", skip=1)
    h.insert(at + 1, Entry(h[at].at + 0.1, "s2", 1, "ready", Phase.INFO, {"frontier": [n % 2]}))


def too_early(h: History, n: int) -> None:
    change(h, place(h, "s1", "epoch", skip=n), frontier=[n])


def accepted_after_completion(h: History, n: int) -> None:
    at = place(h, "w1", "append", Phase.INVOKE, skip=4 * n)
    h.insert(at, Entry(h[at].at - 0.5, "s2", 0, "frontier", Phase.INFO, {"frontier": [n + 1]}))


def accepted_by_one_that_forgot(h: History, n: int) -> None:
    """The same, after the publisher came back without its memory: what was told holds (E11)."""
    accepted_after_completion(h, n)
    lose(h, place(h, "w1", "append", Phase.INVOKE, skip=4 * n), *SEGMENTS)


def wrong_extension(h: History, n: int) -> None:
    at, other = place(h, "s1", "epoch", skip=n % 3), place(h, "s1", "epoch", skip=n % 3 + 1)
    first, second = h[at], h[other]
    h[at], h[other] = first._replace(data=second.data), second._replace(data=first.data)


def two_owners(h: History, n: int) -> None:
    """The first one goes on after the second one has acknowledged, to another writer."""
    at = place(h, "w1", "append", Phase.OK, skip=4 * n + 3)
    change(h, at, position=[2, h[at].data["position"][1]])
    for m, entry in enumerate(h[at + 1 :], at + 1):
        if entry.actor == "w1" and entry.op == "append" and entry.phase is Phase.OK:
            change(h, m, position=[2, entry.data["position"][1]])


def acknowledged_before_an_earlier_one(h: History, n: int) -> None:
    """Both by the same publisher."""
    first, second = (place(h, "w1", "append", Phase.OK, skip=4 * n + k) for k in (0, 1))
    one, other = (h[at].data["position"] for at in (first, second))
    change(h, first, position=other)
    change(h, second, position=one)


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
    in_another_order_than_logged: "order",
    in_another_order_than_for_others: "same",
    given_in_two_parts: "duplicate",
    not_asked_for: "invented",
    torn: "atomic",
    torn_for_everybody: "atomic",
    half_a_batch: "atomic",
    refused: "atomic",
    given_and_aborted: "once",
    aborted_twice: "once",
    aborted_again_after_a_saved_cursor: "once",
    given_to_one_who_joined_after_a_reader_was_told: "final",
    given_to_one_who_joined_after_a_writer_was_told: "final",
    given_to_one_who_joined_after_an_abort: "final",
    aborted_for_one_alone: "agree",
    seen_whole_and_aborted_for_another: "agree",
    aborted_and_not_reported_to_all: "silent",
    never_left: "left",
    left_after_it_was_given: "left",
    left_by_an_earlier_life_only: "left",
    finished_by_a_life_that_could_not: "left",
    not_given: "whole",
    seen_whole_before_it_was_complete: "whole",
    seen_whole_and_aborted: "whole",
    seen_whole_by_one_that_was_told_before_it_was_killed: "whole",
    seen_whole_and_aborted_later: "whole",
    seen_whole_after_a_gap: "whole",
    seen_whole_by_all_and_given_to_none: "whole",
    seen_whole_without_a_record: "whole",
    silently_skipped: "silent",
    silently_skipped_by_one_that_saves_nothing: "silent",
    skipped_by_the_cursor: "silent",
    skipped_by_one_that_began_again: "silent",
    begun_after_the_gap_was_over: "silent",
    frontier_back: "back",
    back_behind_the_cursor: "back",
    too_early: "dishonest",
    accepted_after_completion: "dishonest",
    accepted_by_one_that_forgot: "dishonest",
    wrong_extension: "extension",
    two_owners: "owners",
    acknowledged_before_an_earlier_one: "owners",
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
    assert rules(history) == {"same", "whole"}
    lose(history, place(history, "s2", "epoch", skip=1), "0")
    assert rules(history) == {"same", "whole"}, "no loss of memory excuses it"


def test_a_reader_that_joins_after_a_loss_gets_no_report_of_epochs_that_were_lost_before_they_began() -> None:
    history = good()
    joined = place(history, "s1", "join")
    lose(history, joined, "0")
    silently_skipped(history, 1)
    assert "silent" in rules(history)
    first = next(entry for entry in history if entry.op == "append" and entry.data["time"] == 1)
    asked = {**first.data, "ids": ["w1/9"], "digests": [0], "segment": "0"}
    refused = [
        Entry(first.at - 0.002, "w1", 9, "append", Phase.INVOKE, asked),
        Entry(first.at - 0.001, "w1", 9, "append", Phase.FAIL, {**asked, "code": "epoch_aborted"}),
    ]
    assert "silent" not in rules(with_entries(history, *refused))
    assert "silent" in rules(with_entries(history, refused[0], refused[1]._replace(data={**asked, "code": "x"})))


def with_entries(history: History, *entries: Entry) -> History:
    return sorted([*history, *entries], key=lambda entry: entry.at)


def aborted_for_all(n: int) -> History:
    history = good()
    for reader in READERS:
        aborted_in_place_of(history, reader, n)
    return history


def test_an_abort_that_was_reported_to_one_reader_only() -> None:
    """A writer was killed, long before; a gap of that reader may excuse it, and nothing else."""
    history = good()
    at = aborted_in_place_of(history, "s2", 0)
    kill = Entry(0.5, NEMESIS, 0, "kill writer", Phase.INFO, {"target": "w1"})
    assert rules(with_entries(history, kill)) == {"agree", "causeless"}
    lose(history, at, "0")
    assert rules(with_entries(history, kill)) == set()


def failed(actor: str, code: str) -> Entry:
    return Entry(0.0, actor, 0, "error", Phase.INFO, {"code": code, "text": "x"})


def done(op: str, *targets: str) -> Entry:
    return Entry(0.0, NEMESIS, 0, op, Phase.INFO, {"targets": targets})


CAUSES: dict[str, tuple[str, Entry]] = {
    "it is given up": ("w1", failed("w1", "writer_lost")),
    "its appends are lost": ("w2", failed("w2", "appends_lost")),
    "the others finish before it hears of that": ("w1", failed("w1", "stream_complete")),
    "it ends its session by an exception": ("w1", failed("w1", "timed_out")),
    "it is killed": ("w1", Entry(0.0, NEMESIS, 0, "kill writer", Phase.INFO, {"target": "w1"})),
    "it is killed with others": ("w2", done("kill publisher and writers", "p0", "w2")),
}
NO_CAUSES: dict[str, Entry] = {
    "a writer is told of the abort": failed("w1", "epoch_aborted"),
    "it has left": failed("w1", "capability"),
    "it stands still": done("stop actor", "w1"),
    "its network is cut": done("cut", "p0/ingest"),
    "a reader fails": failed("s1", "unavailable"),
    "a publisher is killed that loses nothing": done("kill publisher", "p0"),
    "the catalog is killed": done("kill catalog", "catalog"),
}


def between(history: History, writer: str, n: int) -> tuple[float, float]:
    """When a writer first appended at an epoch, and when it had left it."""
    first, left = place(history, writer, "append", Phase.INVOKE, 4 * n), place(history, writer, "leave", Phase.OK, n)
    return history[first].at, history[left].at


@pytest.mark.parametrize("cause", CAUSES)
@pytest.mark.parametrize("n", range(EPOCHS))
def test_a_lost_writer_aborts_what_it_appended_at_and_has_not_left(cause: str, n: int) -> None:
    writer, entry = CAUSES[cause]
    history = aborted_for_all(n)
    assert rules(history) == {"causeless"}
    first, left = between(history, writer, n)
    for at, found in ((first - 0.5, {"causeless"}), (left - 0.5, set()), (left + 0.5, {"causeless"})):
        assert rules(with_entries(history, entry._replace(at=at))) == found, at
    lost = entry._replace(at=left - 0.5)
    moved = [Entry(left - 0.8, writer, 0, "leave", phase, {"n": 90, "held": [n]}) for phase in (Phase.INVOKE, Phase.OK)]
    assert rules(with_entries(history, *moved, lost)) == set(), "it did not leave that epoch"
    before = [Entry(0.1, writer, 0, "leave", phase, {"n": 91, "held": [n + 1]}) for phase in (Phase.INVOKE, Phase.OK)]
    assert rules(with_entries(history, *before, lost)) == set(), "it was given it again"
    earlier = [entry._replace(life=-1, data={"n": 92, "held": [n + 1]}) for entry in moved]
    assert rules(with_entries(history, *earlier, lost)) == set(), "an earlier life left it, not the one that appended"


def test_a_writer_that_was_lost_after_the_abort_was_reported_is_no_cause() -> None:
    history = aborted_for_all(1)
    told = history[place(history, "s2", "aborted")].at
    late = {"ids": ["w1/late"], "digests": [0], "segment": "0", "time": 1}
    append = Entry(told + 0.3, "w1", 0, "append", Phase.INVOKE, late)
    assert rules(with_entries(history, append, failed("w1", "writer_lost")._replace(at=told + 0.5))) == {"causeless"}


@pytest.mark.parametrize("cause", NO_CAUSES)
@pytest.mark.parametrize("writer", WRITERS)
def test_what_aborts_nothing_by_itself(cause: str, writer: str) -> None:
    history = aborted_for_all(1)
    _, left = between(history, writer, 1)
    assert rules(with_entries(history, NO_CAUSES[cause]._replace(at=left - 0.5))) == {"causeless"}


def test_an_abort_that_a_writer_asked_for() -> None:
    history = aborted_for_all(1)
    asked = Entry(0.5, "w1", 0, "abort", Phase.INVOKE, {"time": 1})
    assert check(with_entries(history, asked)) == []
    assert rules(with_entries(history, asked._replace(data={"time": 2}))) == {"causeless"}
    assert rules(with_entries(history, asked._replace(at=1000.0))) == {"causeless"}


def test_a_writer_that_began_again_was_lost() -> None:
    history = aborted_for_all(1)
    leave = place(history, "w1", "leave", Phase.OK, skip=1)
    for m, entry in enumerate(history[leave - 1 :], leave - 1):
        if entry.actor == "w1":
            history[m] = entry._replace(life=1)
    assert rules(history) == set()


def test_a_writer_may_hear_later_than_a_reader_that_it_was_lost() -> None:
    """Its connection was blocked; but it cannot have left the epoch at every segment meanwhile."""
    history = aborted_for_all(1)
    told = history[place(history, "s2", "aborted")].at
    heard = failed("w1", "writer_lost")._replace(at=told + 0.5)
    assert rules(with_entries(history, heard)) == {"causeless"}
    del history[place(history, "w1", "leave", Phase.OK, skip=1)]
    assert rules(history) == {"causeless"}
    assert rules(with_entries(history, heard)) == set()
    appends = [entry for entry in history if (entry.actor, entry.op, entry.data.get("time")) == ("w1", "append", 1)]
    only_later = [entry for entry in history if entry not in appends]
    assert rules(with_entries(only_later, heard)) == {"causeless"}, "it had appended nothing there"


def after_a_loss(n: int, lost: str = "0", refusing: str = "") -> History:
    """Epoch `n` is aborted; a segment lost its memory before epoch 2, and both readers are back before that begins.

    `refusing`: which segment acknowledges nothing at epoch `n`.
    """
    history = aborted_for_all(n)
    for m, entry in reversed(list(enumerate(history))):
        if entry.op == "append" and entry.phase is Phase.OK and entry.data["time"] >= 2:
            change(history, m, position=[2, entry.data["position"][1]])
            if (entry.data["time"], entry.data["segment"]) == (n, refusing):
                del history[m]
    begun = place(history, "w1", "append", Phase.INVOKE, skip=8)
    at = history[begun].at
    lose(history, begun, lost)
    joins = [Entry(at - 0.04, reader, 0, "join", Phase.INFO, {"since": "cursor", "n": 2}) for reader in READERS]
    ready = [Entry(at - 0.03, reader, 0, "ready", Phase.INFO, {"frontier": [2]}) for reader in READERS]
    return with_entries(history, *joins, *ready)


def test_a_loss_of_memory_aborts_what_the_next_publisher_accepts_nothing_of() -> None:
    """E11: the times that it aborts are downward closed, and some of them begin only after it."""
    assert rules(after_a_loss(1)) == {"causeless"}, "it came later"
    assert rules(after_a_loss(2)) == {"causeless"}, "the next one accepted something there"
    assert rules(after_a_loss(3, refusing="0")) == {"causeless"}, "it accepted something before"
    assert rules(after_a_loss(2, refusing="0")) == set()
    assert rules(after_a_loss(2, lost="1", refusing="0")) == {"causeless"}, "another one refused it"
    not_back = [entry for entry in after_a_loss(2) if not (entry.op == "ready" and entry.at > 50)]
    assert rules(not_back) == set(), "a gap took it from both"


@pytest.mark.parametrize("incarnation", [1, 2])
def test_what_the_lost_publisher_has_acknowledged_says_nothing_of_the_next(incarnation: int) -> None:
    """An acknowledgement may be on its way at the loss, or be the old publisher's: one that is stopped and goes on."""
    history = after_a_loss(2, refusing="0")
    (loss,) = (entry for entry in history if entry.op == "lost")
    record = {"ids": ["w1/more"], "digests": [0], "segment": "0", "time": 1}  # which says nothing of a gap at 2
    invoked = Entry(loss.at - 0.01, "w1", 0, "append", Phase.INVOKE, record)
    done = Entry(loss.at + 0.01, "w1", 0, "append", Phase.OK, {**record, "position": [incarnation, 99]})
    assert "causeless" not in rules(with_entries(history, invoked, done))
    after = invoked._replace(at=loss.at + 0.005)
    assert ("causeless" in rules(with_entries(history, after, done))) == (incarnation == 2)


def test_a_publisher_that_ends_in_order_aborts_before_it_is_gone() -> None:
    history = aborted_for_all(1)
    first, last = (history[place(history, reader, "aborted")].at for reader in READERS)
    end = Entry(first - 0.2, NEMESIS, 0, "end publisher", Phase.INFO, {"target": "p0"})
    lost = Entry(last + 5.0, NEMESIS, 0, "lost", Phase.INFO, {"target": "p0", "segments": ["0"]})
    assert rules(with_entries(history, end, lost)) == set()
    assert rules(with_entries(history, end)) == {"causeless"}
    assert rules(with_entries(history, end._replace(at=last + 0.1), lost)) == {"causeless"}
    assert rules(with_entries(history, end, lost._replace(data={"target": "p1", "segments": ["0"]}))) == {"causeless"}
    assert rules(with_entries(history, end, lost._replace(data={"segments": ["0"]}))) == set(), "it says nobody's name"


def given_up_in_silence() -> History:
    """As a round had it: nothing was hurt yet, but the proxies had no time, and a publisher heard nothing of w1."""
    history: History = []

    def add(at: float, actor: str, op: str, phase: Phase = Phase.INFO, **data: Any) -> None:
        history.append(Entry(100.0 + at, actor, 0, op, phase, data))

    lost: dict[str, Any] = {"ids": ["w1/0"], "digests": [1], "segment": "2", "time": 0}
    one: dict[str, Any] = {"ids": ["w1/1"], "digests": [2], "segment": "0", "time": 1}
    other: dict[str, Any] = {"ids": ["w2/0"], "digests": [3], "segment": "0", "time": 0}
    add(0.0, "s1", "join", since="start")
    add(5.0, "w1", "append", Phase.INVOKE, **lost)
    add(5.6, "w1", "error", code="writer_lost", text="nothing was heard of writer 'w1' for 3 s")
    add(5.7, "w1", "leave", Phase.INVOKE, n=1, held=[1])
    add(5.8, "s1", "ready", frontier=[0])
    add(5.9, "w1", "leave", Phase.OK, n=1, held=[1])
    add(6.0, "w1", "append", Phase.INVOKE, **one)
    add(6.1, "w2", "append", Phase.INVOKE, **other)
    add(6.2, "w1", "append", Phase.OK, **one, position=[1, 0])
    add(6.3, "w2", "append", Phase.OK, **other, position=[1, 1])
    add(6.4, "w2", "leave", Phase.INVOKE, n=1, held=[])
    add(6.5, "w2", "leave", Phase.OK, n=1, held=[])
    add(6.6, "s1", "aborted", time=0, frontier=[1])
    add(6.7, "s1", "save", n=1, frontier=[1])
    add(6.8, NEMESIS, "interrupt reader", target="b1")
    add(6.9, NEMESIS, "over")
    add(7.0, "w1", "leave", Phase.INVOKE, n=2, held=[])
    add(7.1, "w1", "leave", Phase.OK, n=2, held=[])
    add(7.2, "s1", "epoch", time=1, frontier=[], parts={"0": [["w1/1", 2]]})
    add(7.3, "s1", "save", n=2, frontier=[])
    add(7.4, "s1", "end", frontier=[])
    return history


def test_a_writer_that_was_given_up_in_silence_is_a_cause() -> None:
    history = given_up_in_silence()
    assert check(history) == []
    assert rules([entry for entry in history if entry.op != "error"]) == {"causeless"}


STALLS = {
    "none": ([], False),
    "of the proxies": ([(NEMESIS, 105.5, 8.0)], True),
    "of the writer": ([("w1", 105.7, 8.0)], True),
    "of somebody else": ([("w2", 105.5, 8.0)], False),
    "too short": ([(NEMESIS, 105.5, 3.0)], False),
    "too long ago": ([(NEMESIS, 90.0, 50.0)], False),
    "one after the other": ([("w1", 95.0, 4.0), (NEMESIS, 99.0, 4.0)], True),
    "of both at the same time": ([("w1", 99.0, 4.0), (NEMESIS, 99.0, 4.0)], False),
}


@pytest.mark.parametrize("stalls", STALLS)
def test_a_writer_that_nothing_hurts_is_not_given_up(stalls: str) -> None:
    """Unless its own loop, or that of the proxies, stood still for most of the time-out."""
    lines, excused = STALLS[stalls]
    late = [Entry(at, actor, 0, "stalled", Phase.INFO, {"seconds": seconds}) for actor, at, seconds in lines]
    spared = Entry(99.9, NEMESIS, 0, "spared", Phase.INFO, {"targets": ["w1", "w2"], "seconds": 15.0})
    history = with_entries(given_up_in_silence(), *late, spared)
    assert rules(history) == (set() if excused else {"kept"})
    assert counts(history)["stalls"] == sum(actor == NEMESIS for actor, _, _ in lines)
    assert set(faults(history)) == {"interrupt reader"}
    otherwise = [
        entry._replace(data={**entry.data, "code": "timed_out"}) if entry.op == "error" else entry for entry in history
    ]
    assert rules(otherwise) == set()
    others = with_entries(history, spared._replace(at=99.95, data={"targets": ["w2"], "seconds": 15.0}))
    assert rules([entry for entry in others if entry != spared]) == set()


@pytest.mark.parametrize("op", ["told", "error"])
def test_what_a_log_on_disk_must_keep(op: str) -> None:
    entry = Entry(2.5, "s1" if op == "error" else "w1", 0, op, Phase.INFO, {"code": "history_truncated", "text": "x"})
    history = sorted([*good(), entry], key=lambda entry: entry.at)
    assert check(history) == []
    stored = Entry(0.1, NEMESIS, 0, "stored", Phase.INFO, {"targets": ["p0"]})
    assert rules([stored, *history]) == {"kept"}


def test_every_rule_has_a_fault() -> None:
    assert {*FAULTS.values(), "same", "kept", "causeless"} == set(RULES)


def test_a_live_reader_keeps_what_it_was_given_and_one_that_joins_later_gets_the_abort() -> None:
    """E11 (d): the reader that was told had not saved that it was given the epoch."""
    history = good()
    del history[place(history, "s2", "save", skip=1)]
    join = place(history, "s2", "join", skip=1)
    change(history, join, n=1)
    change(history, join + 1, frontier=[1])
    lose(history, join, "0")
    join += 1
    told = history[place(history, "s2", "epoch", skip=1)]._replace(at=history[join].at + 0.5, life=1, op="aborted")
    history.insert(join + 2, told._replace(data={"time": 1, "frontier": [2]}))
    assert check(history) == []
    end = place(history, "s1", "end")
    late = [history[n]._replace(actor="s3") for n in (0, 1)]
    given = history[place(history, "s1", "epoch", skip=1)]
    for number, entry in enumerate([*late, *[given._replace(actor="s3")]]):
        history.insert(end + number, entry._replace(at=history[end - 1].at + 0.1 * (number + 1)))
    assert rules(history) == {"unfinished"}, "a gap took it from that reader alone (E17): others may be given all of it"


@pytest.mark.parametrize("untold", [[1], []])
def test_what_a_cursor_still_had_to_report_goes_with_it_when_it_is_refused(untold: list[int]) -> None:
    """The reader hears that the history is truncated, and has to start again."""
    history = good()
    at = aborted_in_place_of(history, "s2", 1)
    saved = place(history, "s2", "save", skip=1)
    change(history, saved, untold=untold)
    join = place(history, "s2", "join", skip=1)
    refused = history[join]._replace(op="error", data={"code": "history_truncated", "text": "start again"})
    rest = [entry for entry in history[join + 1 :] if entry.actor != "s2"]
    history[join + 1 :] = [refused, *rest]
    del history[at]
    assert ("silent" in rules(history)) == (not untold)


def test_what_a_killed_reader_knew_and_had_not_saved_may_come_otherwise() -> None:
    """It said that it saw an epoch whole that it had not yielded yet, was killed, and its publisher lost its memory."""
    history = good()
    lose(history, place(history, "s2", "epoch", skip=1), "0")
    at = aborted_in_place_of(history, "s2", 1)
    join = place(history, "s2", "join", skip=1)
    told = history.pop(at)
    change(history, at, times=[1])
    del history[place(history, "s2", "save", skip=1)]
    join -= 2
    change(history, join, n=1)
    change(history, join + 1, frontier=[1])
    history.insert(join + 2, told._replace(at=history[join + 1].at + 0.5, life=1))
    assert check(history) == []
    # Told before the kill as well, it comes again after it.
    history.insert(at + 1, told._replace(at=history[at].at + 0.5))
    change(history, at, times=[])
    assert check(history) == []


def test_a_live_reader_may_miss_what_was_under_way_as_it_joined() -> None:
    history = good()
    silently_skipped(history, 0)
    join = history.pop(place(history, "s1", "join"))
    assert rules([join, *history]) == {"silent"}
    assert rules([join._replace(data={"since": None}), *history]) == {"silent"}
    begun = place(history, "w1", "append", Phase.INVOKE)
    ready = history.pop(place(history, "s1", "ready"))
    history.insert(begun, ready._replace(at=history[begun].at + 0.5))
    assert rules([join._replace(data={"since": None}), *history]) == set()
    assert rules([join, *history]) == {"silent"}


def test_a_gap_excuses_only_what_was_under_way_in_it() -> None:
    """Not what was saved before the loss, nor what began after the reader had something of the new publisher."""
    for missing, found in ((0, True), (1, False), (2, False), (3, True)):
        history = good()
        lose(history, place(history, "w1", "leave", Phase.INVOKE, skip=1), "0")
        for index, entry in enumerate(history):  # what came after it, another publisher has acknowledged
            if entry.op == "append" and entry.phase is Phase.OK and entry.data["time"] > 1:
                change(history, index, position=[2, entry.data["position"][1]])
        assert check(history) == []
        silently_skipped(history, missing)
        assert ("silent" in rules(history)) == found, missing


def test_a_gap_excuses_a_time_that_a_later_one_has_held_back() -> None:
    """A later time was under way as the reader came back, so that no time before it is its (E15)."""
    history = good()
    silently_skipped(history, 2)
    ready = place(history, "s1", "epoch", skip=1)
    lose(history, ready, "0")
    for op, data in (("join", {"since": "cursor", "n": 1}), ("ready", {"frontier": [1]})):
        ready += 1
        history.insert(ready, Entry(history[ready].at - 0.01, "s1", 0, op, Phase.INFO, data))
    assert rules(history) == {"silent"}
    early = {"ids": ["w2/early"], "digests": [0], "segment": "0", "time": 3}
    history.insert(0, Entry(0.0, "w2", 0, "append", Phase.INVOKE, early))
    assert rules(history) == set()


@pytest.mark.parametrize("saved", [1, 2])
def test_a_cursor_says_what_a_killed_reader_was_given(saved: int) -> None:
    """A yield that the cursor does not cover comes again: then it is no duplicate, and else it is missed."""
    history = good()
    join = place(history, "s2", "join", skip=1)
    change(history, join, n=saved)  # the second one was written down, and may not have been on disk by then
    change(history, join + 1, frontier=[saved])
    epoch = history[place(history, "s2", "epoch", skip=1)]
    repeated = epoch._replace(at=history[join].at + 1.5, life=1)
    again = [*history[: join + 2], repeated, *history[join + 2 :]]
    assert rules(history) == (set() if saved == 2 else {"silent"})
    assert rules(again) == (set() if saved == 1 else {"duplicate"})


def test_times_are_compared_by_their_components() -> None:
    assert reaches(3, 3)
    assert reaches((0, (1, 2)), (0, (1, 3)))
    assert not reaches((0, (1, 2)), (1, (0, 3)))
    assert not reaches((1, (0, 3)), (0, (1, 2)))


def test_neither_of_two_times_without_an_order_is_late() -> None:
    """In the product order an epoch is given while another one, that it does not reach, is open."""
    history: History = []

    def add(actor: str, op: str, phase: Phase = Phase.INFO, **data: Any) -> None:
        history.append(Entry(float(len(history)), actor, 0, op, phase, data))

    add("s1", "join", since="start")
    add("s1", "ready", frontier=[[0, 0]])
    for number, time in enumerate(([0, 1], [1, 0])):
        fields: dict[str, Any] = {"ids": [f"w1/{number}"], "digests": [0], "segment": "0", "time": time}
        add("w1", "append", Phase.INVOKE, **fields)
        add("w1", "append", Phase.OK, **fields, position=[1, number])
    add("w1", "leave", Phase.INVOKE, n=0, held=[[1, 0]])
    add("s1", "epoch", time=[0, 1], frontier=[[1, 0]], parts={"0": [["w1/0", 0]]})
    add("s1", "whole", frontier=[[1, 0]], times=[[0, 1]])
    add("s1", "save", n=1, frontier=[[1, 0]])
    add("w1", "leave", Phase.INVOKE, n=1, held=[])
    add("s1", "epoch", time=[1, 0], frontier=[], parts={"0": [["w1/1", 0]]})
    add("s1", "save", n=2, frontier=[])
    add("s1", "end", frontier=[])
    assert check(history) == []
    change(history, place(history, "s1", "whole"), times=[[1, 0]])
    assert rules(history) == {"whole"}
    change(history, place(history, "s1", "epoch"), frontier=[[0, 1]])
    assert rules(history) == {"whole", "dishonest", "back"}


@given(st.permutations(range(len(FAULTS))), st.integers(0, EPOCHS - 1), st.data())
def test_a_fault_is_found_however_actors_interleave(order: list[int], where: int, data: st.DataObject) -> None:
    """Entries of different actors that nothing orders may stand otherwise: two readers, here, swap their times."""
    fault, rule = list(FAULTS.items())[order[0]]
    history = good()
    fault(history, where)
    renamed: dict[str, str] = dict(zip(READERS, data.draw(st.permutations(READERS)), strict=True))
    history = [entry._replace(actor=renamed.get(entry.actor, entry.actor)) for entry in history]
    assert rule in rules(history)


# ---- what only some readers have: topics, a beginning at some times, history that is no longer retained ----


def by_topic() -> History:
    """Part 0 of each writer has the topic `a`, part 1 has `b`; s1 wants `a` only."""
    history = good()
    for index, entry in enumerate(history):
        if entry.op == "append":
            change(history, index, topic="ab"[entry.data["digests"][0]])
        elif entry.actor == "s1" and entry.op == "epoch":
            parts = {name: [pair for pair in part if not pair[1]] for name, part in entry.data["parts"].items()}
            change(history, index, parts=parts, topics=["a"])
        elif entry.actor == "s1" and entry.op == "whole":
            change(history, index, topics=["a"])
        elif entry.actor == "s1" and entry.op == "join":
            history[index + 1 : index + 1] = [entry._replace(op="always", data={"topics": ["a"]})]
    return history


def test_a_reader_of_some_topics_is_given_all_of_them_and_nothing_else() -> None:
    assert check(by_topic()) == []
    history = by_topic()
    del parts_of(history, place(history, "s1", "epoch", skip=2))["0"][0]
    assert rules(history) == {"atomic", "same", "whole"}
    history = by_topic()
    parts_of(history, place(history, "s1", "epoch", skip=2))["0"].insert(1, ["w1/2/0/1", 1])
    assert rules(history) == {"invented"}
    history = by_topic()
    silently_skipped(history, 2)
    assert "silent" in rules(history)


def test_a_reader_is_not_owed_an_epoch_without_records_of_its_topics() -> None:
    history = by_topic()
    for index, entry in enumerate(history):
        if entry.op == "append" and entry.data["time"] == 2:
            change(history, index, topic="b")
    at = place(history, "s1", "epoch", skip=2)
    del history[at]
    assert check(history) == []
    change(history, place(history, "s1", "always"), topics=["a", "b"])
    assert "silent" in rules(history)


def test_a_reader_that_wanted_more_when_it_saw_an_epoch_whole_gets_what_it_wants_now() -> None:
    history = by_topic()
    change(history, place(history, "s1", "whole", skip=2), topics=["a", "b"])
    assert check(history) == []


def test_a_reader_that_saw_whole_what_it_wants_by_now_has_been_given_it() -> None:
    """It has not wanted that all the time, so that it need not get it; but then it has not seen it whole."""
    history = by_topic()
    join, end = place(history, "s1", "join"), place(history, "s1", "end")
    for index, entry in enumerate(history):
        if entry.op == "append" and entry.data["time"] == 2:
            change(history, index, topic="b")
    del history[place(history, "s1", "epoch", skip=2)]
    wants = Entry(history[join].at + 0.1, "s1", 0, "wants", Phase.INFO, {"topics": ["a"]})
    more = Entry(history[join].at + 0.2, "s1", 0, "wants", Phase.INFO, {"topics": ["a", "b"]})
    said = Entry(
        history[end].at - 0.5, "s1", 0, "whole", Phase.INFO, {"frontier": [], "times": [2], "topics": ["a", "b"]}
    )
    assert check(with_entries(history, wants, more)) == []
    assert check(with_entries(history, wants, said)) == []
    assert rules(with_entries(history, wants, more, said)) == {"whole"}
    less = wants._replace(at=history[end].at - 0.2)
    assert check(with_entries(history, wants, more, said, less)) == [], "it wants less as it is given it"
    at = history[end].at
    saved = Entry(at - 0.25, "s1", 0, "save", Phase.INFO, {"n": 99, "frontier": [2], "untold": []})
    less, again, said = wants._replace(at=at - 0.4), more._replace(at=at - 0.3), said._replace(at=at - 0.2)
    assert check(with_entries(history, wants, more, less, again, saved, said)) == [], "it has dropped the rest"


def test_a_reader_that_begins_at_some_times_is_owed_what_they_reach() -> None:
    history = good()
    silently_skipped(history, 0)
    assert "silent" in rules(history)
    change(history, place(history, "s1", "join"), times=[1])
    assert check(history) == []
    silently_skipped(history, 1)
    assert "silent" in rules(history)


def test_what_is_no_longer_retained_may_be_missed_once_the_reader_has_learned_so() -> None:
    history = good()
    silently_skipped(history, 1)
    at = history[place(history, "s1", "save", skip=1)].at
    learned = Entry(at, "s1", 0, "truncated", Phase.INFO, {})
    assert check(with_entries(history, learned)) == []
    assert "silent" in rules(with_entries(history, learned._replace(at=0.5))), "it had not begun"


def test_a_later_life_that_came_to_hold_a_time_finishes_it() -> None:
    history = good()
    finished_by_a_life_that_could_not(history, 1)
    change(history, 0, times=[0])
    assert check(history) == []


@pytest.mark.parametrize("begins", ["before", "after"])
def test_a_reader_of_partial_epochs_may_lack_what_was_under_way_as_it_joined_and_nothing_else(begins: str) -> None:
    history = good()
    torn(history, 1)
    claims_nothing(history, "s1")
    change(history, place(history, "s1", "join"), since=None, partial=True)
    ready = place(history, "s1", "ready")
    at = history[place(history, "w1", "append", Phase.INVOKE, skip=4)].at
    change(history, ready, frontier=[1])
    history[ready] = history[ready]._replace(at=at + (0.5 if begins == "before" else -0.5))
    history.sort(key=lambda entry: entry.at)
    assert rules(history) == (set() if begins == "before" else {"atomic", "same"})
    history = good()
    torn(history, 1)
    change(history, place(history, "s1", "join"), partial=True)
    assert "atomic" in rules(history), "it asked for all that there is"


def test_what_a_gap_takes_from_a_reader_of_partial_epochs_it_lacks() -> None:
    history = good()
    torn(history, 1)
    claims_nothing(history, "s1")
    change(history, place(history, "s1", "join"), partial=True)
    lose(history, place(history, "w2", "append", Phase.INVOKE, skip=4), "1")
    assert rules(history) == set()
    change(history, place(history, "s1", "join"), partial=False)
    assert rules(history) == {"atomic", "same"}


def test_nothing_is_promised_of_what_a_publisher_had_of_which_nothing_is_known() -> None:
    """Not even that it is aborted; what begins afterwards is promised."""
    at = place(good(), "w1", "append", Phase.INVOKE, skip=8)
    forgot = Entry(good()[at].at - 0.5, NEMESIS, 0, "forgot", Phase.INFO, {"target": "0"})
    for n in range(EPOCHS):
        history = good()
        torn(history, n)
        assert (rules(with_entries(history, forgot)) == set()) == (n < 2), n
        history = aborted_for_all(n)
        assert (rules(with_entries(history, forgot)) == set()) == (n < 2), n
    history = good()
    twice_in_an_epoch(history, 0)
    assert "duplicate" in rules(with_entries(history, forgot)), "what one reader is given is judged"


@pytest.mark.parametrize("closes", [True, False])
def test_a_writer_that_closes_has_completed_nothing_and_one_that_finishes_has(closes: bool) -> None:
    history = good()
    torn(history, 3)
    first = history[place(history, "w1", "append", Phase.INVOKE, skip=8)].at
    forgot = Entry(first - 0.5, NEMESIS, 0, "forgot", Phase.INFO, {"target": "0"})
    left = Entry(first - 0.7, "w3", 0, "leave", Phase.INVOKE, {"n": 1, "held": [], "closes": closes})
    assert ("atomic" in rules(with_entries(history, left, forgot))) == closes


def test_a_reader_follows_the_next_publisher_where_it_says_so_and_not_as_it_is_ready() -> None:
    """A relay may serve what the lost one had, to a reader that came after the loss."""
    history = good()
    lose(history, place(history, "s1", "join"), "0")
    silently_skipped(history, 1)
    begun = history[place(history, "w1", "append", Phase.INVOKE, skip=4)].at
    change(history, place(history, NEMESIS, "lost"), incarnation=1)
    old = Entry(
        history[place(history, "s1", "ready")].at, "s1", 0, "follows", Phase.INFO, {"segment": "0", "incarnation": 1}
    )
    new = {"segment": "0", "incarnation": 2}
    assert "silent" in rules(history)
    assert "silent" not in rules(with_entries(history, old))
    assert "silent" not in rules(with_entries(history, old, old._replace(at=begun + 0.5, data=new)))
    assert "silent" in rules(with_entries(history, old, old._replace(at=begun - 0.5, data=new)))
