"""Which streams may have their pods replaced for a new release of the operator's settings, such as another image.

    nothing proven      one stream at a time, until all of its new pods are ready
    proven              a few streams at a time
    stopped             none, while a pod of the new release is stuck

A bad image therefore costs one pod of one stream. A new process needs little of what the last one knew: it recognises
a stream that was being upgraded by its pods of two releases, and stuck pods stop the rollout in any case. Going back is
one more release: the stuck pods are of the older release by then, serve no one, and are replaced at once.

A change of a stream's own manifest waits for no other stream, because its pods stay in the same release.
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
    """Decides when each stream may begin its upgrade.

    `release`: the hash that new pods get. `at_once`: how many streams may be upgraded at the same time, once the
    release is proven. `patience`: seconds after which a pod that is not ready counts as stuck.
    """

    def __init__(self, release: str, at_once: int, patience: float) -> None:
        self._release = release
        self._at_once = at_once
        self._patience = patience
        self._begun: set[Name] = set()
        """Streams that have begun and are not done."""
        self._blocked: set[Name] = set()
        """Streams that cannot continue for reasons of their own. Other streams do not wait for them."""
        self._waiting: dict[Name, None] = {}
        """Streams that were refused, in the order in which they asked."""
        self._due: list[Name] = []
        """Streams to plan again, because their turn may have come."""

    def plan(
        self,
        name: Name,
        plan: Callable[[bool], ClusterPlan],
        streams: Callable[[], Mapping[Name, Sequence[Object]]],
        now: datetime,
    ) -> ClusterPlan:
        """The plan for a stream; its pods of an older release stay if it is not the stream's turn.

        `plan`: calls `plan_cluster` with this value of `may_upgrade`. `streams`: as for `ask`.
        """
        # Planned twice only where the answer matters: most plans replace no pod of an older release, and a stream that
        # need not ask must not count as begun.
        planned = plan(True)
        if not planned.upgrades:
            return planned
        held = self.ask(name, streams(), now, serves=any(map(is_ready, planned.upgrades)))
        return planned if held is None else replace(plan(False), held=held)

    def look(self, name: Name, plan: ClusterPlan, *, may_roll: bool) -> None:
        """Note the outcome of a stream's plan: the upgrade is done, is blocked, or goes on."""
        if not may_roll or plan.lost_volumes or plan.conflicts:
            self.blocked(name)
        elif not plan.behind and len(plan.pods) == plan.wanted and all(map(is_ready, plan.pods)):
            self.done(name)

    def ask(self, name: Name, streams: Mapping[Name, Sequence[Object]], now: datetime, *, serves: bool) -> Held | None:
        """Whether this stream may replace a pod of an older release now: None if so, else the reason to wait.

        `streams`: the running pods of every stream. `serves`: whether the pod to replace is ready. A pod that is not
        ready is replaced whenever no new pod is stuck: the new release may be its cure.
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
        """This stream is deleted, or all its pods are of the new release and ready: other streams may begin."""
        self._blocked.discard(name)
        self._waiting.pop(name, None)
        if name in self._begun:
            self._begun.discard(name)
            self._wake()

    def blocked(self, name: Name) -> None:
        """This stream cannot continue now: its manifest is wrong, a volume is lost, or the catalog is unreachable."""
        self._waiting.pop(name, None)
        self._blocked.add(name)
        if name in self._begun:
            self._begun.discard(name)
            self._wake()

    def due(self) -> list[Name]:
        """Streams that waited and are to be planned again now; each is returned once."""
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
        """The streams that are being upgraded now."""
        # Pods of two releases show it to a new process too. `_begun` adds streams whose last old pod is gone while
        # their new pods are not ready yet, and streams of one pod, which never have two releases at once.
        mixed = {name for name, pods in streams.items() if len({self._is_new(pod) for pod in pods}) == 2}
        return (mixed | (self._begun & streams.keys())) - self._blocked

    def _is_proven(self, streams: Mapping[Name, Sequence[Object]], under_way: set[Name]) -> bool:
        """Whether the new release is known to work: it serves a whole stream that is not being upgraded."""
        return any(
            pods and all(self._is_new(pod) and is_ready(pod) for pod in pods)
            for name, pods in streams.items()
            if name not in under_way
        )

    def _is_new(self, pod: Object) -> bool:
        return release_of_pod(pod) == self._release
