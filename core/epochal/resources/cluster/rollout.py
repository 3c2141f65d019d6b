"""Which streams may have their pods replaced for a new release of the operator's settings, such as another image.

    nothing proven      one stream at a time, until all of its new pods are ready
    proven              a few streams at a time
    stopped             none, while a pod of the new release is stuck

A wrong image then costs one pod of one stream. Nothing is remembered that a new process could not see from the pods,
save which streams have begun: it finds those by their pods of two releases. Going back is a new release: what is stuck
is of the old one then, serves no one, and is replaced at once.

A change of one stream's own manifest is not held back by others: its pods are of this release, drawn otherwise.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from typing import TypeAlias

from epochal.resources.cluster.planner import ClusterPlan, Held, release_of_pod
from epochal.resources.cluster.pod_state import is_ready, trouble
from epochal.resources.spec import Object

Name: TypeAlias = tuple[str, str]
"""Namespace and name of a stream."""


class Rollout:
    """Lets streams begin. `release`: of the pods that are drawn now; `at_once`: streams that may be under way."""

    def __init__(self, release: str, at_once: int, patience: float) -> None:
        self._release = release
        self._at_once = at_once
        self._patience = patience
        self._begun: set[Name] = set()
        """Streams that were let begin, and are not done."""
        self._blocked: set[Name] = set()
        """Streams that cannot go on now for reasons of their own: these keep no others waiting."""
        self._waiting: dict[Name, None] = {}
        """Streams that were refused, in order."""
        self._due: list[Name] = []

    def plan(
        self,
        name: Name,
        plan: Callable[[bool], ClusterPlan],
        streams: Callable[[], Mapping[Name, Sequence[Object]]],
        now: datetime,
    ) -> ClusterPlan:
        """What is to be done for a stream now; pods of an older release stay where it is not the stream's turn.

        `plan`: as `plan_cluster`, by whether such pods may be replaced. `streams`: as for `ask`.
        """
        planned = plan(True)
        if not planned.upgrades:
            return planned
        held = self.ask(name, streams(), now, serves=any(map(is_ready, planned.upgrades)))
        return planned if held is None else replace(plan(False), held=held)

    def look(self, name: Name, plan: ClusterPlan, *, may_roll: bool) -> None:
        """A stream was planned so: it is done, or cannot go on, or neither."""
        if not may_roll or plan.lost_volumes or plan.conflicts:
            self.blocked(name)
        elif not plan.behind and len(plan.pods) == plan.wanted and all(map(is_ready, plan.pods)):
            self.done(name)

    def ask(self, name: Name, streams: Mapping[Name, Sequence[Object]], now: datetime, *, serves: bool) -> Held | None:
        """May this stream have a pod of an older release replaced now? None if so.

        `streams`: the pods that stand, of every stream. `serves`: whether that pod is ready; one that is not is
        replaced whenever nothing is stuck, as it may be what the new release is to heal.
        """
        self._blocked.discard(name)
        if stuck := self._stuck(streams, now):
            self._waiting[name] = None
            return Held(True, tuple(stuck))
        under_way = self._under_way(streams)
        most = self._at_once if self._is_proven(streams, under_way) else 1
        if name not in under_way and serves and len(under_way) >= most:
            self._waiting[name] = None
            return Held(False, tuple("/".join(each) for each in sorted(under_way)))
        if name in under_way or serves:
            self._begun.add(name)
        self._waiting.pop(name, None)
        return None

    def done(self, name: Name) -> None:
        """All pods of this stream are of the new release, and ready, or it is gone: others may begin."""
        self._blocked.discard(name)
        self._waiting.pop(name, None)
        if name in self._begun:
            self._begun.discard(name)
            self._wake()

    def blocked(self, name: Name) -> None:
        """This stream cannot go on now: its manifest is wrong, a volume is lost, the catalog is away."""
        self._waiting.pop(name, None)
        self._blocked.add(name)
        if name in self._begun:
            self._begun.discard(name)
            self._wake()

    def due(self) -> list[Name]:
        """Streams that waited, and should be looked at again now."""
        due, self._due = self._due, []
        return due

    def _wake(self) -> None:
        for name in list(self._waiting)[: self._at_once]:
            del self._waiting[name]
            self._due.append(name)

    def _stuck(self, streams: Mapping[Name, Sequence[Object]], now: datetime) -> Iterable[str]:
        return [
            f"{namespace}/{pod['metadata']['name']} {why}"
            for (namespace, _), pods in streams.items()
            for pod in pods
            if self._is_new(pod) and (why := trouble(pod, now, self._patience))
        ]

    def _under_way(self, streams: Mapping[Name, Sequence[Object]]) -> set[Name]:
        mixed = {name for name, pods in streams.items() if len({self._is_new(pod) for pod in pods}) == 2}
        return (mixed | (self._begun & streams.keys())) - self._blocked

    def _is_proven(self, streams: Mapping[Name, Sequence[Object]], under_way: set[Name]) -> bool:
        """Whether the new release serves some stream."""
        return any(
            pods and all(self._is_new(pod) and is_ready(pod) for pod in pods)
            for name, pods in streams.items()
            if name not in under_way
        )

    def _is_new(self, pod: Object) -> bool:
        return release_of_pod(pod) == self._release
