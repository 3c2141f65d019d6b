"""One reconcile of one stream: what it needs is planned, carried out, and reported in its status.

Whatever triggered it, each reconcile does the same. The decisions are made in `epochal.resources.cluster`; here is the
order of the calls, and what happens when one fails.
"""

import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from functools import partial
from typing import Any

from epochal.backoff import Backoff
from epochal.errors import EpochalError, ManifestError, ProtocolError, Unavailable
from epochal.kube.api import ApiError
from epochal.resources.cluster import (
    Apply,
    ClusterAction,
    ClusterPlan,
    ClusterStream,
    Create,
    Delete,
    Seen,
    check_drawable,
    children_of,
    plan_cluster,
)
from epochal.resources.cluster.planner import claims_of, standing_pods
from epochal.resources.cluster.status import News
from epochal.resources.cluster.stream import FINALIZER, is_terminating, key
from epochal.resources.spec import Object
from epochal_operator.api import ThrottledApi
from epochal_operator.cache import Cache, Place
from epochal_operator.catalog_sync import CatalogSync, DeclaredStream, declared_of, manifest_of, refused, trouble_of
from epochal_operator.ownership import Claims, without_claim
from epochal_operator.reporter import Reporter
from epochal_operator.settings import OperatorSettings

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
class Reconciler:
    """Looks at streams; holds nothing of them itself."""

    settings: OperatorSettings
    api: ThrottledApi
    cache: Cache
    catalog_sync: CatalogSync
    reporter: Reporter
    claims: Claims

    async def reconcile(self, place: Place) -> float | None:
        """Look at one stream; returns seconds after which to look again in any case.

        Raises `ApiError`, `OutOfDate`, `LeaseLost`: look again later.
        """
        stream = self.cache.streams.get(place)
        if stream is None:  # its objects go with it: Kubernetes collects what has no owner
            self.reporter.forget(place)
            return None
        if self.claims.leaves(place):
            return None
        try:
            if is_terminating(stream):
                return await self._end(stream)
            return await self._reconcile(stream)
        except ApiError as error:
            if error.status in (404, 409):
                await self._refresh(stream)
                raise OutOfDate(str(error)) from None
            raise

    # ---- a stream that lives ----

    async def _reconcile(self, stream: Object) -> float | None:
        seen = await self._bring_about(stream)
        metadata = stream["metadata"]
        newest = self.cache.streams.get((metadata["namespace"], metadata["name"]))
        if newest is None:  # someone took the finalizer off
            raise OutOfDate(f"{metadata['namespace']}/{metadata['name']} is gone")
        wait = await self.reporter.report(newest, seen)
        if seen.plan.actions:  # what they made is known already, so no event will be news, and all may be done by now
            return self.settings.retry_first
        if seen.wrong is not None and seen.wrong[0] == "Refused":
            return self.settings.retry_last
        return wait

    async def _bring_about(self, stream: Object) -> Seen:
        metadata = stream["metadata"]
        try:
            manifest = manifest_of(stream)
            check_drawable(manifest)  # before the catalog hears of it
            if not self.claims.is_claimed(stream):
                stream = await self._change(stream, self.claims.claim(stream))
            known = stream.get("status", {}).get("catalogUid", "")
            declared = await self.catalog_sync.declare(manifest, known, partial(self._check_still_there, stream))
            if not declared.uid:
                return self._seen(stream, catalog_trouble=declared.trouble)
            target = ClusterStream(manifest, metadata["uid"], declared.uid, declared.segments)
            wanted = children_of(target, self.settings.cluster)
        except ManifestError as error:
            return await self._go_on(stream, wrong=("Invalid", refused(error)))
        plan, refusals = await self._carry_out(stream, target, wanted, may_roll=not declared.trouble)
        wrong = ("Refused", refusals.message()) if refusals.refused else None
        return self._complete(stream, target, declared, plan, wrong)

    async def _go_on(self, stream: Object, wrong: tuple[str, str]) -> Seen:
        """As it was last declared well, while what is declared now is `wrong`: what is lost is made, nothing rolled."""
        metadata = stream["metadata"]
        try:
            found = await self.catalog_sync.find_declared(metadata["namespace"], metadata["name"], metadata["uid"])
        except (Unavailable, ProtocolError) as error:
            return self._look_only(stream, wrong, trouble_of(error))
        if found is None:
            return self._seen(stream, wrong=wrong)
        declared = declared_of(found)
        try:
            target = ClusterStream(found.declared(), metadata["uid"], declared.uid, declared.segments)
            wanted = children_of(target, self.settings.cluster)
        except ManifestError:  # it is of an operator that took more
            return self._look_only(stream, wrong, "")
        plan, _ = await self._carry_out(stream, target, wanted, may_roll=False)
        return self._complete(stream, target, declared, plan, wrong)

    def _look_only(self, stream: Object, wrong: tuple[str, str], trouble: str) -> Seen:
        """What was declared before is not known: the status keeps what it says, beside the pods that there are."""
        metadata, status = stream["metadata"], stream.get("status", {})
        observed = self.cache.children(metadata["namespace"], metadata["name"], frozenset())
        pods = standing_pods(metadata["name"], metadata["uid"], observed)
        return self._seen(
            stream,
            wrong=wrong,
            catalog_trouble=trouble,
            plan=ClusterPlan(pods=pods, wanted=len(pods)),
            segments=tuple(map(str, range(status.get("segments", 0)))),
            catalog_uid=status.get("catalogUid", ""),
            not_in_effect=tuple(status.get("notInEffect", ())),
        )

    def _complete(
        self,
        stream: Object,
        target: ClusterStream,
        declared: DeclaredStream,
        plan: ClusterPlan,
        wrong: tuple[str, str] | None,
    ) -> Seen:
        return self._seen(
            stream,
            wrong=wrong,
            catalog_trouble=declared.trouble,
            plan=plan,
            segments=declared.segments,
            catalog_uid=declared.uid,
            frontier=declared.frontier,
            **declared.concerns._asdict(),
            not_in_effect=tuple(item.path for item in target.manifest.not_in_effect()),
        )

    def _seen(self, stream: Object, **found: Any) -> Seen:
        metadata = stream["metadata"]
        now, patience = datetime.now(UTC), self.settings.rollout_patience
        return Seen(metadata["name"], metadata["generation"], now, patience=patience, **found)

    # ---- actions ----

    async def _carry_out(
        self, stream: Object, target: ClusterStream, wanted: Sequence[Object], *, may_roll: bool
    ) -> tuple[ClusterPlan, Refusals]:
        """Plan and do it; what turns out to be otherwise than known is looked at, and planned with, again.

        Of the plan that is returned the actions were done; what Kubernetes refused is beside it.
        """
        named = frozenset(map(key, wanted))
        backoff = Backoff(_PAUSE_FIRST, _PAUSE_LAST, jitter=1)
        for tried in range(_TRIES):
            observed = self.cache.children(target.namespace, target.name, named)
            plan = plan_cluster(target, wanted, observed, may_roll=may_roll)
            if not plan.actions:
                return plan, Refusals()
            if tried == 0:
                await self._check_still_there(stream)
            else:
                await backoff.pause()
            done, refusals = await self._act_on_all(stream, plan.actions)
            if not refusals.otherwise:
                return replace(plan, actions=done), refusals
        raise OutOfDate(f"{target.namespace}/{target.name} changes faster than it is looked at")

    async def _check_still_there(self, stream: Object) -> None:
        """Before anything is written: is the stream still the one that was seen, and not on its way out?"""
        found = await self._refresh(stream)
        seen = stream["metadata"]
        if (
            found is None
            or is_terminating(found)
            or _identity(found) != _identity(stream)
            or self.claims.is_foreign(found)
        ):
            raise OutOfDate(f"{seen['namespace']}/{seen['name']} has changed")

    async def _act_on_all(
        self, stream: Object, actions: Sequence[ClusterAction]
    ) -> tuple[tuple[ClusterAction, ...], Refusals]:
        """What was done, and what was refused or met something unknown. That stops nothing that does not need it."""
        done: list[ClusterAction] = []
        refusals = Refusals()
        for action in actions:
            if refusals.stop(action):
                continue
            try:
                if await self._act(stream, action):
                    done.append(action)
                else:
                    refusals.otherwise.append(action)
            except ApiError as error:
                if error.passes or error.status in (404, 409):
                    raise
                refusals.add(action, error.message)
        return tuple(done), refusals

    async def _act(self, stream: Object, action: ClusterAction) -> bool:
        """Do one thing; returns whether it was as known. Raises `ApiError` for other refusals."""
        try:
            match action:
                case Create(item):
                    return await self._create(item)
                case Apply(item, uid):
                    requested = self.cache.dropped
                    self.cache.put(await self.api.apply(item, uid=uid), requested)
                case Delete():
                    await self._delete(stream, action)
        except ApiError as error:
            if error.status not in (404, 409) or (error.status == 404 and isinstance(action, Create)):
                raise
            await self._refresh(action.item)
            return False
        return True

    async def _create(self, item: Object) -> bool:
        if item["kind"] in _BY_POST:
            self.cache.put(await self.api.create(item))
            return True
        if await self._refresh(item) is not None:
            return False
        self.cache.put(await self.api.apply(item))
        return True

    async def _delete(self, stream: Object, action: Delete) -> None:
        item = action.item
        left = await self.api.delete(item, action.preconditions)
        if left is None:
            self.cache.drop(item)
        else:
            self.cache.put(left)
        name = f"{item['kind']} {item['metadata']['name']}"
        logger.info("%s: deleted %s: %s", stream["metadata"]["name"], name, action.why)
        await self.reporter.event(stream, News("Deleted", f"{name}: {action.why}", is_warning=False))

    async def _refresh(self, item: Object) -> Object | None:
        """Ask the API server how an object is, and know it from now on."""
        metadata = item["metadata"]
        requested = self.cache.dropped
        found = await self.api.get(item["kind"], metadata["namespace"], metadata["name"])
        known = self.cache.find(item)
        if known is not None and (found is None or found["metadata"]["uid"] != known["metadata"]["uid"]):
            self.cache.drop(known)
        if found is not None:
            self.cache.put(found, requested)
        return found

    # ---- a stream on its way out ----

    async def _end(self, stream: Object) -> float | None:
        """Take the stream back from the catalog, then let the object go; its children go with it."""
        metadata = stream["metadata"]
        if FINALIZER not in metadata.get("finalizers", ()):
            return None
        try:
            await self.catalog_sync.withdraw(metadata["namespace"], metadata["name"], metadata["uid"])
        except EpochalError as error:
            since = datetime.now(UTC) - datetime.fromisoformat(metadata["deletionTimestamp"])
            wait = self.settings.deletion_patience - since.total_seconds()
            if wait > 0:
                await self.reporter.report(
                    stream, self._seen(stream, wrong=("Deleting", f"the catalog is away: {error}"))
                )
                return min(wait, self.settings.retry_first * 5)
            logger.warning("%s is deleted without the catalog, which is notified later: %s", metadata["name"], error)
            await self.reporter.event(stream, News("CatalogUnavailable", f"deleted without the catalog: {error}"))
        await self._change(stream, without_claim(stream))
        return None

    async def _change(self, stream: Object, change: Object) -> Object:
        """Raises `ApiError` of status 409 when the object has changed meanwhile."""
        found = await self.api.merge(stream, change)
        self.cache.put(found)
        return found


def _identity(stream: Object) -> tuple[str, int]:
    return stream["metadata"]["uid"], stream["metadata"]["generation"]


def _like(action: ClusterAction) -> tuple[type, str]:
    return type(action), action.item["kind"]


def _needs(item: Object, unmade: Object) -> bool:
    """A pod needs its own volumes, and whatever else there is for all pods."""
    if item["kind"] != "Pod" or unmade["kind"] == "Pod":
        return False
    return unmade["kind"] != "PersistentVolumeClaim" or unmade["metadata"]["name"] in claims_of(item)
