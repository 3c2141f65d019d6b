"""Which operator looks after a stream: the one that has put its finalizer there, and its name beside it.

Apart from the reconciling because what belongs to another operator must not even be looked at: two that have catalogs
of their own would delete each other's publishers without end.
"""

import logging
from collections.abc import Sequence

from epochal.resources.cluster.names import FINALIZER, OPERATOR, Object
from epochal_operator.cache import Cache, Place

logger = logging.getLogger("epochal.operator")


def claimant(stream: Object) -> str:
    """The name of the operator that looks after it; empty for nobody, and for one of a version that said nothing."""
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
        self.own, self._cache = own, cache
        self._told: dict[Place, tuple[str, str]] = {}

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
        """Whether the stream of this name is another's, which is told once."""
        stream = self._cache.streams.get(place)
        if stream is None or not self.is_foreign(stream):
            self._told.pop(place, None)
            return False
        whose = stream["metadata"]["uid"], claimant(stream)
        if self._told.get(place) != whose:
            self._told[place] = whose
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
