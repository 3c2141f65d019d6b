"""One reconcile of one Relay: plan its objects, carry out the plan, write the status.

A Relay needs no finalizer: Kubernetes deletes its objects with it, and its processes leave the catalog by themselves.
It belongs to the operator that owns its stream.
"""

import logging
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from functools import partial
from time import monotonic

from epochal.errors import ManifestError
from epochal.kube.api import KINDS, ApiError
from epochal.resources.cluster import ClusterPlan, Whose, whose
from epochal.resources.cluster.relay import (
    ClusterRelay,
    deployment_of,
    plan_relay,
    relay_children_of,
    relay_objects_name,
    relay_selector,
)
from epochal.resources.cluster.relay_scaling import RecentNeeds, is_ending, needed
from epochal.resources.cluster.relay_status import RelaySeen, is_short
from epochal.resources.cluster.stream import is_terminating, key
from epochal.resources.manifest import StreamManifest
from epochal.resources.relay import RelayManifest
from epochal.resources.spec import Object
from epochal_operator.actions import Actions, OutOfDate
from epochal_operator.cache import Cache, RelayPlace
from epochal_operator.catalog_sync import RelayName, manifest_of, refused
from epochal_operator.ownership import Claims
from epochal_operator.reporter import Reporter
from epochal_operator.settings import OperatorSettings

logger = logging.getLogger("epochal.operator")


@dataclass(slots=True)
class RelayReconciler:
    """Reconciles relays. For each autoscaled one it remembers the demand of the last minutes."""

    settings: OperatorSettings
    cache: Cache
    reporter: Reporter
    claims: Claims
    actions: Actions
    _loads: dict[RelayName, int | None] | None = None
    """The subscribers of relays, as the catalog last listed them; None if unknown."""
    _listed: float = 0.0
    """The time of that list."""
    _needs: dict[str, RecentNeeds] = field(default_factory=dict)
    """By the uid of the Relay."""

    def listed(self, loads: dict[RelayName, int | None] | None) -> None:
        """Take a new list of subscribers from the catalog, or None if it did not answer.

        After a failure the demand is forgotten, as at a start of the operator. The catalog may have restarted, and its
        next list may lack relays that have not registered again: without this, they would count as a drop in demand.
        """
        self._loads, self._listed = loads, monotonic()
        if loads is None:
            self._needs.clear()

    async def reconcile(self, place: RelayPlace) -> float | None:
        """Reconcile one Relay; returns the seconds until the next reconcile, or None if only a change calls for one.

        Raises `ApiError`, `OutOfDate`, `LeaseLost`: try again later.
        """
        relay = self.cache.relay(place)
        if relay is None or is_terminating(relay):  # its objects go with it: Kubernetes collects what has no owner
            self._forget(place)
            return None
        try:
            return await self._reconcile(place, relay)
        except ApiError as error:
            if error.status in (404, 409):
                await self.actions.refresh(relay)
                raise OutOfDate(str(error)) from None
            raise

    def _forget(self, place: RelayPlace) -> None:
        self.reporter.forget(place)
        known = {relay["metadata"]["uid"] for relay in self.cache.relays() if not is_terminating(relay)}
        for uid in self._needs.keys() - known:
            del self._needs[uid]

    async def _reconcile(self, place: RelayPlace, relay: Object) -> float | None:
        try:
            manifest = _manifest_of(relay)
        except ManifestError as error:  # a newer definition accepted it; the present relays stay
            return await self.reporter.report_relay(relay, self._seen(relay, wrong=("Invalid", refused(error))))
        stream = self.cache.streams.get((place.namespace, manifest.spec.stream))
        if stream is None:
            reason = f"there is no Stream {manifest.spec.stream} in namespace {place.namespace}; relays start with it"
            return await self._bring_about(relay, manifest, None, ("NoStream", reason))
        if self.claims.is_foreign(stream):
            return None
        if not self.claims.is_claimed(stream):
            waits = f"Stream {manifest.spec.stream} is not served yet"
            return await self.reporter.report_relay(relay, self._seen(relay, wrong=("StreamNotReady", waits)))
        try:
            declared = manifest_of(stream)
        except ManifestError as error:
            return await self.reporter.report_relay(relay, self._seen(relay, wrong=("StreamInvalid", refused(error))))
        return await self._bring_about(relay, manifest, declared, None)

    async def _bring_about(
        self, relay: Object, manifest: RelayManifest, stream: StreamManifest | None, wrong: tuple[str, str] | None
    ) -> float | None:
        """Plan and create the objects, none if there is no stream, and write the status."""
        uid = relay["metadata"]["uid"]
        subscribers = self._subscribers(manifest)
        replicas, wanted = 0, list[Object]()
        if stream is not None:
            replicas = self._replicas(manifest, uid, subscribers)
            target = ClusterRelay(manifest, uid, stream, replicas)
            wanted = relay_children_of(target, self.settings.cluster)
        plan = partial(self._plan, manifest, uid, wanted)
        done, refusals = await self.actions.carry_out(relay, plan, partial(self._check, relay, manifest, wanted))
        if refusals.refused:
            wrong = ("Refused", refusals.message())
        newest = self.cache.relay(RelayPlace(manifest.namespace, manifest.name))
        if newest is None:
            raise OutOfDate(f"{manifest.qualified} is gone")
        seen = self._seen(newest, done, replicas, 0 if stream is None else subscribers, wrong)
        if is_short(seen):
            seen = replace(seen, pods=await self._pods(manifest))
        wait = await self.reporter.report_relay(newest, seen)
        if done.actions:  # the cache has the results already, so no event will cause the next reconcile
            return self.settings.retry_first
        return self.settings.retry_last if refusals.refused else wait

    def _plan(self, manifest: RelayManifest, uid: str, wanted: Sequence[Object]) -> ClusterPlan:
        place = RelayPlace(manifest.namespace, manifest.name)
        observed = self.cache.children_of_relay(place, frozenset(map(key, wanted)))
        return plan_relay(manifest, uid, wanted, observed)

    async def _check(self, relay: Object, manifest: RelayManifest, wanted: Sequence[Object]) -> None:
        """Before the first write: raise `OutOfDate` if the relay has changed, or if its missing stream exists now."""
        found = await self.actions.refresh(relay)
        if found is None or is_terminating(found) or _identity(found) != _identity(relay):
            raise OutOfDate(f"{manifest.qualified} has changed")
        if not wanted:
            named = {"kind": "Stream", "metadata": {"namespace": manifest.namespace, "name": manifest.spec.stream}}
            if await self.actions.refresh(named) is not None:
                raise OutOfDate(f"the stream of {manifest.qualified} is there")

    # ---- how many ----

    def _subscribers(self, manifest: RelayManifest) -> int | None:
        if self._loads is None:
            return None
        return self._loads.get((manifest.namespace, manifest.spec.stream, manifest.name), 0)

    def _replicas(self, manifest: RelayManifest, uid: str, subscribers: int | None) -> int:
        """The number of relays to run now; the present number while that of subscribers is unknown."""
        spec, deployment = manifest.spec, self._deployment(manifest.namespace, manifest.name, uid)
        least, most = spec.bounds
        if spec.autoscaling is None:
            self._needs.pop(uid, None)
            return least
        current = least if deployment is None else int(deployment["spec"]["replicas"])
        if subscribers is None:
            return min(max(current, least), most)
        if uid not in self._needs:
            self._needs[uid] = self._no_needs(current)
        self._needs[uid].look(needed(spec, subscribers), self._listed, current)
        return self._needs[uid].replicas(spec, current, ending=is_ending(deployment))

    def _no_needs(self, current: int) -> RecentNeeds:
        up, down, every = self.settings.relay_scale_up, self.settings.relay_scale_down, self.settings.catalog_interval
        return RecentNeeds(up, down, every, current=current, now=self._listed)

    def _deployment(self, namespace: str, name: str, uid: str) -> Object | None:
        named = frozenset((("Deployment", relay_objects_name(name)),))
        found = deployment_of(name, self.cache.children_of_relay(RelayPlace(namespace, name), named))
        is_ours = found is not None and whose(found, name, uid, "Relay") is Whose.OURS
        return found if is_ours else None

    # ---- what is reported ----

    async def _pods(self, manifest: RelayManifest) -> Sequence[Object]:
        """The pods of a Relay, from a list: they are not watched, as there may be a thousand."""
        try:
            pods, _ = await self.actions.api.list(
                KINDS["Pod"], manifest.namespace, selector=relay_selector(manifest.name)
            )
        except ApiError as error:
            if error.passes:
                raise
            logger.debug("the pods of relays cannot be read: %s", error)
            return ()
        return pods

    def _seen(
        self,
        relay: Object,
        plan: ClusterPlan | None = None,
        wanted: int | None = None,
        subscribers: int | None = None,
        wrong: tuple[str, str] | None = None,
    ) -> RelaySeen:
        metadata = relay["metadata"]
        deployment = self._deployment(metadata["namespace"], metadata["name"], metadata["uid"])
        return RelaySeen(
            metadata["name"],
            metadata["generation"],
            datetime.now(UTC),
            plan or ClusterPlan(),
            deployment,
            wanted,
            subscribers,
            wrong,
            patience=self.settings.rollout_patience,
        )


def _manifest_of(relay: Object) -> RelayManifest:
    """The manifest in a Relay object. Raises `ManifestError`."""
    metadata = {name: relay["metadata"][name] for name in ("name", "namespace")}
    document = {"apiVersion": relay["apiVersion"], "kind": relay["kind"], "metadata": metadata}
    return RelayManifest.from_document({**document, "spec": relay.get("spec")})


def _identity(relay: Object) -> tuple[str, int]:
    return relay["metadata"]["uid"], relay["metadata"]["generation"]
