"""Which actions lead from the objects that are there to those that should be: a pure function.

`resources.plan` decides which publishers there are, for local mode too. Here publishers are pods, which take time to
come and go, and beside them are volumes, services and what others made under the same names.
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
    """To whom an object belongs."""

    OURS = "ours"
    LEFT_OVER = "left over"
    """A deleted stream of the same name: it is being collected, and its name becomes free."""
    FOREIGN = "foreign"
    """Somebody else; it is not touched."""


def whose(item: Object, name: str, object_uid: str, kind: str = KIND) -> Whose:
    """Judge by the controlling owner, which no one sets by accident, as happens with labels."""
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
    """Make this object; if there is one of its name by now, look at it again."""

    item: Object
    why: str = "there was none"

    @property
    def reason(self) -> str:
        """The reason of the event about it."""
        return "Created"


@dataclass(frozen=True, slots=True)
class Apply:
    """Bring the fields of `item` to the object with this uid, and leave its others alone."""

    item: Object
    uid: str
    why: str = ""
    reason: str = "Changed"
    """Of the event about it: `PutBack` if someone else had changed the object."""


@dataclass(frozen=True, slots=True)
class Delete:
    """Delete exactly the object that was seen: this uid in this version."""

    item: Object
    why: str

    @property
    def reason(self) -> str:
        """The reason of the event about it."""
        return "Deleted"

    @property
    def preconditions(self) -> dict[str, str]:
        """What must hold of the object, or nothing is deleted."""
        metadata = self.item["metadata"]
        return {"uid": metadata["uid"], "resourceVersion": metadata["resourceVersion"]}


ClusterAction: TypeAlias = Create | Apply | Delete


class Held(NamedTuple):
    """Why pods of an older release stay for now (`rollout`)."""

    is_stopped: bool
    """Whether pods of the new release are stuck; else the stream's turn comes by itself."""
    by: tuple[str, ...]
    """The pods that are stuck, with why; or the streams that are under way."""


@dataclass(frozen=True, slots=True)
class ClusterPlan:
    """What to do now, and what was seen on the way."""

    actions: tuple[ClusterAction, ...] = ()
    conflicts: tuple[str, ...] = ()
    """Names that something else has, as `Kind name`."""
    lost_volumes: tuple[str, ...] = ()
    """Claims that are gone, going or lost while their pod still runs on them; or lost, and in the way of another."""
    in_the_way: tuple[str, ...] = ()
    """What a person must delete so that these claims are made again, as `Kind name`."""
    waiting: tuple[str, ...] = ()
    """What must end before more can be made."""
    outdated: tuple[Object, ...] = ()
    """Pods that run, and not as they should."""
    pods: tuple[Object, ...] = ()
    """The pods that stand: not ended, not on their way out, and of publishers that there should be, or may be still."""
    wanted: int = 0
    """How many pods there should be."""
    not_in_effect: tuple[str, ...] = ()
    """Fields of the manifest that the volumes are not as."""
    waiting_for_restart: tuple[str, ...] = ()
    """Pods that were made under other settings, for which none is replaced."""
    pending: tuple[Object, ...] = ()
    """Claims that no volume is bound to, and that no pod serves from."""
    behind: tuple[Object, ...] = ()
    """Of the outdated pods, those of an older release."""
    held: Held | None = None
    """Why these stay for now, where other streams are the reason."""

    @property
    def upgrades(self) -> tuple[Object, ...]:
        """The pods of an older release that are to be replaced now."""
        behind = {pod["metadata"]["uid"] for pod in self.behind}
        ended = (action.item for action in self.actions if isinstance(action, Delete))
        return tuple(item for item in ended if item["metadata"]["uid"] in behind)


@dataclass(slots=True)
class _Planning:
    """One planning under way. `kind`, `name` and `object_uid`: of the object that all others belong to."""

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
    """What cannot be made now."""


@dataclass(slots=True)
class _Pods:
    """The pods that are there and run, by what becomes of them; and those that are not there."""

    kept: list[Object] = field(default_factory=list)
    outdated: list[Object] = field(default_factory=list)
    """Of these, what was drawn otherwise."""
    leaving: list[Object] = field(default_factory=list)
    """They serve, until others have their segments."""
    starts: list[PodSlot] = field(default_factory=list)


def plan_cluster(
    stream: ClusterStream,
    wanted: Sequence[Object],
    observed: Iterable[Object],
    *,
    may_roll: bool = True,
    may_upgrade: bool = True,
) -> ClusterPlan:
    """What leads from `observed` to `wanted`, which `children_of` drew.

    `observed`: everything in the stream's namespace that has its label, or one of the wanted names.
    `may_roll`: whether a pod that runs may be replaced now. `may_upgrade`: also one of an older release.
    Idempotent: once the actions are carried out and pods are ready, planning again gives none. At most one pod is
    deleted for being outdated, or one group for exchanging segments, and only while all others are ready; or one that
    serves no one.
    """
    planning = _begin(KIND, stream.name, stream.object_uid, wanted, observed)
    there = _plan_pods(planning, stream)
    pods = [item for item in wanted if item["kind"] == "Pod"]
    count, release = len(pods), release_of_pod(pods[0]) if pods else ""
    behind = [pod for pod in (*there.outdated, *there.leaving) if release_of_pod(pod) != release]
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
    """What leads from `observed` to `wanted`, which are the objects of one of this kind, and no pods."""
    planning = _begin(kind, name, object_uid, wanted, observed)
    return ClusterPlan(tuple(planning.actions), tuple(planning.conflicts), waiting=tuple(planning.waiting))


def _begin(kind: str, name: str, object_uid: str, wanted: Sequence[Object], observed: Iterable[Object]) -> _Planning:
    """Plan all but pods."""
    live = {key(item): item for item in observed}
    ours = [item for item in live.values() if whose(item, name, object_uid, kind) is Whose.OURS]
    planning = _Planning(kind, name, object_uid, wanted, live, ours)
    _sort_out(planning)
    for item in wanted:
        if item["kind"] != "Pod":
            _plan_one(planning, item)
    _drop_unwanted(planning)
    return planning


def standing_pods(stream: str, object_uid: str, observed: Iterable[Object]) -> tuple[Object, ...]:
    """The stream's pods that run, for who cannot plan because it is not known what is declared."""
    pods = (item for item in observed if item["kind"] == "Pod" and not is_terminating(item) and not has_ended(item))
    return tuple(pod for pod in pods if whose(pod, stream, object_uid) is Whose.OURS)


def release_of_pod(pod: Object) -> str:
    """The hash of the operator's settings that a pod was made under; empty where somebody removed it."""
    return str(pod["metadata"].get("annotations", {}).get(RELEASE, ""))


def segments_of(pod: Object) -> tuple[str, ...]:
    """The segments that a pod serves."""
    text = pod["metadata"].get("annotations", {}).get(SEGMENTS, "")
    return tuple(text.split(",")) if text else ()


def _sort_out(planning: _Planning) -> None:
    """Name what another owner has, and end what is left of an older stream, or relay, of the name."""
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
    """Make or repair one object that is no pod."""
    place = key(item)
    found = planning.live.get(place)
    is_volume = item["kind"] == "PersistentVolumeClaim"
    if place in planning.missing:
        return
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
    """Whether a claim waits for a volume; one that a pod serves from has one, whatever is still said of it."""
    if claim.get("status", {}).get("phase") != "Pending":
        return False
    return not any(is_ready(pod) and _uses(pod, claim["metadata"]["name"]) for pod in planning.ours)


def _lost_with(planning: _Planning, claim: str, found: Object | None) -> list[str]:
    """What a lost claim's place is taken by: nothing is lost where this is empty.

    Its data is gone, or goes with the pod that has it; made again after that, it would hide it.
    """
    users = [" ".join(key(pod)) for pod in planning.ours if _uses(pod, claim)]
    if found is None or is_terminating(found):
        return users
    is_lost = found.get("status", {}).get("phase") == "Lost"
    return [*users, " ".join(key(found))] if is_lost else []


def _drop_unwanted(planning: _Planning) -> None:
    """Delete what a change of the declaration made superfluous. A volume stays: it holds data."""
    wanted = {key(item) for item in planning.wanted}
    for item in planning.ours:
        if key(item) not in wanted and item["kind"] not in ("Pod", "PersistentVolumeClaim"):
            _end(planning, item, f"the {planning.kind.lower()} does not need it any more")


def _plan_pods(planning: _Planning, stream: ClusterStream) -> _Pods:
    """Stop, replace and start pods as the planner of publishers says; what is there then."""
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
    """Make a pod once its name is free, its volumes are there, and no other pod has its segments."""
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
    """End the next pods whose segments others are to have, once nothing is under way."""
    repacking = Repacking.of((slot_of(pod, segments_of(pod)) for pod in there.leaving), there.starts)
    ending = any(item["kind"] == "Pod" and (is_terminating(item) or has_ended(item)) for item in planning.ours)
    if ending or not all(map(repacking.is_blocked, there.starts)):
        return
    unready = [pod for pod in (*there.leaving, *there.outdated) if not is_ready(pod)]
    if unready:  # as in rolling: it serves no one
        _end(planning, unready[0], "its segments go to others, or it is outdated, and it is not ready")
    elif all(map(is_ready, there.kept)):
        group = repacking.next_group()
        for pod in there.leaving:
            if pod["metadata"]["name"] in group:
                _end(planning, pod, "its segments go to others")


def _roll(planning: _Planning, standing: Sequence[Object], outdated: Sequence[Object]) -> None:
    unready = [pod for pod in outdated if not is_ready(pod)]
    if unready:  # it serves no one, and may never: what it waits for may be what has changed
        _end(planning, unready[0], "it is outdated, and not ready")
    elif all(map(is_ready, standing)):
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
    """Whether a pod was made from this drawing.

    The pod itself is not compared: what a webhook put into it (a sidecar, another name of the image) it would put into
    the next one too, and pods would be replaced for ever.
    """
    return bool(pod["metadata"].get("annotations", {}).get(HASH) == wanted["metadata"]["annotations"][HASH])


def _marks(pod: Object) -> Object:
    """A pod without what cannot be changed of it, and without the settings that it was made under."""
    kept = {name: pod["metadata"][name] for name in ("name", "namespace", "labels", "annotations", "ownerReferences")}
    kept["annotations"] = {name: value for name, value in kept["annotations"].items() if name != SETTINGS}
    return {"apiVersion": pod["apiVersion"], "kind": pod["kind"], "metadata": kept}


def claims_of(pod: Object) -> set[str]:
    """The claims that a pod runs on."""
    volumes = pod["spec"].get("volumes", ())
    return {item["persistentVolumeClaim"]["claimName"] for item in volumes if "persistentVolumeClaim" in item}


def _uses(item: Object, claim: str) -> bool:
    return item["kind"] == "Pod" and not has_ended(item) and not is_terminating(item) and claim in claims_of(item)
