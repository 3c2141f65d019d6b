"""What must hold at the end of a run, for every reading application, against what really happened.

Separate from the oracle, which judges each event as it is logged: these rules need the whole story. They know what was
reported to a reader, never what its machine believes, and excuse nothing: not a lost memory, not a gap.
"""

from tests.simulation.oracle import Log, Oracle, Outcome, Session, Violation, topic_of
from tests.simulation.order import covered, reached
from tests.simulation.stories import ALL, Claim, Memory, Yield

from epochal.protocol.times import Time


def check_memory(oracle: Oracle, memory: Memory) -> None:
    """Judge all that one reading application was given."""
    for claim in memory.claims:
        if not oracle.unknowable(claim.time) and not oracle.was_complete(claim.time):
            _check_claim(oracle, memory, claim)
    if memory.partial:
        return
    for epoch in memory.yields:
        if oracle.unknowable(epoch[0]):
            continue
        _check_content(oracle, memory, epoch)
        _check_acknowledged(oracle, memory, epoch)
        _check_writers(oracle, memory, epoch)
        _check_never_aborted(oracle, memory, epoch[0])
    given = [time for time, _ in memory.yields]
    if len(given) != len(set(given)):
        raise Violation(f"E16: {memory.name} was given an epoch twice, of {given}")
    both = memory.aborted.intersection(given)
    if both:
        raise Violation(f"I1: {memory.name} was given {sorted(both)} and a report that they were aborted")
    _check_only(oracle, memory)
    if memory.frontier is not None:
        _check_all(oracle, memory, memory.frontier)


def _check_content(oracle: Oracle, memory: Memory, epoch: Yield) -> None:
    """I1: of each segment exactly what was logged of the epoch, in its order, by an incarnation that completed it.

    Where any incarnation has data of the epoch, one that has none of it counts for nothing. Of each topic it is all or
    nothing, as `Topics` says (F8, F9).
    """
    time, payloads = epoch
    topics = memory.given_topics.get(time, ALL)

    def wanted(log: Log) -> list[bytes]:
        return [payload for payload in log.data.get(time, []) if topic_of(payload) in topics]

    for segment, logs in oracle.logs.items():
        got = payloads.get(segment, [])
        with_data = [log for log in logs if log.data.get(time) and time not in log.repeated]
        if not any(log.whole(time) and wanted(log) == got for log in with_data or logs):
            known = {log.incarnation: (log.whole(time), log.data.get(time, [])) for log in logs}
            what = f"{got} of {time!r} at segment {segment} (F8: of the topics {sorted(topics)})"
            raise Violation(f"I1: {memory.name} was given {what}; logged: {known}")


def _check_acknowledged(oracle: Oracle, memory: Memory, epoch: Yield) -> None:
    """E1, E10, E11: each record of the epoch that was ever acknowledged, whatever has crashed since."""
    time, payloads = epoch
    for append in oracle.at.get(time, ()):
        wanted = topic_of(append.payload) in memory.given_topics.get(time, ALL)
        if wanted and append.outcome is Outcome.ACKED and append.payload not in payloads.get(append.segment, ()):
            what = f"{append.payload!r} was acknowledged by segment {append.segment}"
            raise Violation(f"E1: {what}, and is not in epoch {time!r} for {memory.name}")


def _check_writers(oracle: Oracle, memory: Memory, epoch: Yield) -> None:
    """E3, E4: every writer with something in the epoch, or its successor, has said that it is whole."""
    time, payloads = epoch
    given = {payload for part in payloads.values() for payload in part}
    for append in oracle.at.get(time, ()):
        if append.payload in given:
            _check_left(memory, oracle.sessions[append.session.writer], append.session, time)


def _check_left(memory: Memory, sessions: list[Session], session: Session, time: Time) -> None:
    """This session has left the epoch, or a later one of the same writer has, which had come to hold it."""
    where = f"epoch {time!r} for {memory.name}"
    for holder in sessions[sessions.index(session) :]:
        if holder.held is None:
            continue
        if not reached(holder.held, time):
            raise Violation(f"E3: session {holder.number} of {holder.writer} could not finish {where}")
        if holder.declared(time):
            return
    raise Violation(f"E3: writer {session.writer} (session {session.number}) never left {where}")


def _check_never_aborted(oracle: Oracle, memory: Memory, time: Time) -> None:
    """E2: aborted is final, through all incarnations; so is what was lost, for who joins afterwards (E11)."""
    if oracle.aborted(time):
        raise Violation(f"E2: {memory.name} was given {time!r}, which was aborted")
    for log in (log for logs in oracle.logs.values() for log in logs):
        if memory.joined > log.began and covered(time, log.below) and reached(log.start, time):
            what = f"which was lost before it joined, with incarnation {log.incarnation - 1} of segment {log.segment}"
            raise Violation(f"E2: {memory.name} was given {time!r}, {what}")


def _check_claim(oracle: Oracle, memory: Memory, claim: Claim) -> None:
    """E18: `saw_whole` is true only for who has seen all of it, and of what can never be more."""
    time, where = claim.time, f"{memory.name} took {claim.time!r} for seen whole at {claim.at:.3f}"
    if oracle.aborted(time):
        raise Violation(f"E18: {where}, and it was aborted")
    for append in oracle.at.get(time, ()):
        wanted = topic_of(append.payload) in claim.topics
        if wanted and append.outcome is Outcome.ACKED and append.payload not in claim.seen:
            raise Violation(f"E18: {where}, without {append.payload!r} of segment {append.segment}")
    given = {given for given, _ in memory.yields}
    to_the_end = claim.life == memory.lives and memory.frontier is not None and not memory.partial
    kept = any(topic_of(payload) in memory.always for payload in claim.seen)
    if to_the_end and kept and time not in given:
        raise Violation(f"E18: {where}, and was never given it")


def _check_only(oracle: Oracle, memory: Memory) -> None:
    """E15, E17: only what the first joins admit is given, and only what is aborted is reported so."""
    for time, _ in memory.yields:
        if not _admitted(memory, time, gaps=False):
            raise Violation(f"E15: {memory.name} was given {time!r}, which was under way as it joined")
    logs = [log for logs in oracle.logs.values() for log in logs]
    for time in memory.aborted - memory.torn:
        if not any(log.is_aborted(time) for log in logs) and not oracle.unknowable(time):
            raise Violation(f"E17: {memory.name} got a report that {time!r} was aborted, which is not so")


def _check_all(oracle: Oracle, memory: Memory, frontier: frozenset[Time]) -> None:
    """E16, I2: all that the joins admit and that is over in the logs that were read to the end: given, or aborted.

    An epoch with data before a gap was reported as aborted; one that was under way at a gap is not admitted. An epoch
    that was complete before a volume was lost stays complete for readers that saw it, whatever happens to it later.
    """
    logs = _logs_read(oracle, memory)
    yielded = {time for time, _ in memory.yields}
    aborted = {time for log in logs for time in log.aborted}
    for time in sorted(aborted - memory.aborted):
        known = not (oracle.unknowable(time) or oracle.was_complete(time))
        if not reached(frontier, time) and _admitted(memory, time, gaps=True) and known:
            raise Violation(f"E16: {memory.name} never got a report that {time!r} was aborted")
    for time in sorted({time for log in logs for time in log.data} - yielded - memory.aborted):
        if not any(topic_of(payload) in memory.always for log in logs for payload in log.data.get(time, ())):
            continue
        if reached(frontier, time) or any(log.is_aborted(time) for log in logs) or oracle.unknowable(time):
            continue
        if _admitted(memory, time, gaps=True):
            raise Violation(f"I2: {memory.name} was not given {time!r}, which is whole")


def _logs_read(oracle: Oracle, memory: Memory) -> list[Log]:
    """The log of each segment that it read last."""
    newest = {join.segment: join.incarnation for join in memory.joins}
    return [oracle.log_of(segment, incarnation) for segment, incarnation in newest.items()]


def _admitted(memory: Memory, time: Time, *, gaps: bool) -> bool:
    """E15 written down again: at every join some lower element is <= T, T is <= no upper element, T is not aborted.

    Of all that a reader asked for from some times on, the history must not lack anything (E20). `gaps`: also at those
    joins that came after a gap.
    """
    if memory.wanted is not None and not reached(memory.wanted, time):
        return False
    judged = [join for join in memory.joins if (join.gap and gaps) or (not join.gap and join.filters)]
    return all(join.standing.admits(time) for join in judged)
