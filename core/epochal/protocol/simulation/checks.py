"""What must hold at the end of a run, for every reading application, against what really happened.

Apart from the oracle, which judges each event as it is logged: these rules need the whole story.
"""

from epochal.protocol.frontier import Antichain
from epochal.protocol.simulation.oracle import Asked, Log, Oracle, Outcome, Session, Violation
from epochal.protocol.simulation.readers import Life, Memory, Yield
from epochal.protocol.times import Time, less_equal


def check_memory(oracle: Oracle, memory: Memory, life: Life) -> None:
    """Judge all that one reading application was given."""
    if memory.partial:
        return
    for epoch in memory.yields:
        _check_writers(oracle, memory, epoch, _check_content(oracle, memory, epoch))
    both = memory.aborted.intersection(time for time, _ in memory.yields)
    if both:
        raise Violation(f"I1: {memory.name} was given {sorted(both)} and told that they were aborted")
    if not memory.gap:
        _check_all_and_only(oracle, memory, life)


def _check_content(oracle: Oracle, memory: Memory, epoch: Yield) -> dict[str, int]:
    """I1: of each segment exactly what one incarnation logged for the epoch, in its order; returns which one."""
    time, payloads = epoch
    found: dict[str, int] = {}
    for segment, logs in oracle.logs.items():
        got = payloads.get(segment, [])
        matching = [log.incarnation for log in logs if log.whole(time) and log.data.get(time, []) == got]
        found[segment] = min(matching, default=0)
        if not matching:
            known = {log.incarnation: (log.whole(time), log.data.get(time, [])) for log in logs}
            raise Violation(f"I1: {memory.name} was given {got} of {time!r} at segment {segment}; logged: {known}")
    return found


def _check_writers(oracle: Oracle, memory: Memory, epoch: Yield, read: dict[str, int]) -> None:
    time, payloads = epoch
    given = {payload for part in payloads.values() for payload in part}
    for sessions in oracle.sessions.values():
        for session in sessions:
            asked = [append for append in session.appends if append.time == time]
            for append in asked:
                if append.incarnation <= read[append.segment]:  # else the time was given again, after this one saw it
                    _check_acknowledged(oracle, memory, append, given, read[append.segment])
            if any(append.payload in given for append in asked):
                _check_left(memory, sessions, session, time)


def _check_acknowledged(oracle: Oracle, memory: Memory, append: Asked, given: set[bytes], read: int) -> None:
    """E1: what was acknowledged is in the epoch, unless a crash lost it, and nobody was left to tell (E10, E11)."""
    if append.outcome is not Outcome.ACKED or append.payload in given:
        return
    if not oracle.lost.get(append.payload, True):
        return
    leave = append.session.left(append.time)
    session = append.session
    resumed = next(log.resumed for log in oracle.logs[append.segment] if log.incarnation == read)
    came_back = session.number in resumed.get(session.writer, ())
    if read > append.incarnation and (not came_back or leave is not None):
        return
    raise Violation(f"E1: {append.payload!r} was acknowledged, and is not in epoch {append.time!r} for {memory.name}")


def _check_left(memory: Memory, sessions: list[Session], session: Session, time: Time) -> None:
    """E3, E4: somebody with the writer's id has said that the epoch is whole: this session, or a later one."""
    where = f"epoch {time!r} for {memory.name}"
    for holder in sessions[sessions.index(session) :]:
        if holder is not session and holder.held is None:
            continue
        if holder.held is not None and not holder.held.less_equal(time):
            raise Violation(f"E3: session {holder.number} of {holder.writer} could not finish {where}")
        if holder.left(time) is not None:
            return
    raise Violation(f"E3: writer {session.writer} (session {session.number}) never left {where}")


def _check_all_and_only(oracle: Oracle, memory: Memory, life: Life) -> None:
    """E15, E16, I2: without a gap, all that the joins admit and that is over, and only that: given, or told aborted."""
    logs = _logs_read(oracle, memory)
    yielded = {time for time, _ in memory.yields}
    aborted = {time for log in logs for time in log.aborted}
    for time in yielded:
        if not _admitted(memory, time):
            raise Violation(f"E15: {memory.name} was given {time!r}, which was under way as it joined")
    led_back = memory.aborted & oracle.rewound
    for time in memory.aborted - aborted - led_back:
        raise Violation(f"E17: {memory.name} was told that {time!r} was aborted, which is not so")
    if life.ended or not life.machine.ready:
        return
    frontier = life.machine.frontier
    for time in sorted(aborted - memory.aborted):
        if not frontier.less_equal(time) and _admitted(memory, time):
            raise Violation(f"E16: {memory.name} was never told that {time!r} was aborted")
    for time in sorted({time for log in logs for time in log.data} - yielded - led_back):
        if _expected(memory, frontier, aborted, time):
            raise Violation(f"I2: {memory.name} was not given {time!r}, which is whole")
        if life.machine.saw_whole(time):
            raise Violation(f"E18: {memory.name} takes {time!r} for an epoch without data")


def _expected(memory: Memory, frontier: Antichain, aborted: set[Time], time: Time) -> bool:
    return not frontier.less_equal(time) and time not in aborted and _admitted(memory, time)


def _logs_read(oracle: Oracle, memory: Memory) -> list[Log]:
    read = {segment: oracle.log_of(began.incarnation) for segment, began in memory.began}
    return [log for segment, logs in oracle.logs.items() for log in logs if log.incarnation == read.get(segment)]


def _admitted(memory: Memory, time: Time) -> bool:
    """E15 written down anew: at every join some lower element is <= T, T is <= no upper element, T is not aborted.

    Of all that a reader asked for from some times on, the history must not lack anything (E20).
    """
    if memory.wanted is not None:
        return any(less_equal(element, time) for element in memory.wanted)
    for _, join in memory.began:
        state = join.state
        if not join.filters:
            continue
        if not any(less_equal(element, time) for element in state.lower):
            return False
        if any(less_equal(time, element) for element in state.active) or time in state.aborted:
            return False
    return True
