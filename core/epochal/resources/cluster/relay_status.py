"""The status of a Relay, by the same rules as the status of a Stream."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import datetime

from epochal.resources.cluster.planner import ClusterPlan
from epochal.resources.cluster.pod_state import has_ended, trouble, waits_for
from epochal.resources.cluster.relay import relay_selector
from epochal.resources.cluster.status import Verdict, condition, some_of
from epochal.resources.cluster.stream import is_terminating
from epochal.resources.spec import Object


@dataclass(frozen=True, slots=True)
class RelaySeen:
    """The findings of one reconcile of a Relay."""

    name: str
    generation: int
    now: datetime
    plan: ClusterPlan = field(default_factory=ClusterPlan)
    deployment: Object | None = None
    """The existing Deployment, if there is one."""
    wanted: int | None = None
    """The number of relays that should run; None if unknown; then the present replicas stay."""
    subscribers: int | None = None
    """None if unknown; then the status keeps its value."""
    wrong: tuple[str, str] | None = None
    """Why the Relay is not carried out as declared, or not completely: reason and message."""
    pods: Sequence[Object] = ()
    """Its pods, read only if `is_short`: they say why."""
    patience: float = 300.0
    """Seconds that a pod may take to become ready before it counts as stuck."""


def relay_status_of(before: Object, seen: RelaySeen) -> Object:
    """The complete new status; `before` is the last one."""
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


def is_short(seen: RelaySeen) -> bool:
    """Whether some relay does not serve. Its pod can say why."""
    return bool(_count(seen, "unavailableReplicas")) or _count(seen, "readyReplicas") < _wanted(seen)


def _count(seen: RelaySeen, name: str) -> int:
    return int((seen.deployment or {}).get("status", {}).get(name) or 0)


def _wanted(seen: RelaySeen) -> int:
    if seen.wanted is not None:
        return seen.wanted
    return int((seen.deployment or {}).get("spec", {}).get("replicas", 0))


def _said_by_pods(seen: RelaySeen, say: Callable[[Object], str]) -> Iterator[str]:
    """The text of `say` for each pod, without pods that have ended (evicted, say) or are ending: those are replaced."""
    for pod in sorted(seen.pods, key=lambda pod: str(pod["metadata"]["name"])):
        if not has_ended(pod) and not is_terminating(pod) and (said := say(pod)):
            yield f"{pod['metadata']['name']} {said}"


def _ready(seen: RelaySeen) -> Verdict:
    """Whether as many relays as wanted serve subscribers."""
    if conflict := _conflict(seen):
        return False, *conflict
    ready, wanted = _count(seen, "readyReplicas"), _wanted(seen)
    if not wanted and seen.wrong:
        return False, *seen.wrong
    if not wanted:
        return False, "ScaledToZero", "no relay is declared; subscribers connect to publishers"
    if ready >= wanted:
        return True, "Serving", f"{ready} relays serve subscribers" if ready > 1 else "the relay serves subscribers"
    why = some_of([*_said_by_pods(seen, lambda pod: waits_for(pod) and f"({waits_for(pod)})")])
    return False, "RelaysNotReady", f"{ready} of {wanted} relays serve subscribers{f'; {why}' if why else ''}"


def _degraded(seen: RelaySeen) -> Verdict:
    if wrong := _conflict(seen) or seen.wrong:
        return True, *wrong
    for item in _conditions(seen.deployment):
        if item["type"] == "ReplicaFailure" and item["status"] == "True":
            return True, "PodsRefused", str(item.get("message", ""))
    if failing := [*_said_by_pods(seen, lambda pod: trouble(pod, seen.now, seen.patience))]:
        return True, "RelayFailing", some_of(failing)
    for item in _conditions(seen.deployment):
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
