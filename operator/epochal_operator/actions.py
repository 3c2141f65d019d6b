"""Carries out the actions of a plan, for streams and relays alike.

If Kubernetes refuses an action, only the actions that depend on it are skipped. If an object turns out to differ from
what the cache has, it is read again, and a new plan is made.
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
"""Plans in one reconcile, after conflicts, before the stream is left to a later reconcile."""
_PAUSE_FIRST, _PAUSE_LAST = 0.2, 1.6
"""The longest pause before the second plan, and before any plan, in seconds."""
_BY_POST = frozenset(("Pod", "PersistentVolumeClaim"))
"""Kinds that are created by POST, because they hardly change later. Others are applied, so that one manager has their
fields."""

_MOST_ALIKE = 8
"""Refusals of the same action for the same kind before the rest is skipped: a quota refuses each pod separately."""
_SHOWN = 3


class _Outcome(Enum):
    """The result of one action."""

    DONE = "done"
    SAME = "same"
    """Nothing changed: Kubernetes writes a value in another form, or another program changes it back each time."""
    OTHERWISE = "otherwise"
    """The object on the cluster is not the one in the cache."""


class OutOfDate(Exception):
    """The cache was out of date. It has been updated, so the next reconcile sees the present state."""


@dataclass(slots=True)
class Refusals:
    """The actions that were refused, with the API server's messages, and those that found another object."""

    refused: list[tuple[ClusterAction, str]] = field(default_factory=list)
    otherwise: list[ClusterAction] = field(default_factory=list)

    def add(self, action: ClusterAction, message: str) -> None:
        """Note that this action was refused."""
        self.refused.append((action, message))

    def stop(self, action: ClusterAction) -> bool:
        """Whether to skip this action: it needs an object that could not be created, or many like it were refused."""
        alike = sum(_like(other) == _like(action) for other, _ in self.refused)
        return alike >= _MOST_ALIKE or any(_needs(action.item, item) for item in self._unmade())

    def message(self) -> str:
        """The messages as one text, for the status."""
        messages = list(dict.fromkeys(message for _, message in self.refused))
        more = f"; and {len(messages) - _SHOWN} more" if len(messages) > _SHOWN else ""
        return "; ".join(messages[:_SHOWN]) + more

    def _unmade(self) -> Iterator[Object]:
        failed = [*(action for action, _ in self.refused), *self.otherwise]
        return (action.item for action in failed if isinstance(action, Create))


@dataclass(frozen=True, slots=True)
class Actions:
    """Creates, changes and deletes objects, and updates the cache with the results."""

    api: ThrottledApi
    cache: Cache
    reporter: Reporter

    async def carry_out(
        self, of: Object, plan: Callable[[], ClusterPlan], check: Callable[[], Awaitable[None]]
    ) -> tuple[ClusterPlan, Refusals]:
        """Plan and act; repeat where the cluster differs from the cache. `check` is awaited before the first action.

        Returns the last plan, with only those actions that changed something, and the refusals. Events are about the
        object `of`. Raises `OutOfDate`, `ApiError`, and what `check` raises.
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
        """Carry out all actions except those that depend on a failed one; returns the done and the failed ones."""
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
        """Log the action with its reason, and post it as an event."""
        name = f"{action.item['kind']} {action.item['metadata']['name']}"
        whose = "{namespace}/{name}".format_map(of["metadata"])
        logger.info("%s: %s %s: %s", whose, action.reason, name, action.why)
        await self.reporter.event(of, News(action.reason, f"{name}: {action.why}", is_warning=False))

    async def _act(self, action: ClusterAction) -> _Outcome:
        """Carry out one action. Raises `ApiError` for a refusal."""
        # 404 and 409 mean that the object is not the one in the cache. Only for a creation is 404 a refusal: the
        # namespace, or the kind, does not exist.
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
        """Read an object from the API server into the cache; returns it, or None if it does not exist."""
        metadata = item["metadata"]
        known, requested = self.cache.find(item), self.cache.dropped
        found = await self.api.get(item["kind"], metadata["namespace"], metadata["name"])
        # An object that came into the cache during the request may be newer than the answer, and stays. Only the object
        # that was there before is dropped.
        if known is not None and (found is None or found["metadata"]["uid"] != known["metadata"]["uid"]):
            self.cache.drop(known)
        if found is not None:
            self.cache.put(found, requested)
        return found


def _like(action: ClusterAction) -> tuple[type, str]:
    return type(action), action.item["kind"]


def _needs(item: Object, unmade: Object) -> bool:
    """Whether `item` depends on `unmade`: a pod needs its own volume claims, and all objects that are not claims."""
    if item["kind"] != "Pod" or unmade["kind"] == "Pod":
        return False
    return unmade["kind"] != "PersistentVolumeClaim" or unmade["metadata"]["name"] in claims_of(item)
