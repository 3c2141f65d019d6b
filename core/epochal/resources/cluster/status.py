"""The status of a Stream: conditions and numbers, from the plan and the findings of a reconcile.

People and `kubectl wait` read it and rely on the rules of Kubernetes: the time of a condition changes only with its
status, and a reason is one word. The same findings must also give the same text, or the status would be written at
every reconcile.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import NamedTuple, TypeAlias

from epochal.protocol.frontier import Antichain
from epochal.protocol.times import Time, to_json
from epochal.resources.cluster.planner import ClusterPlan, Held, segments_of
from epochal.resources.cluster.pod_state import is_ready, trouble, waits_for
from epochal.resources.cluster.stream import pod_selector
from epochal.resources.crd import MOST_FRONTIER, MOST_LOST
from epochal.resources.relay_crd import RELAY_KIND
from epochal.resources.spec import Object

_FINE = frozenset(("Serving", "Complete", "AsExpected", "Starting", "Rolling", "RolloutWaiting", "VolumeReplaced"))
_FINE_UNDER_WAY = _FINE | {"PublishersNotReady"}
"""Reasons that are no warning while pods are starting or being replaced."""
_FINE_OF_RELAYS = frozenset(("RelaysNotReady", "ScaledToZero"))
"""Reasons that are no warning for relays, which come and go. If they need help, their condition Degraded says so."""
_MOST_MESSAGE = 1000
_REMEMBERED = timedelta(days=1)
"""How long the status names a lost volume after it was replaced: someone who was away overnight still sees it."""


@dataclass(frozen=True, slots=True)
class Seen:
    """The findings of one reconcile of a stream."""

    name: str
    generation: int
    now: datetime
    plan: ClusterPlan = field(default_factory=ClusterPlan)
    segments: tuple[str, ...] = ()
    catalog_uid: str = ""
    wrong: tuple[str, str] | None = None
    """Why the stream is not carried out as declared: reason and message. Without `segments`, nothing is carried out."""
    catalog_trouble: str = ""
    """Why the catalog did not answer; empty if it did."""
    frontier: str | None = None
    """The lower frontier as JSON; None if unknown; then the status keeps its value."""
    not_in_effect: tuple[str, ...] = ()
    lost_writers: tuple[str, ...] = ()
    """Lost writers for which epochs wait (`progress.whenLost: hold`)."""
    lost_epochs: tuple[str, ...] = ()
    """The open epochs that were lost with a publisher without storage, as one text for each segment (E11 horizon)."""
    waiting_segments: tuple[str, ...] = ()
    """Segments whose appends have waited for the catalog for too long (E11 horizon)."""
    full_disks: tuple[str, ...] = ()
    """Segments whose logs cannot be written, each with the reason (E10 durability)."""
    unbound: tuple[str, ...] = ()
    """Claims to which no volume can be bound, each with the reason."""
    patience: float = 300.0
    """Seconds that a pod may take to become ready before it counts as stuck."""


Verdict: TypeAlias = tuple[bool, str, str]
"""Whether a condition is true, its reason, and its message."""


class News(NamedTuple):
    """The content of a Kubernetes event about a stream."""

    reason: str
    message: str
    is_warning: bool = True


def status_of(before: Object, seen: Seen) -> Object:
    """The complete new status; `before` is the last one."""
    after = dict(before)
    after["observedGeneration"] = seen.generation
    after["selector"] = pod_selector(seen.name)
    if seen.segments:
        after["segments"] = len(seen.segments)
        after["readySegments"] = _served(seen)
        after["notInEffect"] = [*seen.not_in_effect, *seen.plan.not_in_effect]
        after["catalogUid"] = seen.catalog_uid
        if seen.frontier is not None:
            after["frontier"] = seen.frontier
    lost = _lost_volumes(before.get("lostVolumes", ()), seen)
    if lost or "lostVolumes" in before:
        after["lostVolumes"] = lost
    after["conditions"] = _conditions(before.get("conditions", ()), lost, seen)
    return after


def _lost_volumes(before: Iterable[Object], seen: Seen) -> list[Object]:
    """The claims that are lost now or were replaced within the last day.

    Without a plan (`wanted` is 0) no claim was looked at, and the list stays as it is.
    """
    if not seen.plan.wanted:
        return list(before)
    now, lost = timestamp(seen.now), dict.fromkeys(seen.plan.lost_volumes)
    found = []
    for entry in before:
        if "replacedAt" not in entry:
            was_lost_before = entry["name"] in lost
            lost.pop(entry["name"], None)
            found.append(entry if was_lost_before else {**entry, "replacedAt": now})
        elif seen.now - datetime.fromisoformat(entry["replacedAt"]) < _REMEMBERED:
            found.append(entry)
    return [*found, *({"name": name, "lostAt": now} for name in lost)][-MOST_LOST:]


def frontier_text(lowers: Iterable[Sequence[Time] | None]) -> str | None:
    """The lower frontier over all segments, as JSON; None while that of a segment is unknown.

    A large frontier is shown as its size: an API server limits the size of objects, and no one reads hundreds of times.

    >>> frontier_text([[5], [3, 7]]), frontier_text([[], []]), frontier_text([[1], None])
    ('[3]', '[]', None)
    >>> frontier_text([[(10**12 + n, 10**12 - n) for n in range(200)]])
    '200 times'
    """
    known = list(lowers)
    if any(lower is None for lower in known):
        return None
    joined = Antichain(time for lower in known if lower is not None for time in lower)
    text = str([to_json(time) for time in sorted(joined)])
    return text if len(text) <= MOST_FRONTIER else f"{len(joined)} times"


def news(before: Object, after: Object) -> list[News]:
    """The events for a change of status: one for each new reason of a condition. A new stream gets only warnings."""
    old = {item["type"]: (item["status"], item["reason"]) for item in before.get("conditions", ())}
    under_way = any(item["type"] == "Progressing" and item["status"] == "True" for item in after["conditions"])
    expected = _FINE_UNDER_WAY if under_way else _FINE
    found: dict[str, News] = {}
    for item in after["conditions"]:
        if old.get(item["type"]) != (item["status"], item["reason"]):
            is_warning = item["reason"] not in expected | _FINE_OF_RELAYS
            if before or is_warning:
                found.setdefault(item["reason"], News(item["reason"], item["message"], is_warning))
    return list(found.values())


def _served(seen: Seen) -> int:
    return len({segment for pod in seen.plan.pods if is_ready(pod) for segment in segments_of(pod)})


def _conditions(before: Iterable[Object], lost: Sequence[Object], seen: Seen) -> list[Object]:
    old = {item["type"]: item for item in before}
    judged = {"Ready": _ready(seen), "Progressing": _progressing(seen), "Degraded": _degraded(seen, lost)}
    return [condition(kind, verdict, old.get(kind), seen.generation, seen.now) for kind, verdict in judged.items()]


def condition(kind: str, verdict: Verdict, old: Object | None, generation: int, now: datetime) -> Object:
    """One condition; its transition time changes only with its status."""
    holds, reason, message = verdict
    status = "True" if holds else "False"
    stays = old is not None and old["status"] == status
    return {
        "type": kind,
        "status": status,
        "reason": reason,
        "message": message[:_MOST_MESSAGE],
        "lastTransitionTime": old["lastTransitionTime"] if stays and old else timestamp(now),
        "observedGeneration": generation,
    }


def timestamp(now: datetime) -> str:
    """A time in the format of Kubernetes, in seconds."""
    return now.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def _ready(seen: Seen) -> Verdict:
    """Whether every segment is served, even if the newest manifest is wrong and an earlier one is in effect."""
    if (conflict := _conflict(seen)) and not all(map(_is_relay, seen.plan.conflicts)):
        return False, *conflict
    if seen.wrong and not seen.segments:
        return False, *seen.wrong
    if not seen.catalog_uid:
        return False, "CatalogUnavailable", seen.catalog_trouble or "the stream is not declared at the catalog yet"
    served, count = _served(seen), len(seen.segments)
    if served == count:
        return True, "Serving", f"all {count} segments are served" if count > 1 else "the segment is served"
    waits = f"; waiting for the end of {', '.join(seen.plan.waiting)}" if seen.plan.waiting else ""
    why = [f"{pod['metadata']['name']}: {said}" for pod in seen.plan.pods if (said := waits_for(pod))]
    return (
        False,
        "PublishersNotReady",
        f"{served} of {count} segments are served{waits}{f'; {some_of(why)}' if why else ''}",
    )


def _progressing(seen: Seen) -> Verdict:
    if wrong := _conflict(seen) or seen.wrong:
        return False, *wrong
    plan = seen.plan
    stuck = [f"{pod['metadata']['name']} {why}" for pod in plan.pods if (why := _trouble(pod, seen))]
    if stuck:
        left = f"; {len(plan.outdated)} pods stay as they are" if plan.outdated else ""
        return False, "RolloutStuck", f"not ready: {', '.join(stuck)}{left}"
    if plan.held:
        return _held(plan, plan.held)
    if plan.outdated:
        there = max(plan.wanted, len(plan.pods))
        return True, "Rolling", f"{len(plan.outdated)} of {there} pods are still to be replaced"
    if plan.actions or plan.waiting or _served(seen) < len(seen.segments) or not seen.segments:
        return True, "Starting", "pods are made, or become ready"
    return False, "Complete", _complete(plan)


def _held(plan: ClusterPlan, held: Held) -> Verdict:
    """The verdict for a stream whose pods of an older release stay because of other streams."""
    count, others = len(plan.behind), some_of(held.by)
    if not held.is_stopped:
        return True, "RolloutWaiting", f"{count} pods are to be replaced after those of {others}"
    why = f"pods of the new release are stuck: {others}; mend these, or go back to the release before"
    return False, "RolloutStopped", f"{count} pods of an older release stay as they are, because {why}"


def _complete(plan: ClusterPlan) -> str:
    if not plan.waiting_for_restart:
        return "everything is as declared"
    return (
        f"everything is as declared, but {some_of(plan.waiting_for_restart)} were made under other settings"
        " (history, progress, push); without storage a publisher takes changed ones when it next starts"
    )


def some_of(items: Sequence[str]) -> str:
    """The first five as text, and the number of the others."""
    more = len(items) - 5
    return f"{', '.join(items[:5])}{f' and {more} more' if more > 0 else ''}"


def _degraded(seen: Seen, lost: Sequence[Object]) -> Verdict:
    plan = seen.plan
    if plan.lost_volumes:
        return (
            True,
            "VolumeLost",
            (
                f"the claims {', '.join(plan.lost_volumes)} are gone or lost, with all that they held; they are created"
                f" again, without the history, once these are deleted: {', '.join(dict.fromkeys(plan.in_the_way))}"
            ),
        )
    if (wrong := _conflict(seen) or seen.wrong) and wrong[0] != "Deleting":
        return True, *wrong
    if seen.catalog_trouble:
        return True, "CatalogUnavailable", seen.catalog_trouble
    if seen.unbound:
        return True, "VolumePending", f"no volume is bound to these claims: {some_of(seen.unbound)}"
    if failing := [f"{pod['metadata']['name']} {why}" for pod in plan.pods if (why := _trouble(pod, seen))]:
        return True, "PublisherFailing", ", ".join(failing)
    if seen.full_disks:
        return True, "DiskFull", f"{some_of(seen.full_disks)}; give the volumes more space, or retain less"
    if seen.lost_writers:
        return True, "WriterLost", _lost(seen)
    if seen.lost_epochs:
        epochs = some_of(seen.lost_epochs)
        return True, "MemoryLost", f"a publisher ended without its history, and open epochs are aborted: {epochs}"
    if seen.waiting_segments:
        return (
            True,
            "AppendsWaiting",
            (
                "appends wait until the catalog has recorded their times, in these segments:"
                f" {some_of(seen.waiting_segments)}; see that the catalog can write its database and is not older than"
                " the publishers, and that these reach it"
            ),
        )
    if lost:
        names = some_of([f"{entry['name']} at {entry['lostAt']}" for entry in lost])
        return (
            False,
            "VolumeReplaced",
            f"nothing is wrong now, but these claims were lost, and made again without their history: {names}",
        )
    return False, "AsExpected", "nothing is wrong"


def _lost(seen: Seen) -> str:
    return (
        "nothing completes that these lost writers may still write at (progress.whenLost: hold):"
        f" {some_of(seen.lost_writers)}; start them again, or let each go with `epochal release {seen.name} WRITER`"
    )


def _conflict(seen: Seen) -> tuple[str, str] | None:
    if not seen.plan.conflicts:
        return None
    names = ", ".join(seen.plan.conflicts)
    return "NameConflict", f"something else has the names that the stream needs: {names}; delete or rename it"


def _is_relay(named: str) -> bool:
    """Whether a conflicting name is that of the stream's Relay: the stream is served without it."""
    return named.startswith(f"{RELAY_KIND} ")


def _trouble(pod: Object, seen: Seen) -> str:
    return trouble(pod, seen.now, seen.patience)
