"""Decides when a stream or relay is reconciled: by watches, by lists and by the catalog, with a queue and workers.

Each of the three would be enough in the end; together they are fast. A stream is in the queue at most once, and never
with two workers at the same time.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Iterable, Iterator
from time import monotonic

from epochal.backoff import Backoff
from epochal.catalog_api.answers import StreamInfo
from epochal.errors import EpochalError
from epochal.kube.api import KINDS, RELAY, STREAM, ApiError, ResourceKind
from epochal.resources.cluster.stream import SELECTOR
from epochal.resources.spec import Object
from epochal.service.telemetry import Look, looking
from epochal_operator.actions import OutOfDate
from epochal_operator.api import CHILDREN, ThrottledApi
from epochal_operator.cache import Cache, Place, RelayPlace, labelled_for
from epochal_operator.catalog_sync import NO_CONCERNS, CatalogSync, Concerns, concerns_of, frontier_of, object_uid
from epochal_operator.lease import LeaseLost
from epochal_operator.ownership import Claims
from epochal_operator.reconciler import Reconciler
from epochal_operator.relays import RelayReconciler
from epochal_operator.settings import OperatorSettings
from epochal_operator.telemetry import OperatorTelemetry

logger = logging.getLogger("epochal.operator")

_UNDEFINED = (
    "{} are not defined in this cluster; define them: epochal-operator crd | kubectl apply --server-side -f -"
    " (the chart does it with crds.enabled)"
)
_STUCK = 600.0
"""Seconds after which a worker or a resync counts as hanging."""


class WorkQueue:
    """Names in order of arrival. `first` and `last`: seconds between tries of a name that fails, doubling."""

    def __init__(self, first: float, last: float) -> None:
        self._first = first
        self._last = last
        self._ready: deque[Place | RelayPlace] = deque()
        self._queued: set[Place | RelayPlace] = set()
        self._again: set[Place | RelayPlace] = set()
        self._later: dict[Place | RelayPlace, asyncio.TimerHandle] = {}
        self._failures: dict[Place | RelayPlace, Backoff] = {}
        self._news = asyncio.Event()
        self.running: dict[Place | RelayPlace, float] = {}
        """The names with a worker, and since when."""

    def __len__(self) -> int:
        return len(self._ready)

    def add(self, place: Place | RelayPlace, after: float = 0.0) -> None:
        """Have it reconciled, now or in `after` seconds; the sooner of two requests wins."""
        later = self._later.get(place)
        if after > 0:
            loop = asyncio.get_running_loop()
            if later is None or later.when() > loop.time() + after:
                if later is not None:
                    later.cancel()
                self._later[place] = loop.call_later(after, self._due, place)
        elif place in self.running:  # what changed may come too late for the reconcile that runs
            self._again.add(place)
        elif place not in self._queued:
            self._queued.add(place)
            self._ready.append(place)
            self._news.set()

    async def get(self) -> Place | RelayPlace:
        """Wait for the next name; the worker calls `done` with it afterwards."""
        while not self._ready:
            self._news.clear()
            await self._news.wait()
        place = self._ready.popleft()
        self._queued.remove(place)
        self.running[place] = monotonic()
        return place

    def done(self, place: Place | RelayPlace, *, failed: bool = False, after: float | None = None) -> None:
        """Note that it was reconciled. A failed one is tried again; `after`: seconds to the next reconcile anyway."""
        del self.running[place]
        if failed:
            after = self._failures.setdefault(place, Backoff(self._first, self._last, jitter=0)).delay()
        else:
            self._failures.pop(place, None)
        if place in self._again:
            self._again.remove(place)
            after = min(after, self._first) if failed and after is not None else 0.0
        if after is not None:
            self.add(place, after)

    def _due(self, place: Place | RelayPlace) -> None:
        self._later.pop(place, None)
        self.add(place)


class Controller:
    """Fills the cache and the queue, and runs the workers."""

    def __init__(
        self,
        settings: OperatorSettings,
        api: ThrottledApi,
        reconciler: Reconciler,
        relays: RelayReconciler,
        telemetry: OperatorTelemetry,
    ) -> None:
        self._settings = settings
        self._api = api
        self._reconciler = reconciler
        self._relays = relays
        self._telemetry = telemetry
        self._cache: Cache = reconciler.cache
        self._catalog_sync: CatalogSync = reconciler.catalog_sync
        self._claims: Claims = reconciler.claims
        self.queue = WorkQueue(settings.retry_first, settings.retry_last)
        self.listed = asyncio.Event()
        """Set once everything has been listed."""
        self._unlisted = ""
        """Why the last list failed; empty if it did not."""
        self._concerns: dict[Place, Concerns] = {}
        """The concerns of each stream, as the catalog last reported them."""
        self._beat: float | None = None
        """When the last list ended, or the first began; None while another operator acts."""

    @property
    def healthy(self) -> bool:
        """Whether nothing hangs: lists are made, and no reconcile takes too long. True before the work begins."""
        now = monotonic()
        oldest = min(self.queue.running.values(), default=now)
        last = now if self._beat is None else self._beat
        return now - last < self._settings.resync + _STUCK and now - oldest < _STUCK

    @property
    def synced(self) -> bool:
        """Whether everything has been listed once."""
        return self.listed.is_set()

    # ---- watches ----

    def saw(self, kind: str, event_type: str | None, item: Object) -> None:
        """Take an event of a watch."""
        self._telemetry.event(kind)
        item = {**item, "apiVersion": KINDS[kind].api_version, "kind": kind}
        news = self._cache.drop(item) if event_type == "DELETED" else self._cache.put(item)
        if news:
            self._wake_all_of(item)

    def _wake_all_of(self, item: Object) -> None:
        """Queue all streams and relays that an object matters to."""
        for place in self._concerned(item):
            self._wake(place)

    def _concerned(self, item: Object) -> Iterator[Place | RelayPlace]:
        namespace, name = item["metadata"]["namespace"], item["metadata"]["name"]
        if belongs := labelled_for(item):
            yield belongs
        if item["kind"] == "Stream":
            yield namespace, name
            yield from self._relays_of((namespace, name))
        elif item["kind"] == "Relay":
            yield RelayPlace(namespace, name)
            if (namespace, name) in self._cache.streams:  # this may be the Relay of a stream's `spec.relays`
                yield namespace, name

    def _relays_of(self, stream: Place) -> Iterator[RelayPlace]:
        namespace, name = stream
        return (place_of(relay) for relay in self._cache.relays(namespace) if relay["spec"].get("stream") == name)

    def _wake(self, place: Place | RelayPlace) -> None:
        """Queue a relay, or a stream that no other operator owns."""
        if isinstance(place, RelayPlace) or not self._claims.leaves(place):
            self.queue.add(place)

    # ---- lists ----

    async def resync(self) -> None:
        """List everything, and queue every stream and relay.

        Raises `ApiError`. If a kind cannot be listed for a reason of its own, all others are listed first.
        """
        failed: ApiError | None = None
        for kind in (STREAM, RELAY, *CHILDREN):
            try:
                await self._list(kind)
            except ApiError as error:
                if failed is not None and error.passes:
                    raise
                failed = failed or error
        for place in self._cache.streams:
            self._wake(place)
        for relay in self._cache.relays():
            self._wake(place_of(relay))
        if failed is not None:
            raise failed
        self.listed.set()

    async def _list(self, kind: ResourceKind) -> None:
        selector = "" if kind in (STREAM, RELAY) else SELECTOR
        for namespace in self._settings.namespaces or ("",):
            requested = self._cache.dropped
            try:
                items, version = await self._api.list(kind, namespace, selector)
            except ApiError as error:
                if kind in (STREAM, RELAY) and error.status == 404:
                    raise ApiError(404, _UNDEFINED.format(kind.plural)) from None
                raise
            listed = int(version) if version.isdigit() else 0
            within = (namespace,) if namespace else ()
            missed = self._cache.replace(kind.kind, within, items, listed, requested)
            self._telemetry.missed(kind.kind, len(missed) if self.synced else 0)
            for item in missed:
                self._wake_all_of(item)

    async def resync_forever(self) -> None:
        """List everything again and again, sooner after a failure."""
        backoff = Backoff(self._settings.retry_first, self._settings.retry_last, jitter=0)
        self._beat = monotonic()
        while True:
            try:
                await self.resync()
            except ApiError as error:
                self._report(str(error))
                wait = backoff.delay()
            else:
                self._report("")
                wait = self._settings.resync
                backoff.reset()
            self._beat = monotonic()
            await asyncio.sleep(min(wait, self._settings.resync))

    def _report(self, why: str) -> None:
        """Log why something cannot be listed, or that it can be again; once for each reason."""
        if why and why != self._unlisted:
            logger.warning("the cluster's objects cannot be listed now: %s", why)
        elif self._unlisted and not why:
            logger.info("the cluster's objects can be listed again")
        self._unlisted = why

    # ---- the catalog ----

    async def sweep_forever(self) -> None:
        """Compare with the catalog's streams again and again."""
        away = False
        while True:
            try:
                if self.synced:
                    await self.sweep()
                away = False
            except (EpochalError, ApiError) as error:
                if not away:
                    logger.warning("the catalog's streams cannot be compared with the cluster's now: %s", error)
                away = True
            await asyncio.sleep(self._settings.catalog_interval)

    async def sweep(self) -> None:
        """Compare the catalog's streams with the cluster's: queue those that moved, delete those without an object.

        Raises `ApiError`, and what the catalog client raises.
        """
        try:
            found = await self._catalog_sync.list()
            self._look_at_what_moved(found)
            await self._count_subscribers()
        except EpochalError:
            self._relays.listed(None)
            raise
        for each in found:  # last, so that a stream that the catalog cannot delete now delays nothing else
            mine = not self._settings.namespaces or each.namespace in self._settings.namespaces
            if mine and object_uid(each) and not self._is_there(each) and await self._is_gone(each):
                await self._catalog_sync.collect(each)

    async def _count_subscribers(self) -> None:
        """Read the subscribers of relays from the catalog, and queue the relays, if there are any."""
        relays = self._cache.relays()
        self._relays.listed(await self._catalog_sync.relay_loads() if relays else None)
        for relay in relays:
            self._wake(place_of(relay))

    def _look_at_what_moved(self, found: Iterable[StreamInfo]) -> None:
        known = {(each.namespace, each.name): each for each in found}
        concerns = {place: concerns_of(each) for place, each in known.items()}
        moved = {place for place in known if concerns[place] != self._concerns.get(place, NO_CONCERNS)}
        self._concerns = concerns
        for place, stream in self._cache.streams.items():
            each, status = known.get(place), stream.get("status", {})
            shown = status.get("catalogUid"), status.get("frontier")
            if each is None or place in moved or (each.uid, frontier_of(each)) != shown:
                self._wake(place)

    def _is_there(self, each: StreamInfo) -> bool:
        stream = self._cache.streams.get((each.namespace, each.name))
        return stream is not None and stream["metadata"]["uid"] == object_uid(each)

    async def _is_gone(self, each: StreamInfo) -> bool:
        """Whether the API server has no such object either: one that is not in the cache may be new."""
        found = await self._api.get("Stream", each.namespace, each.name)
        return found is None or found["metadata"]["uid"] != object_uid(each)

    # ---- work ----

    async def work(self) -> None:
        """Reconcile one stream or relay after the other; one of several workers. Raises `LeaseLost`."""
        await self.listed.wait()  # until then all objects would seem to be missing, and would be created
        while True:
            place = await self.queue.get()
            name = str(place) if isinstance(place, RelayPlace) else "/".join(place)
            with looking(name) as look:
                await self._look(place, name, look)

    async def _look(self, place: Place | RelayPlace, name: str, look: Look) -> None:
        started = monotonic()
        look.outcome, after = "failed", None
        try:
            if isinstance(place, RelayPlace):
                after = await self._relays.reconcile(place)
            else:
                after = await self._look_at_stream(place)
            look.outcome = "ok"
        except OutOfDate as error:
            logger.debug("%s: %s", name, error)
            look.outcome = "out of date"
        except (ApiError, EpochalError) as error:
            logger.warning("%s: %s", name, error)
        except LeaseLost:
            raise
        except Exception:  # a bug that one stream triggers must not keep the other streams from being reconciled
            logger.exception("%s cannot be looked at", name)
        finally:
            self.queue.done(place, failed=look.outcome != "ok", after=after)
            self._telemetry.looked(look.outcome, monotonic() - started)

    async def _look_at_stream(self, place: Place) -> float | None:
        """Reconcile a stream, and queue what waited for it: streams of the rollout, and relays until it is claimed.

        The cache has the claim already, so no event of a watch would queue them.
        """
        was_claimed = self._is_claimed(place)
        try:
            return await self._reconciler.reconcile(place)
        finally:
            for waited in self._reconciler.rollout.due():
                self._wake(waited)
            if not was_claimed and self._is_claimed(place):
                for relay in self._relays_of(place):
                    self._wake(relay)

    def _is_claimed(self, place: Place) -> bool:
        stream = self._cache.streams.get(place)
        return stream is not None and self._claims.is_claimed(stream)


def place_of(relay: Object) -> RelayPlace:
    """Namespace and name of a Relay object."""
    return RelayPlace(relay["metadata"]["namespace"], relay["metadata"]["name"])
