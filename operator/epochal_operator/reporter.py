"""Writes the status of streams and relays, and posts events.

Their content is decided by `status_of` and `relay_status_of`. A status that has not changed is not written. Values that
change all the time (a frontier, a number of subscribers) are written at intervals.
"""

import logging
import secrets
from datetime import UTC, datetime
from time import monotonic

from epochal.kube.api import ApiError
from epochal.resources.cluster import Seen, status_of
from epochal.resources.cluster.relay_status import RelaySeen, relay_status_of
from epochal.resources.cluster.status import News, news, timestamp
from epochal.resources.cluster.stream import MANAGER
from epochal.resources.spec import Object
from epochal_operator.api import ThrottledApi
from epochal_operator.cache import Cache, Place, RelayPlace

logger = logging.getLogger("epochal.operator")


class Reporter:
    """Writes statuses and events. `pause`: least seconds between two writes of a value that changes all the time."""

    def __init__(self, api: ThrottledApi, cache: Cache, pause: float) -> None:
        self._api = api
        self._cache = cache
        self._pause = pause
        self._written: dict[Place | RelayPlace, float] = {}

    async def report(self, stream: Object, seen: Seen) -> float | None:
        """Write the changed fields; returns the seconds until a postponed write, else None. Raises `ApiError`."""
        place = stream["metadata"]["namespace"], stream["metadata"]["name"]
        return await self._report(place, stream, status_of(stream.get("status", {}), seen), "frontier")

    async def report_relay(self, relay: Object, seen: RelaySeen) -> float | None:
        """The same for a relay."""
        place = RelayPlace(relay["metadata"]["namespace"], relay["metadata"]["name"])
        return await self._report(place, relay, relay_status_of(relay.get("status", {}), seen), "subscribers")

    async def _report(self, place: Place | RelayPlace, of: Object, after: Object, moving: str) -> float | None:
        before = of.get("status", {})
        changed = {name: value for name, value in after.items() if before.get(name) != value}
        if not changed:
            return None
        if changed.keys() == {moving}:
            wait = self._written.get(place, float("-inf")) + self._pause - monotonic()
            if wait > 0:
                return wait
        self._cache.put(await self._api.merge(of, {"status": changed}, part="/status"))
        self._written[place] = monotonic()
        for each in news(before, after):
            await self.event(of, each)
        return None

    def forget(self, place: Place | RelayPlace) -> None:
        """Forget a stream or relay that is gone."""
        self._written.pop(place, None)

    async def event(self, of: Object, news: News) -> None:
        """Post an event about a stream or a relay. A failure is only logged, as the status says the same."""
        metadata = of["metadata"]
        now = timestamp(datetime.now(UTC))
        posted = {
            "apiVersion": "v1",
            "kind": "Event",
            "metadata": {"name": f"{metadata['name']}.{secrets.token_hex(8)}", "namespace": metadata["namespace"]},
            "involvedObject": {
                "apiVersion": of["apiVersion"],
                "kind": of["kind"],
                "namespace": metadata["namespace"],
                "name": metadata["name"],
                "uid": metadata["uid"],
            },
            "type": "Warning" if news.is_warning else "Normal",
            "reason": news.reason,
            "message": news.message[:1000],
            "count": 1,
            "firstTimestamp": now,
            "lastTimestamp": now,
            "source": {"component": MANAGER},
            "reportingComponent": MANAGER,
            "reportingInstance": MANAGER,
        }
        try:
            await self._api.create(posted)
        except ApiError as error:
            logger.info("an event could not be posted: %s", error)
