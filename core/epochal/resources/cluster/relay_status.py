"""The status of a Relay's object, by the same rules as that of a Stream."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import datetime

from epochal.resources.cluster.planner import ClusterPlan
from epochal.resources.cluster.relay import relay_selector
from epochal.resources.cluster.status import Verdict, condition
from epochal.resources.spec import Object


@dataclass(frozen=True, slots=True)
class RelaySeen:
    """What one look at a Relay found."""

    name: str
    generation: int
    now: datetime
    plan: ClusterPlan = field(default_factory=ClusterPlan)
    deployment: Object | None = None
    """As it is; None where there is none."""
    wanted: int | None = None
    """How many relays there should be; None: not known, and those go on that there are."""
    subscribers: int | None = None
    """None: not known, and the status keeps what it says."""
    wrong: tuple[str, str] | None = None
    """Why nothing, or not everything, is done as it is declared: reason and message."""


def relay_status_of(before: Object, seen: RelaySeen) -> Object:
    """The whole status, after `before`."""
    after = dict(before)
    after["observedGeneration"] = seen.generation
    after["selector"] = relay_selector(seen.name)
    after["replicas"] = _count(seen, "replicas")
    after["readyReplicas"] = _count(seen, "readyReplicas")
    if seen.subscribers is not None:
        after["subscribers"] = seen.subscribers
    old = {item["type"]: item for item in before.get("conditions", ())}
    judged = {"Ready": _ready(seen), "Degraded": _degraded(seen)}
    after["conditions"] = [
        condition(kind, verdict, old.get(kind), seen.generation, seen.now) for kind, verdict in judged.items()
    ]
    return after


def _count(seen: RelaySeen, name: str) -> int:
    return int((seen.deployment or {}).get("status", {}).get(name) or 0)


def _ready(seen: RelaySeen) -> Verdict:
    """Whether subscribers are served by as many relays as there should be."""
    if conflict := _conflict(seen):
        return False, *conflict
    ready, wanted = _count(seen, "readyReplicas"), seen.wanted
    if wanted is None:
        wanted = (seen.deployment or {}).get("spec", {}).get("replicas", 0)
    if not wanted and seen.wrong:
        return False, *seen.wrong
    if not wanted:
        return False, "ScaledToZero", "no relay is declared; subscribers connect to publishers"
    if ready >= wanted:
        return True, "Serving", f"{ready} relays serve subscribers" if ready > 1 else "the relay serves subscribers"
    return False, "RelaysNotReady", f"{ready} of {wanted} relays serve subscribers"


def _degraded(seen: RelaySeen) -> Verdict:
    if wrong := _conflict(seen) or seen.wrong:
        return True, *wrong
    for item in _conditions(seen.deployment):
        if item["type"] == "ReplicaFailure" and item["status"] == "True":
            return True, "PodsRefused", str(item.get("message", ""))
        if item["type"] == "Progressing" and item["status"] == "False":
            return True, "RolloutStuck", f"pods do not become ready: {item.get('message', '')}"
    return False, "AsExpected", "nothing is wrong"


def _conditions(deployment: Object | None) -> Iterable[Object]:
    return (deployment or {}).get("status", {}).get("conditions") or ()


def _conflict(seen: RelaySeen) -> tuple[str, str] | None:
    if not seen.plan.conflicts:
        return None
    names = ", ".join(seen.plan.conflicts)
    return "NameConflict", f"something else has the names that the relay needs: {names}; delete or rename it"
