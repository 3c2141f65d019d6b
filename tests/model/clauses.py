"""Rule E11 clause by clause, so that a test can leave out each clause and see why it is needed.

To leave out a clause is to do what a program without that clause would do.
"""

from enum import Enum


class Clause(Enum):
    """One clause of the rule; the value says it."""

    # (a) what may become active
    GATED = "a time becomes active only if the recorded horizon covers it"
    ABORTS_GATED = "an abort waits for the recorded horizon as an append does"
    ANSWERED = "recorded is what the catalog has answered, not what was asked for"
    GROWN = "a horizon grows: what an earlier record covered stays covered"
    INHERITED = "the next incarnation's horizon begins with the one that it found"
    # (b) which frontier may be published
    COVERED = "a frontier is told only if the recorded horizon covers what it passes"
    LOSSES_COVERED = "a frontier that a writer's loss has moved is told no sooner than another"
    TRUE_GRANTED = "a writer that opens is granted the true frontier, not the one told"
    # the record at the catalog
    TOGETHER = "frontier and horizon are written together"
    NUMBERED = "an older record of the same incarnation is refused"
    FENCED = "a record of an earlier incarnation is refused"
    # (c) the next incarnation
    ABORTED_BELOW = "what the horizon covers is aborted in the next incarnation"
    BELOW_KEPT = "and stays aborted until the frontier has passed all of it"
    BELOW_TOLD = "and stands in snapshots and openings, where readers heed it"
    WAITS = "the next incarnation waits for the known writers"
    WAITED_FOR_RECORDED = "its records name the writers that it still waits for"
    SESSIONS = "it admits no session lower than the catalog's newest"
    RESUMES_WHOLE = "a writer goes on only if the frontier reaches all that it holds"
    LOST_TOLD = "a resuming writer is told which of its epochs are lost"
    LOST_REPEATED = "and again, if it did not hear the answer"
    COMPLETE_STANDS = (
        "of a stream that the catalog says is complete it holds nothing, whatever frontier was recorded (E7)"
    )
    TRUE_AT_STOP = "an orderly stop records its true frontier beside a horizon without what is completed"
    # writers
    MOVES_WAIT = "moves are sent after every append is acknowledged (E1)"
    LOST_EVERYWHERE = "a writer lost at one segment aborts what it has open at all of them (E3)"
    # readers
    GAP_FILTERS = "after a gap the new snapshot is a further filter over all segments (E17)"
    GAP_ABORTS = "after a gap every epoch that is held and not delivered is aborted (E17)"
    FILTER_KEPT = "a filter is kept until the merged frontier, not its own segment's, has passed what it bars (E15)"
    JOINED = "a reader joins a new snapshot's frontier with its own (E17)"
    WHOLE_IF_ADMITTED = "saw_whole(T) asks the filters too (E11 d)"
