"""One reconcile of one stream: declare it at the catalog, plan its objects, carry out the plan, write the status.

Each reconcile does all of it, whatever triggered it. The decisions are made in `epochal.resources.cluster`; this module
has the order of the calls, and what happens when one of them fails.
"""

import logging
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import partial
from typing import Any

from epochal.errors import EpochalError, ManifestError, ProtocolError, Unavailable
from epochal.kube.api import KINDS, ApiError
from epochal.resources.cluster import (
    ClusterPlan,
    ClusterStream,
    Seen,
    check_drawable,
    children_of,
    plan_cluster,
)
from epochal.resources.cluster.planner import running_pods
from epochal.resources.cluster.rollout import Rollout
from epochal.resources.cluster.status import News
from epochal.resources.cluster.stream import FINALIZER, is_terminating, key
from epochal.resources.spec import Object
from epochal_operator.actions import Actions, OutOfDate, Refusals
from epochal_operator.api import ThrottledApi
from epochal_operator.cache import Cache, Place
from epochal_operator.catalog_sync import CatalogSync, DeclaredStream, declared_of, manifest_of, refused
from epochal_operator.ownership import Claims, without_claim
from epochal_operator.reporter import Reporter
from epochal_operator.settings import OperatorSettings

logger = logging.getLogger("epochal.operator")


_EVENTS_AFTER = 5
"""How often the events of claims without a volume are read, as a multiple of the first pause between retries."""
_UNBOUND = frozenset(("ProvisioningFailed", "FailedBinding"))
"""Reasons of events that say why there is no volume."""


async def unbound(api: ThrottledApi, claims: Sequence[Object]) -> tuple[str, ...]:
    """Why no volume is bound to these claims, by their newest events; claims without such an event are left out."""
    found = []
    for claim in claims[:_MOST_CLAIMS]:
        metadata = claim["metadata"]
        try:
            events, _ = await api.list(
                KINDS["Event"], metadata["namespace"], fields=f"involvedObject.uid={metadata['uid']}"
            )
        except ApiError as error:
            if error.passes:
                raise
            logger.debug("the events of claims cannot be read: %s", error)
            return ()
        said = [event for event in events if event.get("reason") in _UNBOUND and event.get("message")]
        if said:
            newest = max(
                said, key=lambda event: str(event.get("lastTimestamp") or event["metadata"]["creationTimestamp"])
            )
            found.append(f"{metadata['name']} ({newest['reason']}: {' '.join(newest['message'].split())[:200]})")
    return tuple(found)


_MOST_CLAIMS = 5
"""Claims whose events are read; all claims of a stream wait for the same reason as a rule."""


@dataclass(frozen=True, slots=True)
class Reconciler:
    """Reconciles streams. It keeps no state of its own."""

    settings: OperatorSettings
    api: ThrottledApi
    cache: Cache
    catalog_sync: CatalogSync
    reporter: Reporter
    claims: Claims
    actions: Actions
    rollout: Rollout

    async def reconcile(self, place: Place) -> float | None:
        """Reconcile one stream; returns the seconds until the next reconcile, or None if only a change calls for one.

        Raises `ApiError`, `OutOfDate`, `LeaseLost`: try again later.
        """
        stream = self.cache.streams.get(place)
        if stream is None:  # its objects go with it: Kubernetes collects what has no owner
            self.reporter.forget(place)
            self.rollout.done(place)
            return None
        if self.claims.leaves(place):
            return None
        try:
            if is_terminating(stream):
                return await self._end(stream)
            return await self._reconcile(stream)
        except ApiError as error:
            if error.status in (404, 409):
                await self.actions.refresh(stream)
                raise OutOfDate(str(error)) from None
            raise

    # ---- a stream that lives ----

    async def _reconcile(self, stream: Object) -> float | None:
        seen = await self._bring_about(stream)
        metadata = stream["metadata"]
        newest = self.cache.streams.get((metadata["namespace"], metadata["name"]))
        if newest is None:  # someone has removed the finalizer, and the object was deleted
            raise OutOfDate(f"{metadata['namespace']}/{metadata['name']} is gone")
        wait = await self.reporter.report(newest, seen)
        # The cache has the results of the actions already, so no event will cause the next reconcile.
        if seen.plan.actions:
            return self.settings.retry_first
        if seen.wrong is not None and seen.wrong[0] == "Refused":
            return self.settings.retry_last
        if seen.plan.pending:  # only events say what happens to a claim, and they are not watched
            return min(self.settings.retry_first * _EVENTS_AFTER, wait or self.settings.retry_last)
        return wait

    async def _bring_about(self, stream: Object) -> Seen:
        metadata = stream["metadata"]
        try:
            manifest = manifest_of(stream)
            check_drawable(manifest)  # before it is declared at the catalog
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
        seen = self._complete(stream, target, declared, plan, wrong)
        return replace(seen, unbound=await unbound(self.api, plan.pending)) if plan.pending else seen

    async def _go_on(self, stream: Object, wrong: tuple[str, str]) -> Seen:
        """Keep the stream running by its last valid manifest, while the present one is `wrong`.

        Missing objects are created, and no running pod is replaced.
        """
        metadata = stream["metadata"]
        try:
            found = await self.catalog_sync.find_declared(metadata["namespace"], metadata["name"], metadata["uid"])
        except (Unavailable, ProtocolError) as error:
            return self._look_only(stream, wrong, str(error))
        if found is None:
            return self._seen(stream, wrong=wrong)
        declared = declared_of(found)
        try:
            target = ClusterStream(found.declared(), metadata["uid"], declared.uid, declared.segments)
            wanted = children_of(target, self.settings.cluster)
        except ManifestError:  # a newer version of the operator accepted it
            return self._look_only(stream, wrong, "")
        plan, _ = await self._carry_out(stream, target, wanted, may_roll=False)
        return self._complete(stream, target, declared, plan, wrong)

    def _look_only(self, stream: Object, wrong: tuple[str, str], trouble: str) -> Seen:
        """The findings without a valid manifest: the status keeps its values, and only pods are looked at."""
        metadata, status = stream["metadata"], stream.get("status", {})
        observed = self.cache.children(metadata["namespace"], metadata["name"], frozenset())
        pods = running_pods(metadata["name"], metadata["uid"], observed)
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
        """Plan and act, as `Actions.carry_out` does; each plan asks the rollout whether pods may be upgraded."""
        named, place = frozenset(map(key, wanted)), (target.namespace, target.name)

        def plan() -> ClusterPlan:
            observed = self.cache.children(target.namespace, target.name, named)
            draft = partial(plan_cluster, target, wanted, observed, may_roll=may_roll)
            return self.rollout.plan(
                place, lambda upgrade: draft(may_upgrade=upgrade), self._all_running_pods, datetime.now(UTC)
            )

        done, refusals = await self.actions.carry_out(stream, plan, partial(self._check_still_there, stream))
        self.rollout.look(place, done, may_roll=may_roll)
        return done, refusals

    def _all_running_pods(self) -> dict[Place, Sequence[Object]]:
        """The running pods of each stream that this operator owns."""
        found: dict[Place, Sequence[Object]] = {}
        for (namespace, name), stream in self.cache.streams.items():
            if self.claims.is_claimed(stream) and not is_terminating(stream):
                observed = self.cache.children(namespace, name, frozenset())
                found[namespace, name] = running_pods(name, stream["metadata"]["uid"], observed)
        return found

    async def _check_still_there(self, stream: Object) -> None:
        """Before the first write: raise `OutOfDate` if the stream has changed, is being deleted, or has a new owner."""
        found = await self.actions.refresh(stream)
        seen = stream["metadata"]
        if (
            found is None
            or is_terminating(found)
            or _identity(found) != _identity(stream)
            or self.claims.is_foreign(found)
        ):
            raise OutOfDate(f"{seen['namespace']}/{seen['name']} has changed")

    # ---- a stream on its way out ----

    async def _end(self, stream: Object) -> float | None:
        """Delete the stream at the catalog, then remove the finalizer; Kubernetes deletes the children."""
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
                    stream, self._seen(stream, wrong=("Deleting", f"the deletion waits for the catalog: {error}"))
                )
                return min(wait, self.settings.retry_first * 5)
            logger.warning("%s is deleted without the catalog, which is notified later: %s", metadata["name"], error)
            await self.reporter.event(stream, News("CatalogUnavailable", f"deleted without the catalog: {error}"))
        await self._change(stream, without_claim(stream))
        return None

    async def _change(self, stream: Object, change: Object) -> Object:
        """Change a stream's metadata; raises `ApiError` with status 409 if it has changed in the meantime."""
        found = await self.api.merge(stream, change)
        self.cache.put(found)
        return found


def _identity(stream: Object) -> tuple[str, int]:
    return stream["metadata"]["uid"], stream["metadata"]["generation"]
