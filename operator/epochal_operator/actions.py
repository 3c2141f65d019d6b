"""Carries out what is planned for a stream or a relay, and finds out what is otherwise than known.

Separate from the reconcilers because both do it in the same way: what Kubernetes refuses stops only what needs it, and
what has changed meanwhile is looked at, and planned with, again.
"""

import logging
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum

from epochal.backoff import Backoff
from epochal.kube.api import ApiError
from epochal.resources.cluster import Apply, ClusterAction, ClusterPlan, Create, Delete
from epochal.resources.cluster.planner import claims_of
from epochal.resources.cluster.status import News
from epochal.resources.spec import Object
from epochal_operator.api import ThrottledApi
from epochal_operator.cache import Cache
from epochal_operator.reporter import Reporter

logger = logging.getLogger("epochal.operator")

_TRIES = 5
"""Looks after conflicts before the stream is left to a later one."""
_PAUSE_FIRST, _PAUSE_LAST = 0.2, 1.6
"""Seconds between them, at most."""
_BY_POST = frozenset(("Pod", "PersistentVolumeClaim"))
"""What is made once and not changed afterwards; the others are applied, so that their fields have one manager."""

_MOST_ALIKE = 8
"""So many refusals of one kind are enough for one look: a quota refuses a thousand pods one by one."""
_SHOWN = 3


class _Outcome(Enum):
    """What became of one action."""

    DONE = "done"
    SAME = "same"
    """All was so already, for Kubernetes: it writes some values in another way, or something else changes them back."""
    OTHERWISE = "otherwise"
    """There is something else than was known."""


class OutOfDate(Exception):
    """What was known is old; what there is now is known by now, and the next look sees it."""


@dataclass(slots=True)
class Refusals:
    """The actions that were refused, with the API server's words, and those that met something else than was known."""

    refused: list[tuple[ClusterAction, str]] = field(default_factory=list)
    otherwise: list[ClusterAction] = field(default_factory=list)

    def add(self, action: ClusterAction, message: str) -> None:
        """This one was refused."""
        self.refused.append((action, message))

    def stop(self, action: ClusterAction) -> bool:
        """Whether this one is to wait: it needs what could not be made, or enough of its like were refused."""
        alike = sum(_like(other) == _like(action) for other, _ in self.refused)
        return alike >= _MOST_ALIKE or any(_needs(action.item, item) for item in self._unmade())

    def message(self) -> str:
        """What was said, for the status."""
        messages = list(dict.fromkeys(message for _, message in self.refused))
        more = f"; and {len(messages) - _SHOWN} more" if len(messages) > _SHOWN else ""
        return "; ".join(messages[:_SHOWN]) + more

    def _unmade(self) -> Iterator[Object]:
        failed = [*(action for action, _ in self.refused), *self.otherwise]
        return (action.item for action in failed if isinstance(action, Create))


@dataclass(frozen=True, slots=True)
class Actions:
    """Creates, changes and deletes objects, and keeps what is known of them up to date."""

    api: ThrottledApi
    cache: Cache
    reporter: Reporter

    async def carry_out(
        self, of: Object, plan: Callable[[], ClusterPlan], check: Callable[[], Awaitable[None]]
    ) -> tuple[ClusterPlan, Refusals]:
        """Plan and do it, again where something was otherwise than known. `check` is awaited before the first action.

        Of the plan that is returned the actions were done, and changed something; what Kubernetes refused is beside it.
        Events are posted to the object `of`. Raises `OutOfDate`, `ApiError`, and what `check` raises.
        """
        backoff = Backoff(_PAUSE_FIRST, _PAUSE_LAST, jitter=1)
        for tried in range(_TRIES):
            planned = plan()
            if not planned.actions:
                return planned, Refusals()
            if tried == 0:
                await check()
            else:
                await backoff.pause()
            done, refusals = await self._act_on_all(of, planned.actions)
            if not refusals.otherwise:
                return replace(planned, actions=done), refusals
        raise OutOfDate("{namespace}/{name} changes faster than it is looked at".format_map(of["metadata"]))

    async def _act_on_all(
        self, of: Object, actions: Sequence[ClusterAction]
    ) -> tuple[tuple[ClusterAction, ...], Refusals]:
        """What was done, and what was refused or met something unknown. That stops nothing that does not need it."""
        done: list[ClusterAction] = []
        refusals = Refusals()
        for action in actions:
            if refusals.stop(action):
                continue
            try:
                match await self._act(action):
                    case _Outcome.DONE:
                        done.append(action)
                        await self._report(of, action)
                    case _Outcome.OTHERWISE:
                        refusals.otherwise.append(action)
            except ApiError as error:
                if error.passes or error.status in (404, 409):
                    raise
                refusals.add(action, error.message)
        return tuple(done), refusals

    async def _report(self, of: Object, action: ClusterAction) -> None:
        """One line of the log and one event: what was done to what, and why."""
        name = f"{action.item['kind']} {action.item['metadata']['name']}"
        whose = "{namespace}/{name}".format_map(of["metadata"])
        logger.info("%s: %s %s: %s", whose, action.reason, name, action.why)
        await self.reporter.event(of, News(action.reason, f"{name}: {action.why}", is_warning=False))

    async def _act(self, action: ClusterAction) -> _Outcome:
        """Do one thing. Raises `ApiError` for refusals, unless there is something else than was known."""
        try:
            match action:
                case Create(item):
                    return await self._create(item)
                case Apply(item, uid):
                    return await self._apply(item, uid)
                case Delete():
                    await self._delete(action)
        except ApiError as error:
            if error.status not in (404, 409) or (error.status == 404 and isinstance(action, Create)):
                raise
            await self.refresh(action.item)
            return _Outcome.OTHERWISE
        return _Outcome.DONE

    async def _create(self, item: Object) -> _Outcome:
        if item["kind"] in _BY_POST:
            self.cache.put(await self.api.create(item))
            return _Outcome.DONE
        if await self.refresh(item) is not None:
            return _Outcome.OTHERWISE
        self.cache.put(await self.api.apply(item))
        return _Outcome.DONE

    async def _apply(self, item: Object, uid: str) -> _Outcome:
        known, requested = self.cache.find(item), self.cache.dropped
        found = await self.api.apply(item, uid=uid)
        self.cache.put(found, requested)
        is_same = known is not None and known["metadata"]["resourceVersion"] == found["metadata"]["resourceVersion"]
        return _Outcome.SAME if is_same else _Outcome.DONE

    async def _delete(self, action: Delete) -> None:
        item = action.item
        left = await self.api.delete(item, action.preconditions)
        if left is None:
            self.cache.drop(item)
        else:
            self.cache.put(left)

    async def refresh(self, item: Object) -> Object | None:
        """Ask the API server how an object is, and know it from now on."""
        metadata = item["metadata"]
        known, requested = self.cache.find(item), self.cache.dropped
        found = await self.api.get(item["kind"], metadata["namespace"], metadata["name"])
        # What became known while this was asked for may be newer than the answer, and is left.
        if known is not None and (found is None or found["metadata"]["uid"] != known["metadata"]["uid"]):
            self.cache.drop(known)
        if found is not None:
            self.cache.put(found, requested)
        return found


def _like(action: ClusterAction) -> tuple[type, str]:
    return type(action), action.item["kind"]


def _needs(item: Object, unmade: Object) -> bool:
    """A pod needs its own volumes, and whatever else there is for all pods."""
    if item["kind"] != "Pod" or unmade["kind"] == "Pod":
        return False
    return unmade["kind"] != "PersistentVolumeClaim" or unmade["metadata"]["name"] in claims_of(item)
