"""Writes the status of a stream, and events for what matters.

What they say is decided by `status_of`. Nothing is written that says what is there already, and a frontier that moves
all the time is written now and then only.
"""

import logging
import secrets
from datetime import UTC, datetime
from time import monotonic

from epochal.kube.api import ApiError
from epochal.resources.cluster import Seen, status_of
from epochal.resources.cluster.status import News, news, timestamp
from epochal.resources.cluster.stream import MANAGER
from epochal.resources.spec import Object
from epochal_operator.api import ThrottledApi
from epochal_operator.cache import Cache, Place

logger = logging.getLogger("epochal.operator")


class Reporter:
    """Writes statuses and events. `pause`: seconds between two writes of a frontier."""

    def __init__(self, api: ThrottledApi, cache: Cache, pause: float) -> None:
        self._api = api
        self._cache = cache
        self._pause = pause
        self._written: dict[Place, float] = {}

    async def report(self, stream: Object, seen: Seen) -> float | None:
        """Write what has changed; returns when there is more to write, which had to wait. Raises `ApiError`."""
        before = stream.get("status", {})
        after = status_of(before, seen)
        changed = {name: value for name, value in after.items() if before.get(name) != value}
        if not changed:
            return None
        place = stream["metadata"]["namespace"], stream["metadata"]["name"]
        if changed.keys() == {"frontier"}:
            wait = self._written.get(place, float("-inf")) + self._pause - monotonic()
            if wait > 0:
                return wait
        self._cache.put(await self._api.merge(stream, {"status": changed}, part="/status"))
        self._written[place] = monotonic()
        for each in news(before, after):
            await self.event(stream, each)
        return None

    def forget(self, place: Place) -> None:
        """The stream is gone."""
        self._written.pop(place, None)

    async def event(self, stream: Object, news: News) -> None:
        """Post an event about a stream; the status says all of it too."""
        metadata = stream["metadata"]
        now = timestamp(datetime.now(UTC))
        posted = {
            "apiVersion": "v1",
            "kind": "Event",
            "metadata": {"name": f"{metadata['name']}.{secrets.token_hex(8)}", "namespace": metadata["namespace"]},
            "involvedObject": {
                "apiVersion": stream["apiVersion"],
                "kind": stream["kind"],
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
