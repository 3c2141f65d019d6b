"""What holds a stream's time back: the holders at the least times of its merged lower frontier, longest first.

Separate from the views because the metrics need it too. The merge of frontiers is the only algebra in the catalog.
`now` is monotonic seconds: between two reports, the durations of holders grow.
"""

from epochal.catalog_api.blockers import NO_PUBLISHER, HeldBack
from epochal.protocol.blockers import HolderKind
from epochal.protocol.frontier import Antichain
from epochal.protocol.times import from_json
from epochal_catalog.domain.state import CatalogState
from epochal_catalog.domain.stream_entries import SegmentRecord, StreamEntry


def holders(state: CatalogState, segment: SegmentRecord, now: float) -> list[HeldBack]:
    """The holders of one segment. Their durations include the time since the report."""
    found = state.report_of(segment)
    if found is None:
        return []
    at, report = found
    passed = max(now - at, 0.0)
    return [  # without `replace`, which takes longer: a look-up does this for each holder
        HeldBack(
            held.segment, held.time, held.kind, held.writer, _older(held.seconds, passed), _older(held.silent, passed)
        )
        for held in report.holders
    ]


def held_back(state: CatalogState, entry: StreamEntry, now: float) -> list[HeldBack]:
    """What holds the stream's time back, and every lost writer that it waits for; nothing after its completion."""
    if entry.complete:
        return []
    least = set(Antichain(from_json(time) for segment in entry.open_segments() for time in segment.lower or ()))
    found: list[HeldBack] = []
    for segment in entry.open_segments():
        if segment.lower is None or not state.leases.live(segment.token):
            found.append(_unserved(state, segment, now))
        else:
            found += [
                held for held in holders(state, segment, now) if held.time in least or held.kind == HolderKind.LOST
            ]
    return sorted(found, key=lambda held: -(held.seconds or 0.0))


def _unserved(state: CatalogState, segment: SegmentRecord, now: float) -> HeldBack:
    lease = state.leases.get(segment.token)
    seconds = None if lease is None or lease.live else max(now - lease.expires, 0.0)
    time = from_json(segment.lower[0]) if segment.lower else None
    return HeldBack(segment.id, time, NO_PUBLISHER, None, seconds, None)


def _older(seconds: float | None, passed: float) -> float | None:
    return None if seconds is None else seconds + passed
