"""Which operator looks after a stream: the one that has put its finalizer there, with its name in an annotation.

A stream of another operator must not even be looked at: two operators with different catalogs would delete each other's
publishers without end. `release` is for an uninstallation: the finalizer of an operator that is gone would keep the
stream, and the namespace around it, for ever.
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
    """The change that lets a stream go."""
    left = [name for name in stream["metadata"]["finalizers"] if name != FINALIZER]
    return {"metadata": {"finalizers": left, "annotations": {OPERATOR: None}}}


class Claims:
    """What this operator, of the name `own`, looks after of the streams in the cache."""

    def __init__(self, own: str, cache: Cache) -> None:
        self.own = own
        self._cache = cache
        self._reported: dict[Place, tuple[str, str]] = {}

    def is_foreign(self, stream: Object) -> bool:
        """Whether another operator looks after it."""
        return claimant(stream) not in ("", self.own)

    def is_claimed(self, stream: Object) -> bool:
        """Whether this operator has said that it looks after it."""
        return claimant(stream) == self.own

    def claim(self, stream: Object) -> Object:
        """The change that claims a stream."""
        finalizers: Sequence[str] = stream["metadata"].get("finalizers", ())
        kept = [name for name in finalizers if name != FINALIZER]
        return {"metadata": {"finalizers": [*kept, FINALIZER], "annotations": {OPERATOR: self.own}}}

    def leaves(self, place: Place) -> bool:
        """Whether the stream of this name is another's; it is logged once."""
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
        """Those that are not another's."""
        return [stream for stream in self._cache.streams.values() if not self.is_foreign(stream)]

    @property
    def foreign(self) -> int:
        """How many are another's."""
        return len(self._cache.streams) - len(self.streams)


async def release_all(api: ThrottledApi, operator: str, namespaces: Sequence[str], settle: float) -> int:
    """Remove the finalizer of this operator from every stream; returns how many had it.

    Streams that another operator looks after keep theirs. Looks until none has had it for `settle` seconds: an operator
    that is ending may set it once more. No definition of streams: nothing to do. Raises `ApiError`.
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
                if error.status not in (404, 409):  # gone, or changed: the next look sees
                    raise
            count += 1
            logger.info("released %s", name)
    return count
