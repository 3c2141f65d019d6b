"""Judges a history: what was lost, duplicated, torn, out of order or claimed wrongly.

The same rules judge every history, of any kind of test. The rules know nothing about how Epochal works inside: entries
in, violations out. `RULES` lists them. From the project only the codes of its errors are used: times are compared and
sets are built here, by brute force.

No loss is excused: an epoch that is given has every record that was acknowledged at its time, whatever died meanwhile.
Only `Story.missed_by_a_gap` decides what a reader may miss without a report; a missed epoch never counts as seen whole.
Only `Story.has_a_cause` decides what may abort an epoch.
"""

import itertools
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from tests.chaos.history import NEMESIS, Entry, Time
from tests.chaos.story import Asked, Reader, Story, Told, Topics, common, reached, reaches, wanted

HISTORY_TRUNCATED, WRITER_LOST = "history_truncated", "writer_lost"


class Violation(NamedTuple):
    """A broken rule; `detail` names who, which time and which record."""

    rule: str
    detail: str


Found = Iterator[str]


def _invented(story: Story) -> Found:
    for reader in story.readers:
        for epoch in reader.given:
            if not reader.wants(epoch.time):
                yield f"{reader} was given {epoch.time}, for which it had not asked (E20)"
            for segment, part in (epoch.parts or {}).items():
                for record, digest in part:
                    append = story.appends.get(record)
                    if append is None or (append.time, append.segment, append.digest) != (epoch.time, segment, digest):
                        yield f"{reader} was given {record} at {epoch.time} in segment {segment}, not as it was written"
                    elif not wanted(append, epoch.topics):
                        yield f"{reader} was given {record} at {epoch.time}, of the topic {append.topic} (F8)"


def _duplicate(story: Story) -> Found:
    """E16."""
    for reader in story.readers:
        for time, count in Counter(told.time for told in reader.kept if told.parts is not None).items():
            if count > 1:
                yield f"{reader} was given {time} {count} times"
        for record, count in Counter(record for told in reader.kept for record in told.ids).items():
            if count > 1:
                yield f"{reader} was given {record} {count} times"


def _order(story: Story) -> Found:
    """A writer's records come in its order, and those of a segment in that of their positions."""
    for reader in story.readers:
        for epoch in reader.given:
            for segment, part in (epoch.parts or {}).items():
                last: dict[str, tuple[int, int]] = {}
                seq = -1
                for record, _ in part:
                    append = story.appends.get(record)
                    if append is not None and append.position is not None:
                        if append.position[2] < seq:
                            yield f"{reader} was given {record} of segment {segment} at {epoch.time} after event {seq}"
                        seq = append.position[2]
                    if append is not None:
                        place = (append.life, append.order)
                        if place <= last.get(append.writer, (-1, -1)):
                            yield f"{reader} was given {record} of segment {segment} at {epoch.time} out of order"
                        last[append.writer] = place


def _atomic(story: Story) -> Found:
    """I1, E11."""
    for reader in story.readers:
        for epoch in story.owed(reader):
            ids = set(epoch.ids)
            for append in story.at[epoch.time]:
                if append.position and append.id not in ids and wanted(append, epoch.topics):
                    yield f"{reader} was given {epoch.time} without {append.id}, which was acknowledged"
                if append.failed and append.id in ids:
                    yield f"{reader} was given {append.id} at {epoch.time}, which was refused"
                if append.id in ids and not ids.issuperset(append.batch):
                    yield f"{reader} was given {append.id} at {epoch.time} without the rest of its batch"


def _same(story: Story) -> Found:
    first: dict[Time, dict[Topics, tuple[Reader, Told]]] = defaultdict(dict)
    for reader in story.readers:
        for epoch in story.owed(reader):
            first[epoch.time].setdefault(epoch.topics, (reader, epoch))
            for other, before in first[epoch.time].values():
                if _common_order(epoch, before) != _common_order(before, epoch):
                    yield f"{other} and {reader} were given {epoch.time} in different orders"
                for record in sorted(set(epoch.ids) ^ set(before.ids)):
                    append = story.appends.get(record)
                    if append is None or (wanted(append, epoch.topics) and wanted(append, before.topics)):
                        yield f"{other} and {reader} were given different epochs {epoch.time}: {record}"


def _common_order(one: Told, other: Told) -> dict[str, list[str]]:
    """The records of one epoch that another one has too, by segment, in its order."""
    there = set(other.ids)
    return {
        segment: common for segment, part in (one.parts or {}).items() if (common := [r for r, _ in part if r in there])
    }


def _once(story: Story) -> Found:
    """E17, E11 (d)."""
    for reader in story.readers:
        for time, count in Counter(told.time for told in reader.kept if told.parts is None).items():
            if count > 1:
                yield f"{reader} was told {count} times that {time} was aborted"
            if any(told.time == time and told.parts is not None for told in reader.kept):
                yield f"{reader} was given {time} and told that it was aborted"


def _final(story: Story) -> Found:
    """E2: once an abort was reported to any reader or writer, no reader that joins after that is given the epoch.

    An epoch that a gap may have taken from a reader is aborted for that reader only (E17).
    """
    over = dict(story.over)
    for reader in story.readers:
        for told in reader.told:
            if told.parts is None and _is_over(story, reader, told.time):
                over[told.time] = min(over.get(told.time, (told.at, str(reader))), (told.at, str(reader)))
    for reader in story.readers:
        for epoch in story.owed(reader):
            at, whom = over.get(epoch.time, (float("inf"), ""))
            if at < epoch.joined:
                yield f"{reader} joined and was given {epoch.time} after {whom} was told that it was aborted"


def _is_over(story: Story, reader: Reader, time: Time) -> bool:
    """Whether a report to this reader means that the epoch is aborted: no gap alone took it (E17)."""
    return not story.doubtful(time) and not story.missed_by_a_gap(reader, time)


def _agree(story: Story) -> Found:
    """E2: an epoch is aborted for all readers or for none, except one from which a gap alone took it (E17).

    One that a reader saw whole is not aborted either, and be it without records (E18).
    """
    given: dict[Time, str] = {}
    for reader in story.readers:
        for told in story.owed(reader):
            given.setdefault(told.time, f"{reader} was given it")
    for reader in story.readers:
        for asked in reader.asked:
            for time in asked.whole:
                given.setdefault(time, f"{reader} saw it whole")
    for reader in story.readers:
        for told in reader.told:
            if told.parts is None and told.time in given and _is_over(story, reader, told.time):
                yield f"{reader} was told that {told.time} was aborted, and {given[told.time]}"


def _left(story: Story) -> Found:
    """E3, E4: every writer of an epoch has left it, or a later session of it that held the time has."""
    for reader in story.readers:
        for epoch in story.owed(reader):
            what = f"{reader} was given {epoch.time}"
            for append in [story.appends[record] for record in epoch.ids if record in story.appends]:
                lives = [
                    leave.life
                    for leave in story.leaves
                    if leave.writer == append.writer
                    and leave.life >= append.life
                    and leave.invoked < epoch.at
                    and leave.leaves(epoch.time)
                ]
                if not lives:
                    yield f"{what}, which {append.writer} (life {append.life}) has not left"
                    break
                for life, held in story.opened[append.writer].items():
                    if append.life < life <= min(lives) and not reached(held, epoch.time):
                        yield f"{what}, and life {life} of {append.writer} could not finish it for life {append.life}"


def _whole(story: Story) -> Found:
    """E18, E11 (d): a reader that says that it saw a time whole was given all of it, or the time has no records."""
    for reader in story.readers:
        for asked in reader.asked:
            for time in itertools.filterfalse(story.doubtful, asked.whole):
                says = f"{reader} says that it saw {time} whole"
                if reached(asked.frontier, time):
                    yield f"{says}, while its frontier was {asked.frontier}"
                here = [told for told in reader.told if told.time == time and told.stay == asked.stay]
                known = [told for told in reader.kept if told.time == time]
                before = [] if here else [told for told in known if told.stay < asked.stay]
                if any(told.parts is None for told in (*here, *before)):
                    yield f"{says}, and was told that it was aborted"
                elif _is_through(reader, asked, time):
                    ids = {record for told in (*here, *known) for record in told.ids}
                    # It may want fewer topics by now: then it gets only those, or nothing.
                    promised = [told.topics for told in (*here, *known)] or reader.wanted_since(time, asked)
                    topics = common(asked.topics, *promised)
                    for record in sorted(_there_was(story, time, topics) - ids):
                        yield f"{says}, and was not given {record}"


def _is_through(reader: Reader, asked: Asked, time: Time) -> bool:
    """Whether the reader was handed all it had of a time, by then or later in the same subscription.

    A saved cursor whose frontier has passed the time shows this, or the end of the stream.
    """
    stay = 0
    for entry in reader.entries:
        stay += entry.op == "join"
        if stay <= asked.stay and entry.op in ("save", "end") and not reached(entry.times("frontier"), time):
            return True
    return False


def _there_was(story: Story, time: Time, topics: Topics) -> set[str]:
    """The records of these topics known to be in an epoch: those acknowledged, and those that any reader was given."""
    given = {record for reader in story.readers for told in reader.given if told.time == time for record in told.ids}
    return {
        record for record in given if record not in story.appends or wanted(story.appends[record], topics)
    } | story.acknowledged(time, topics)


def _silent(story: Story) -> Found:
    """I2: an epoch is given or reported as aborted, unless it was under way at the join or at a gap (E15, E17)."""
    aborted = _aborted_for_all(story)
    there = {time: _there_was(story, time, None) for time in story.at if not story.doubtful(time)}
    for reader in story.readers:
        known = {told.time for told in reader.kept}
        late = reader.since_when()
        last = reader.saves[-1] if reader.saves else None
        for time in sorted(set(filter(reader.wants, there)) - known):
            # What the last saved cursor has passed, the application has got, except the aborts that the cursor lists
            # because they are still to be reported. After that cursor a kill may have taken what was handed over.
            passed = reader.ended or (last and not reached(last.frontier, time) and time not in last.untold)
            something = time in aborted or any(
                record not in story.appends or wanted(story.appends[record], reader.always) for record in there[time]
            )
            seen = passed and something and story.begun(time) > late
            if seen and not story.missed_by_a_gap(reader, time):
                yield f"{reader} was neither given {time} nor told why"


def _aborted_for_all(story: Story) -> set[Time]:
    """The times of which one reader was told that they were aborted, and all others must be, whatever they read.

    What a loss of memory aborts is not among them: that is reported only to those that had a part of it (E11).
    """
    lost = min((loss.begun for loss in story.losses), default=float("inf"))
    return {
        told.time
        for reader in story.readers
        for told in reader.told
        if told.parts is None and told.at < lost and _is_over(story, reader, told.time)
    }


def _back(story: Story) -> Found:
    """I6."""
    for reader in story.readers:
        last: tuple[Time, ...] | None = None
        saved: dict[int, tuple[Time, ...]] = {}
        for entry in reader.entries:
            if entry.op == "join":
                last = saved.get(entry.data["n"]) if entry.data["since"] == "cursor" else None
            elif entry.op == "save":
                saved[entry.data["n"]] = entry.times("frontier")
            elif "frontier" in entry.data:
                now = entry.times("frontier")
                if last is not None and not all(reached(last, time) for time in now):
                    yield f"the frontier of {reader} went back from {last} to {now}"
                last = now


def _dishonest(story: Story) -> Found:
    """S35, I6, E11 (b): a time that was reported complete gets no more records, and none is given before it is."""
    for reader in story.readers:
        for epoch in reader.given:
            if reached(epoch.frontier, epoch.time):
                yield f"{reader} was given {epoch.time} while its frontier was {epoch.frontier}"
        passed = [entry for entry in reader.entries if "frontier" in entry.data and entry.op != "save"]
        for append in story.appends.values():
            if append.position is None or story.doubtful(append.time):
                continue
            # Frontiers only move forward, so the last one before the append decides.
            before = [entry for entry in passed if entry.at < append.invoked]
            if before and not reached(before[-1].times("frontier"), append.time):
                yield f"{append.id} was accepted at {append.time} after {reader} was told that it was complete"


def _extension(story: Story) -> Found:
    """E16, E18."""
    for reader in story.readers:
        given = [told for told in reader.kept if told.parts is not None]
        for index, later in enumerate(given):
            for earlier in given[:index]:
                if later.time != earlier.time and reaches(later.time, earlier.time):
                    yield f"{reader} was given {later.time} after {earlier.time}"


def _owners(story: Story) -> Found:
    """E12, E6."""
    acked = sorted((x for x in story.appends.values() if x.position), key=lambda x: x.invoked)
    highest: dict[str, list[tuple[float, int]]] = defaultdict(list)
    for append in acked:
        assert append.position is not None
        assert append.done is not None
        highest[append.segment].append((append.done, append.position[1]))
    batches: dict[tuple[str, int, int], tuple[str, ...]] = {}
    last: dict[tuple[str, int, str], tuple[int, int]] = {}
    for append in acked:
        assert append.position is not None
        segment, incarnation, seq = append.position
        if any(done < append.invoked and other > incarnation for done, other in highest[segment]):
            yield f"{append.id} was acknowledged by incarnation {incarnation} of segment {segment}, which was over"
        if batches.setdefault(append.position, append.batch) != append.batch:
            yield f"{append.id} has the position {append.position} of another one"
        key = (append.writer, append.life, segment)
        if (incarnation, seq) < last.get(key, (0, -1)):
            yield f"{append.id} was acknowledged at {append.position}, before an earlier one"
        last[key] = (incarnation, seq)


def _kept(story: Story) -> Found:
    """E10, I5, E8: with a log on disk nothing is lost for anyone, and a writer that no fault hits is not given up."""
    if story.stored:
        yield from (f"{entry.actor} was told that its appends were lost" for entry in story.told_lost)
        for entry in story.errors:
            if entry.data["code"] == HISTORY_TRUNCATED:
                yield f"{entry.actor} was told that its history is gone: {entry.data['text']}"
    for entry in story.errors:
        silence = story.spared.get(entry.actor)
        if silence is not None and entry.data["code"] == WRITER_LOST:
            # Half of the time-out is enough: delays that are too short to be written down add to it.
            late = story.late(entry.actor, entry.at - silence, entry.at)
            if late < silence / 2:
                yield f"{entry.actor} was given up, and nothing hurt it: {entry.data['text']}"


def _causeless(story: Story) -> Found:
    """E3, E4, E11."""
    for reader in story.readers:
        for told in reader.told:
            if told.parts is None and not story.doubtful(told.time) and not story.has_a_cause(reader, told):
                yield f"{reader} was told that {told.time} was aborted, and nobody did that"


def _unfinished(story: Story) -> Found:
    if story.healed:
        for name in dict.fromkeys(reader.name for reader in story.readers):
            if not [reader for reader in story.readers if reader.name == name][-1].ended:
                yield f"{name} has not seen the end of the stream, though all was healed and finished"


RULES: dict[str, Callable[[Story], Found]] = {
    "invented": _invented,
    "duplicate": _duplicate,
    "order": _order,
    "atomic": _atomic,
    "same": _same,
    "once": _once,
    "final": _final,
    "agree": _agree,
    "left": _left,
    "whole": _whole,
    "silent": _silent,
    "back": _back,
    "dishonest": _dishonest,
    "extension": _extension,
    "owners": _owners,
    "kept": _kept,
    "causeless": _causeless,
    "unfinished": _unfinished,
}


def check(history: Sequence[Entry]) -> list[Violation]:
    """Every violation in `history`, which is ordered by time; an empty list if all rules hold."""
    story = Story(history)
    return [Violation(rule, detail) for rule, judge in RULES.items() for detail in dict.fromkeys(judge(story))]


def counts(history: Sequence[Entry]) -> dict[str, int]:
    """How much a history holds, for people: a round in which nothing happened proves nothing."""
    story = Story(history)
    return {
        "appends": len(story.appends),
        "acknowledged": sum(append.position is not None for append in story.appends.values()),
        "given": sum(len(reader.given) for reader in story.readers),
        "aborted": sum(told.parts is None for reader in story.readers for told in reader.told),
        "faults": len(story.faults),
        "stalls": sum(whose == NEMESIS for whose, _, _ in story.stalls),
    }


def faults(history: Sequence[Entry]) -> Counter[str]:
    """How often each kind of fault was done."""
    return Counter(fault.op for fault in Story(history).faults)
