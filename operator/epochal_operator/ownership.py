"""Which operator owns a stream: the one that has added its finalizer, and its name as an annotation.

A stream of another operator is left alone completely. Two operators with different catalogs would delete each other's
publishers without end. `release` is for uninstalling: the finalizer of an operator that no longer runs would keep the
stream, and its namespace, for ever.
"""

import asyncio
import logging
from collections.abc import Sequence

from epochal.kube.api import STREAM, ApiError
from epochal.resources.cluster.stream import FINALIZER, OPERATOR
from epochal.resources.spec import Object
from epochal_operator.api import ThrottledApi
from epochal_operator.cache import Cache, Place

logger = logging.getLogger("epochal.operator")

_PAUSE = 1.0


def claimant(stream: Object) -> str:
    """The name of the operator that looks after it; empty for none, and where its name was taken away."""
    metadata = stream["metadata"]
    if FINALIZER not in metadata.get("finalizers", ()):
        return ""
    return str(metadata.get("annotations", {}).get(OPERATOR, ""))


def without_claim(stream: Object) -> Object:
    """The change that removes the operator's finalizer and name from a stream."""
    left = [name for name in stream["metadata"]["finalizers"] if name != FINALIZER]
    return {"metadata": {"finalizers": left, "annotations": {OPERATOR: None}}}


class Claims:
    """Which streams of the cache belong to this operator, whose name is `own`."""

    def __init__(self, own: str, cache: Cache) -> None:
        self.own = own
        self._cache = cache
        self._reported: dict[Place, tuple[str, str]] = {}

    def is_foreign(self, stream: Object) -> bool:
        """Whether another operator owns the stream."""
        return claimant(stream) not in ("", self.own)

    def is_claimed(self, stream: Object) -> bool:
        """Whether this operator owns the stream already: its finalizer and its name are there."""
        return claimant(stream) == self.own

    def claim(self, stream: Object) -> Object:
        """The change that makes this operator the owner of a stream."""
        finalizers: Sequence[str] = stream["metadata"].get("finalizers", ())
        kept = [name for name in finalizers if name != FINALIZER]
        return {"metadata": {"finalizers": [*kept, FINALIZER], "annotations": {OPERATOR: self.own}}}

    def leaves(self, place: Place) -> bool:
        """Whether to leave this stream to another operator, which owns it; logged once."""
        stream = self._cache.streams.get(place)
        if stream is None or not self.is_foreign(stream):
            self._reported.pop(place, None)
            return False
        whose = stream["metadata"]["uid"], claimant(stream)
        if self._reported.get(place) != whose:
            self._reported[place] = whose
            logger.warning(
                "%s/%s is left alone: the operator %s looks after it, not this one, %s; "
                "if that one is gone for good: epochal-operator release --operator %s",
                *(*place, whose[1], self.own, whose[1]),
            )
        return True

    @property
    def streams(self) -> list[Object]:
        """The streams that no other operator owns."""
        return [stream for stream in self._cache.streams.values() if not self.is_foreign(stream)]

    @property
    def foreign(self) -> int:
        """The number of streams that other operators own."""
        return len(self._cache.streams) - len(self.streams)


async def release_all(api: ThrottledApi, operator: str, namespaces: Sequence[str], settle: float) -> int:
    """Remove the finalizer of this operator from every stream; returns how many had it. Raises `ApiError`.

    Streams that another operator owns keep it. Lists the streams until none has had the finalizer for `settle` seconds,
    because an operator that is just ending may add it once more. Without a definition of Stream there is nothing to do.
    """
    loop = asyncio.get_running_loop()
    released, quiet_since = 0, loop.time()
    kept: set[str] = set()
    while True:
        found = sum([await _release_in(api, operator, namespace, kept) for namespace in namespaces or ("",)])
        released += found
        if found:
            quiet_since = loop.time()
        if loop.time() - quiet_since >= settle:
            return released
        await asyncio.sleep(min(_PAUSE, settle))


async def _release_in(api: ThrottledApi, operator: str, namespace: str, kept: set[str]) -> int:
    try:
        streams, _ = await api.list(STREAM, namespace)
    except ApiError as error:
        if error.status == 404:
            return 0
        raise
    count = 0
    for stream in streams:
        name, whose = "{namespace}/{name}".format_map(stream["metadata"]), claimant(stream)
        if whose not in ("", operator):
            if name not in kept:
                logger.info("left %s alone: the operator %s looks after it", name, whose)
            kept.add(name)
        elif FINALIZER in stream["metadata"].get("finalizers", ()):
            try:
                await api.merge(stream, without_claim(stream))
            except ApiError as error:
                if error.status not in (404, 409):  # it is gone, or has changed: the next list shows it
                    raise
            count += 1
            logger.info("released %s", name)
    return count
