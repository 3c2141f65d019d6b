"""What a publisher's report changes in the stored record of a segment, and which reports are refused (E11 horizon).

The next publisher of the segment starts from this record when it has no log on disk. Separate from the rules of
publishers because it concerns one segment only: it needs no state, and no lease.
"""

from collections.abc import Sequence
from dataclasses import replace

from epochal.catalog_api.requests import SegmentReport
from epochal.errors import Problem, TimeShapeError
from epochal.protocol.frontier import Antichain
from epochal.protocol.times import Time, TimeShape, from_json, less_equal, less_than, to_json
from epochal.service.errors import InvalidRequest
from epochal_catalog.domain.kind import Json
from epochal_catalog.domain.stream_entries import SegmentRecord


def record_of(segment: SegmentRecord, report: SegmentReport, shape: TimeShape) -> SegmentRecord:
    """The segment with what is stored of a report; the segment itself when the report changes nothing of it.

    Raises `InvalidRequest` for times of another shape, and for a horizon that is missing or takes a part back.
    """
    lower, writers = segment.lower, segment.writers
    if report.lower is not None:
        lower = shaped(report.lower, shape, f"segments.{segment.id}.lower")
    if report.writers is not None:
        writers = tuple(sorted(set(report.writers)))
    if report.number is not None:
        horizon = _horizon(segment, report, shape)
        if report.number <= segment.record_number:
            return segment  # late or repeated: a record with this number or a higher one was taken before
        if not report.final:
            _check_growth(segment, lower, horizon)
        marks, number = tuple(report.marks), report.number
        return replace(segment, lower=lower, writers=writers, horizon=horizon, marks=marks, record_number=number)
    if report.lower is None and report.writers is None:
        return segment  # a report without values leaves the stored ones as they are
    return replace(segment, lower=lower, writers=writers, horizon=None)


def _horizon(segment: SegmentRecord, report: SegmentReport, shape: TimeShape) -> list[Json]:
    """The maximal times of the reported horizon."""
    path = f"segments.{segment.id}.horizon"
    if report.horizon is None:
        problem = Problem(path, "is missing", "a record (`number`) has a horizon; [] when no time may become active")
        raise InvalidRequest(f"the report of segment {segment.id} is a record without a horizon", [problem])
    times = list(dict.fromkeys(from_json(time) for time in shaped(report.horizon, shape, path)))
    return [to_json(time) for time in times if not any(less_than(time, other) for other in times)]


def _check_growth(segment: SegmentRecord, lower: list[Json] | None, horizon: list[Json]) -> None:
    """Only times that the frontier has passed may leave a horizon: else an active time would not be aborted."""
    frontier = None if lower is None else Antichain(map(from_json, lower))
    above = [from_json(time) for time in horizon]
    for stored in map(from_json, segment.horizon or ()):
        reached = frontier is None or frontier.less_equal(stored)
        if reached and not any(less_equal(stored, time) for time in above):
            problem = Problem(
                f"segments.{segment.id}.horizon",
                f"no longer covers {to_json(stored)}, which the frontier still reaches",
                "a horizon only grows, but for what the frontier has passed; `final` is for a publisher that stops",
            )
            reason = f"the report of segment {segment.id} takes {to_json(stored)} of the stored horizon back"
            raise InvalidRequest(reason, [problem])


def shaped(times: Sequence[Json], shape: TimeShape, path: str) -> list[Json]:
    """The times of a report in their JSON form; raises what `read_times` raises."""
    return list(map(to_json, read_times(times, shape, path)))


def read_times(times: Sequence[Json], shape: TimeShape, path: str) -> list[Time]:
    """The times of the field at `path`; raises `InvalidRequest` for one of another shape."""
    try:
        return list(map(shape.from_json, times))
    except TimeShapeError as error:
        problem = Problem(path, str(error), f"the stream's time shape is {shape}")
        raise InvalidRequest(f"{path} has a time of another shape: {error}", [problem]) from None
