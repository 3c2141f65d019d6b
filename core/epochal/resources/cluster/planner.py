"""The cluster planner: compares the objects of a stream that exist with those it should have, and returns actions.

`resources.plan` decides which publishers a stream has, for local mode too. On a cluster a publisher is a pod, which
takes time to start and to end. A stream also has volumes, services and more, and other owners may use the same names.

Nothing is remembered between two plans: each one sees the objects as they are, so the operator may be killed between
any two writes. These invariants hold for every plan, whatever the objects are:

- A segment has one pod at a time. A pod is created only when no other pod, not even a terminating one, has its name
  or one of its segments.
- Data is never deleted. Volume claims are created and grown, and no action deletes one that is the stream's.
- A pod that serves is replaced only while all other pods are ready, and one pod, or one group that exchanges
  segments, at a time.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import NamedTuple, TypeAlias

from epochal.resources.cluster.changes import repair
from epochal.resources.cluster.children import covers, differing, grown
from epochal.resources.cluster.pod_state import has_ended, is_ready, why_ended
from epochal.resources.cluster.repacking import PodSlot, Repacking, slot_of
from epochal.resources.cluster.stream import (
    CATALOG_UID,
    HASH,
    RELEASE,
    SEGMENTS,
    SETTINGS,
    ClusterStream,
    is_terminating,
    key,
)
from epochal.resources.crd import GROUP, KIND
from epochal.resources.plan import Keep, PlannedPublisher, Start, Stop, plan, publisher_id
from epochal.resources.spec import Object


class Whose(Enum):
    """Who owns an object."""

    OURS = "ours"
    LEFT_OVER = "left over"
    """A deleted stream of the same name. Kubernetes is collecting the object, and then its name is free."""
    FOREIGN = "foreign"
    """Someone else. The operator does not touch it."""


def whose(item: Object, name: str, object_uid: str, kind: str = KIND) -> Whose:
    """The owner of `item`, judged by its controlling owner: labels are copied by accident, this reference is not."""
    for owner in item["metadata"].get("ownerReferences", ()):
        if owner.get("controller"):
            if owner["uid"] == object_uid:
                return Whose.OURS
            group = owner["apiVersion"].partition("/")[0]
            if (group, owner["kind"], owner["name"]) == (GROUP, kind, name):
                return Whose.LEFT_OVER
    return Whose.FOREIGN


@dataclass(frozen=True, slots=True)
class Create:
    """Create this object. If one of this name exists by then, the stream is planned again."""

    item: Object
    why: str = "there was none"

    @property
    def reason(self) -> str:
        """The reason in the Kubernetes event about this action."""
        return "Created"


@dataclass(frozen=True, slots=True)
class Apply:
    """Set the fields of `item` on the object with this uid, and leave all other fields as they are."""

    item: Object
    uid: str
    why: str = ""
    reason: str = "Changed"
    """The reason in the Kubernetes event about this action: `PutBack` if someone else had changed the object."""


@dataclass(frozen=True, slots=True)
class Delete:
    """Delete the object only if it is still the one that was seen: this uid in this version."""

    item: Object
    why: str

    @property
    def reason(self) -> str:
        """The reason in the Kubernetes event about this action."""
        return "Deleted"

    @property
    def preconditions(self) -> dict[str, str]:
        """The preconditions of the delete request; the API server refuses it where one of them does not hold."""
        metadata = self.item["metadata"]
        return {"uid": metadata["uid"], "resourceVersion": metadata["resourceVersion"]}


ClusterAction: TypeAlias = Create | Apply | Delete


class Held(NamedTuple):
    """Why a stream's pods of an older release are not replaced yet (`rollout`)."""

    is_stopped: bool
    """Whether the rollout is stopped because pods of the new release are stuck. If not, the stream waits its turn."""
    by: tuple[str, ...]
    """The stuck pods, each with the reason; or the streams that are being upgraded now."""


@dataclass(frozen=True, slots=True)
class ClusterPlan:
    """The actions for now, and the findings for the stream's status."""

    actions: tuple[ClusterAction, ...] = ()
    conflicts: tuple[str, ...] = ()
    """Names that the stream needs and that an object of another owner has, as `Kind name`."""
    lost_volumes: tuple[str, ...] = ()
    """Claims whose data is lost. They are not created again while a pod, or the lost claim itself, is in the way."""
    in_the_way: tuple[str, ...] = ()
    """Objects that a person must delete before the lost claims are created again, as `Kind name`."""
    waiting: tuple[str, ...] = ()
    """Objects that must end before others can be created, as `Kind name`."""
    outdated: tuple[Object, ...] = ()
    """Running pods that are to be replaced, or that are to go."""
    pods: tuple[Object, ...] = ()
    """Running pods that count for the status: kept, outdated, or leaving once others can have their segments."""
    wanted: int = 0
    """The number of pods that the stream should have."""
    not_in_effect: tuple[str, ...] = ()
    """Manifest fields that the existing volumes do not match."""
    waiting_for_restart: tuple[str, ...] = ()
    """Pods that run with older settings. They take the new ones at their next start and are not replaced for them."""
    pending: tuple[Object, ...] = ()
    """Claims without a bound volume, from which no pod serves."""
    behind: tuple[Object, ...] = ()
    """The outdated or leaving pods that are of an older release."""
    held: Held | None = None
    """Why the pods of an older release stay for now, if other streams are the reason."""

    @property
    def upgrades(self) -> tuple[Object, ...]:
        """The pods of an older release that this plan deletes."""
        behind = {pod["metadata"]["uid"] for pod in self.behind}
        ended = (action.item for action in self.actions if isinstance(action, Delete))
        return tuple(item for item in ended if item["metadata"]["uid"] in behind)


@dataclass(slots=True)
class _Planning:
    """A plan in progress. `kind`, `name` and `object_uid` are those of the Stream or Relay that owns the objects."""

    kind: str
    name: str
    object_uid: str
    wanted: Sequence[Object]
    live: dict[tuple[str, str], Object]
    ours: list[Object]
    actions: list[ClusterAction] = field(default_factory=list)
    conflicts: list[str] = field(default_factory=list)
    lost: list[str] = field(default_factory=list)
    in_the_way: list[str] = field(default_factory=list)
    waiting: list[str] = field(default_factory=list)
    not_in_effect: set[str] = field(default_factory=set)
    waiting_for_restart: list[str] = field(default_factory=list)
    pending: list[Object] = field(default_factory=list)
    missing: set[tuple[str, str]] = field(default_factory=set)
    """Kind and name of wanted objects that cannot be created or used now; pods that need them wait."""


@dataclass(slots=True)
class _Pods:
    """The running pods, sorted by what happens to them, and the pods that are missing."""

    kept: list[Object] = field(default_factory=list)
    """Pods of publishers that stay."""
    outdated: list[Object] = field(default_factory=list)
    """The kept pods whose definition has changed since they were created."""
    leaving: list[Object] = field(default_factory=list)
    """Pods of publishers that go: they serve until other pods can take their segments."""
    starts: list[PodSlot] = field(default_factory=list)
    """Pods to create."""


def plan_cluster(
    stream: ClusterStream,
    wanted: Sequence[Object],
    observed: Iterable[Object],
    *,
    may_roll: bool = True,
    may_upgrade: bool = True,
) -> ClusterPlan:
    """The actions that lead from `observed` to `wanted`, the objects from `children_of`.

    `observed`: all objects in the stream's namespace that have its label or one of the wanted names.
    `may_roll`: whether a running pod may be replaced now. `may_upgrade`: whether that may be a pod of an older release.

    Idempotent: once the actions are carried out and all pods are ready, the next plan has no actions. A plan deletes at
    most one outdated pod, or one group of pods that exchange segments, and only while all others are ready. An outdated
    pod that is not ready is deleted at once, because it serves no one.
    """
    planning = _begin(KIND, stream.name, stream.object_uid, wanted, observed)
    there = _plan_pods(planning, stream)
    pods = [item for item in wanted if item["kind"] == "Pod"]
    count, release = len(pods), release_of_pod(pods[0]) if pods else ""
    behind = [pod for pod in (*there.outdated, *there.leaving) if release_of_pod(pod) != release]
    # Repacking goes first: it replaces pods too, and both at once could take more than one group from the readers.
    if may_roll and there.leaving:
        if may_upgrade or not behind:
            _repack(planning, there)
    elif may_roll and len(there.kept) == count:
        may_go = [pod for pod in there.outdated if may_upgrade or pod not in behind]
        if may_go:
            _roll(planning, there.kept, may_go)
    return ClusterPlan(
        tuple(planning.actions),
        tuple(planning.conflicts),
        tuple(planning.lost),
        tuple(planning.in_the_way),
        tuple(planning.waiting),
        (*there.outdated, *there.leaving),
        (*there.kept, *there.leaving),
        count,
        tuple(sorted(planning.not_in_effect)),
        tuple(planning.waiting_for_restart),
        tuple(planning.pending),
        tuple(behind),
    )


def plan_objects(
    kind: str, name: str, object_uid: str, wanted: Sequence[Object], observed: Iterable[Object]
) -> ClusterPlan:
    """The actions for an object of this kind, such as a Relay, whose children include no pods."""
    planning = _begin(kind, name, object_uid, wanted, observed)
    return ClusterPlan(tuple(planning.actions), tuple(planning.conflicts), waiting=tuple(planning.waiting))


def _begin(kind: str, name: str, object_uid: str, wanted: Sequence[Object], observed: Iterable[Object]) -> _Planning:
    """Start a plan, and plan all objects except pods."""
    live = {key(item): item for item in observed}
    ours = [item for item in live.values() if whose(item, name, object_uid, kind) is Whose.OURS]
    planning = _Planning(kind, name, object_uid, wanted, live, ours)
    _sort_out(planning)
    for item in wanted:
        if item["kind"] != "Pod":
            _plan_one(planning, item)
    _drop_unwanted(planning)
    return planning


def running_pods(stream: str, object_uid: str, observed: Iterable[Object]) -> tuple[Object, ...]:
    """The stream's running pods, where there is no plan that lists them: neither ended nor terminating."""
    pods = (item for item in observed if item["kind"] == "Pod" and not is_terminating(item) and not has_ended(item))
    return tuple(pod for pod in pods if whose(pod, stream, object_uid) is Whose.OURS)


def release_of_pod(pod: Object) -> str:
    """The hash of the operator's settings under which a pod was made; empty if someone removed it."""
    return str(pod["metadata"].get("annotations", {}).get(RELEASE, ""))


def segments_of(pod: Object) -> tuple[str, ...]:
    """The segments that a pod serves, by its annotation."""
    text = pod["metadata"].get("annotations", {}).get(SEGMENTS, "")
    return tuple(text.split(",")) if text else ()


def _sort_out(planning: _Planning) -> None:
    """Report names that another owner has, and delete what a deleted stream or relay of the same name left over."""
    wanted = {key(item) for item in planning.wanted}
    for place, item in planning.live.items():
        match whose(item, planning.name, planning.object_uid, planning.kind):
            case Whose.FOREIGN if place in wanted:
                planning.conflicts.append(" ".join(place))
                planning.missing.add(place)
            case Whose.LEFT_OVER:
                _end(planning, item, f"it is of an older {planning.kind.lower()} of this name")
                planning.missing.add(place)


def _plan_one(planning: _Planning, item: Object) -> None:
    """Create or repair one object that is not a pod."""
    place = key(item)
    found = planning.live.get(place)
    is_volume = item["kind"] == "PersistentVolumeClaim"
    if place in planning.missing:
        return
    # Before "create it if it is missing": a new, empty claim would hide that the data is lost, and the pod that still
    # runs on the old volume would keep it from being seen.
    if is_volume and (in_the_way := _lost_with(planning, place[1], found)):
        planning.lost.append(place[1])
        planning.in_the_way += in_the_way
        planning.missing.add(place)
    elif found is None:
        planning.actions.append(Create(item))
    elif is_terminating(found):
        planning.waiting.append(" ".join(place))
        planning.missing.add(place)
    elif is_volume:
        if _is_pending(planning, found):
            planning.pending.append(found)
        planning.not_in_effect |= differing(item, found)
        if bigger := grown(item, found):
            planning.actions.append(Apply(bigger, found["metadata"]["uid"], "history.storage.size has grown"))
    elif not covers(item, found):
        planning.actions.append(_apply(item, found))


def _apply(item: Object, found: Object) -> Apply:
    reason, why = repair(item, found)
    return Apply(item, found["metadata"]["uid"], why, reason)


def _is_pending(planning: _Planning, claim: Object) -> bool:
    """Whether a claim waits for a volume. If a pod serves from it, it has one, and its phase is out of date."""
    if claim.get("status", {}).get("phase") != "Pending":
        return False
    return not any(is_ready(pod) and _uses(pod, claim["metadata"]["name"]) for pod in planning.ours)


def _lost_with(planning: _Planning, claim: str, found: Object | None) -> list[str]:
    """The objects that are in the way of a lost claim, as `Kind name`; empty if the claim is not lost.

    A claim is lost if it is missing or terminating while pods still use it, or if its phase is `Lost`. The data is gone
    then, or goes when the last pod that uses it ends. A person has to know that before an empty claim replaces it.
    """
    users = [" ".join(key(pod)) for pod in planning.ours if _uses(pod, claim)]
    if found is None or is_terminating(found):
        return users
    is_lost = found.get("status", {}).get("phase") == "Lost"
    return [*users, " ".join(key(found))] if is_lost else []


def _drop_unwanted(planning: _Planning) -> None:
    """Delete objects that the manifest no longer asks for. Volume claims stay, because they hold data."""
    wanted = {key(item) for item in planning.wanted}
    for item in planning.ours:
        if key(item) not in wanted and item["kind"] not in ("Pod", "PersistentVolumeClaim"):
            _end(planning, item, f"the {planning.kind.lower()} does not need it any more")


def _plan_pods(planning: _Planning, stream: ClusterStream) -> _Pods:
    """Plan which pods start, stay and stop, as `resources.plan` decides; returns them for `_repack` and `_roll`."""
    pods = [item for item in planning.ours if item["kind"] == "Pod"]
    for pod in pods:
        if has_ended(pod):
            why = why_ended(pod)
            _end(planning, pod, f"it has ended: {why}" if why else "it has ended")
    by_id = {_publisher_of(stream, pod).id: pod for pod in pods if not is_terminating(pod) and not has_ended(pod)}
    drawn = {
        publisher_id(stream.namespace, item["metadata"]["name"]): item
        for item in planning.wanted
        if item["kind"] == "Pod"
    }
    there = _Pods()
    actions = plan([stream.desired()], [_publisher_of(stream, pod) for pod in by_id.values()])
    starts = [drawn[action.publisher.id] for action in actions if isinstance(action, Start)]
    there.starts = [slot_of(item, segments_of(item)) for item in starts]
    # A pod whose segments all go to pods that are to start is not deleted here: it serves until `_repack` takes its
    # group. All other pods that stop are deleted at once. They are of an older stream (another catalog uid), or have a
    # segment that is no longer open or that a pod which stays has too.
    free = {segment for slot in there.starts for segment in slot.segments}
    for action in actions:
        match action:
            case Start(publisher):
                _start(planning, drawn[publisher.id], pods)
            case Keep(publisher):
                _keep(planning, there, drawn[publisher.id], by_id[publisher.id])
            case Stop(publisher) if publisher.uid == stream.catalog_uid and free.issuperset(publisher.segments):
                there.leaving.append(by_id[publisher.id])
            case Stop(publisher):
                _end(planning, by_id[publisher.id], "no publisher with these segments should run")
    return there


def _keep(planning: _Planning, there: _Pods, marks: Object, pod: Object) -> None:
    there.kept.append(pod)
    made_under = pod["metadata"].get("annotations", {}).get(SETTINGS)
    if made_under not in (None, marks["metadata"]["annotations"].get(SETTINGS)):
        planning.waiting_for_restart.append(pod["metadata"]["name"])
    if not _is_current(marks, pod):
        there.outdated.append(pod)
    elif not covers(_marks(marks), pod):
        planning.actions.append(_apply(_marks(marks), pod))


def _start(planning: _Planning, wanted: Object, pods: Iterable[Object]) -> None:
    """Create a pod once its name is free, its volumes exist, and no other pod has one of its segments.

    `pods` has the terminating pods too: until such a pod is gone, its process may still write to the log.
    """
    name, segments = wanted["metadata"]["name"], set(segments_of(wanted))
    if key(wanted) in planning.missing:
        return
    for pod in pods:
        if pod["metadata"]["name"] == name or segments & set(segments_of(pod)):
            planning.waiting.append(f"Pod {pod['metadata']['name']}")
            return
    if not any(place[1] in claims_of(wanted) for place in planning.missing if place[0] == "PersistentVolumeClaim"):
        planning.actions.append(Create(wanted))


def _repack(planning: _Planning, there: _Pods) -> None:
    """Delete the next group of pods whose segments go to other pods, once the group before is done.

    The group before is done when no pod is ending and every missing pod is blocked by a leaving one: a missing pod
    that is not blocked is being created, and its segments are not served yet.
    """
    repacking = Repacking.of((slot_of(pod, segments_of(pod)) for pod in there.leaving), there.starts)
    ending = any(item["kind"] == "Pod" and (is_terminating(item) or has_ended(item)) for item in planning.ours)
    if ending or not all(map(repacking.is_blocked, there.starts)):
        return
    unready = [pod for pod in (*there.leaving, *there.outdated) if not is_ready(pod)]
    if unready:  # it serves no one, as in `_roll`
        _end(planning, unready[0], "its segments go to others, or it is outdated, and it is not ready")
    elif all(map(is_ready, there.kept)):
        group = repacking.next_group()
        for pod in there.leaving:
            if pod["metadata"]["name"] in group:
                _end(planning, pod, "its segments go to others")


def _roll(planning: _Planning, kept: Sequence[Object], outdated: Sequence[Object]) -> None:
    """Delete one outdated pod: one that is not ready at once, else the first while all others are ready."""
    unready = [pod for pod in outdated if not is_ready(pod)]
    # A pod that is not ready serves no one, and may never become ready: the change may be the cure for it.
    if unready:
        _end(planning, unready[0], "it is outdated, and not ready")
    elif all(map(is_ready, kept)):
        _end(planning, outdated[0], "it is outdated")


def _end(planning: _Planning, item: Object, why: str) -> None:
    if is_terminating(item):
        planning.waiting.append(" ".join(key(item)))
    else:
        planning.actions.append(Delete(item, why))


def _publisher_of(stream: ClusterStream, pod: Object) -> PlannedPublisher:
    metadata = pod["metadata"]
    uid = metadata.get("annotations", {}).get(CATALOG_UID, "")
    return PlannedPublisher(
        publisher_id(stream.namespace, metadata["name"]), stream.manifest.qualified, uid, segments_of(pod)
    )


def _is_current(wanted: Object, pod: Object) -> bool:
    """Whether a pod was created from this definition, by the hash in its annotation.

    The fields of the pod are not compared. A webhook may have changed them (a sidecar, another image name), and would
    change the next pod in the same way: pods would be replaced for ever.
    """
    return bool(pod["metadata"].get("annotations", {}).get(HASH) == wanted["metadata"]["annotations"][HASH])


def _marks(pod: Object) -> Object:
    """The part of a pod's definition that can change while it runs, without the settings that it was created with."""
    kept = {name: pod["metadata"][name] for name in ("name", "namespace", "labels", "annotations", "ownerReferences")}
    kept["annotations"] = {name: value for name, value in kept["annotations"].items() if name != SETTINGS}
    return {"apiVersion": pod["apiVersion"], "kind": pod["kind"], "metadata": kept}


def claims_of(pod: Object) -> set[str]:
    """The names of the volume claims that a pod uses."""
    volumes = pod["spec"].get("volumes", ())
    return {item["persistentVolumeClaim"]["claimName"] for item in volumes if "persistentVolumeClaim" in item}


def _uses(item: Object, claim: str) -> bool:
    return item["kind"] == "Pod" and not has_ended(item) and not is_terminating(item) and claim in claims_of(item)
