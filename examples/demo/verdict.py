"""What the demo prints at its end: what was computed, and every number that differs from plain Spark's."""

from examples.demo.run import Run
from examples.demo.tally import check_bytes, check_early, check_kill, check_late, only

from epochal.cli.failures import ExitStatus
from epochal.cli.io.output import show_size
from epochal.cli.io.terminal import note

SHOWN_FAULTS = 10


def verdict(run: Run, seconds: float) -> ExitStatus:
    """Print what was computed, and every number that differs from plain Spark's; the status is 1 if one does."""
    early, late = check_early(run.truth, run.early), check_late(run.truth, run.late, run.join)
    total, flights = len(run.truth), sum(entry.flights for hour in run.truth.values() for entry in hour.values())
    groups = sum(map(len, run.truth.values()))
    print(
        f"\ncompared with a plain Spark batch over the same file: {total:,} hours, {groups:,} sums by hour and airport"
    )
    print(f"  from the start   {_share(len(run.early.hours), total)}   {_outcome(early)}")
    whole = "" if late else ", and no hour in part"
    label = "late" if run.airport is None else f"late, {run.airport} only"
    print(f"  {label:14}   {_share(len(run.late.hours), len(only(run.truth, run.airport)))}   {_outcome(late)}{whole}")
    if run.airport is not None:
        print(f"  through a relay  {_relayed(run)}")
    if run.kills:
        print(f"  a publisher      {_killed(run)}")
    rate = flights / run.publishing if run.publishing else 0
    speed = f"published in {run.publishing:.1f} s ({rate:,.0f} a second)"
    print(f"{flights:,} flights in {run.batches} micro-batches, {speed}; {seconds:.1f} s in all")
    faults = [*(f"from the start: {fault}" for fault in early), *(f"late: {fault}" for fault in late)]
    if run.airport is not None:
        faults += [f"late: {fault}" for fault in check_bytes(run.sent, run.everything)]
    faults += check_kill(run.kill, run.back_after) if run.kills else []
    for fault in faults[:SHOWN_FAULTS]:
        note(f"error: {fault}")
    if len(faults) > SHOWN_FAULTS:
        note(f"error: and {len(faults) - SHOWN_FAULTS} more")
    return ExitStatus.FAILURE if faults or not total else ExitStatus.OK


def _relayed(run: Run) -> str:
    """What the late subscriber was sent, of what one of all airports was sent in the same time."""
    if run.sent is None:
        return "sent what was not reported"
    share = f"{100 * run.sent / max(1, run.everything):.0f} % of the {show_size(run.everything)} of all airports"
    return f"sent {show_size(run.sent)}".ljust(32) + f"   {share}"


def _killed(run: Run) -> str:
    if run.kill is None:
        return "was never killed"
    share = f"{100 * run.kill.complete // max(1, run.kill.total)} %"
    back = "not back" if run.back_after is None else f"back after {run.back_after:.1f} s"
    return f"{run.kill.how} at {share}".ljust(32) + f"   {back}"


def _share(hours: int, total: int) -> str:
    return f"{hours:,} of {total:,} hours ({100 * hours // max(1, total)} %)".ljust(32)


def _outcome(faults: list[str]) -> str:
    return f"{len(faults)} FAULTS" if faults else "every number equal"
