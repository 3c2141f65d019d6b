"""The operator's copy of the cluster's objects, from watches, from lists, and from its own writes.

Events can come late, twice or not at all. So an older version never replaces a newer version of the same object, a
deleted object does not come back through a late event, and each list corrects what events have missed.
"""

from collections import OrderedDict, defaultdict
from collections.abc import Collection, Iterable
from dataclasses import dataclass

from epochal.resources.cluster.stream import RELAY_LABEL, STREAM_LABEL, key
from epochal.resources.spec import Object

Place = tuple[str, str]
"""Namespace and name of a stream."""


@dataclass(frozen=True, slots=True)
class RelayPlace:
    """Namespace and name of a Relay. A type of its own, as a stream may have the same name."""

    namespace: str
    name: str

    def __str__(self) -> str:
        return f"relay {self.namespace}/{self.name}"


_GONE = 10_000
"""How many uids of deleted objects are remembered: late events about them come within seconds."""


def version(item: Object) -> int:
    """The resource version as a number, which grows with each change; Kubernetes itself compares versions like this."""
    text = item["metadata"]["resourceVersion"]
    return int(text) if text.isdigit() else 0


class Cache:
    """The streams, the relays and the objects that belong to them, by name."""

    def __init__(self) -> None:
        self.streams: dict[Place, Object] = {}
        self._children: defaultdict[str, dict[tuple[str, str], Object]] = defaultdict(dict)
        self._labelled: defaultdict[Place | RelayPlace, dict[tuple[str, str], Object]] = defaultdict(dict)
        """The same children, by the stream or relay in their label."""
        self._gone: OrderedDict[str, int] = OrderedDict()
        """The uid of a deleted object -> the value of `dropped` at its deletion."""
        self.dropped = 0
        """Counts deletions, as a clock: whether a request was sent before or after one."""

    def put(self, item: Object, requested: int | None = None) -> bool:
        """Add an object, or its new version; returns whether that changed the cache.

        `requested`: the value of `dropped` when the request for this object, or for a list with it, was sent. An answer
        to a later request overrules a deletion: watches and lists select by label, so an object whose label was removed
        looks deleted to them, although it exists.
        """
        metadata = item["metadata"]
        gone = self._gone.get(metadata["uid"])
        if gone is not None:
            if requested is None or gone > requested:
                return False
            del self._gone[metadata["uid"]]
        home, name = self._home(item)
        known = home.get(name)
        if known is not None:
            same = known["metadata"]["uid"] == metadata["uid"]
            if version(known) > version(item) or (same and version(known) == version(item)):
                return False  # an older version, perhaps of an earlier object of the same name
            self._unlabel(known)
        home[name] = item
        if place := labelled_for(item):
            self._labelled[place][name] = item
        return True

    def drop(self, item: Object) -> bool:
        """Remove a deleted object, and remember its uid; returns whether it was in the cache."""
        uid = item["metadata"]["uid"]
        self.dropped += 1
        self._gone[uid] = self.dropped
        while len(self._gone) > _GONE:
            self._gone.popitem(last=False)
        home, name = self._home(item)
        if name in home and home[name]["metadata"]["uid"] == uid:
            self._unlabel(home.pop(name))
            return True
        return False

    def replace(
        self, kind: str, namespaces: Collection[str], items: Iterable[Object], listed: int, requested: int | None = None
    ) -> list[Object]:
        """Replace the objects of a kind by a list of version `listed`; returns the objects that this changed.

        An object that is not in the list is deleted, unless it is newer than the list. `namespaces`: those that were
        listed; empty means all. `requested`: as for `put`.
        """
        found = list(items)
        news = [item for item in found if self.put(item, requested)]
        uids = {item["metadata"]["uid"] for item in found}
        for item in [*self._of(kind)]:
            metadata = item["metadata"]
            within = not namespaces or metadata["namespace"] in namespaces
            if within and metadata["uid"] not in uids and version(item) <= listed:
                self.drop(item)
                news.append(item)
        return news

    def children(self, namespace: str, stream: str, named: Collection[tuple[str, str]]) -> list[Object]:
        """The objects with the stream's label, and the other objects with one of these kinds and names."""
        return self._belonging((namespace, stream), namespace, named)

    def children_of_relay(self, place: RelayPlace, named: Collection[tuple[str, str]]) -> list[Object]:
        """The objects with the relay's label, and the other objects with one of these kinds and names."""
        return self._belonging(place, place.namespace, named)

    def _belonging(self, to: Place | RelayPlace, namespace: str, named: Collection[tuple[str, str]]) -> list[Object]:
        there = self._children[namespace]
        found = {place: there[place] for place in named if place in there}
        return list((found | self._labelled.get(to, {})).values())

    def relay(self, place: RelayPlace) -> Object | None:
        """The Relay of this name."""
        return self._children[place.namespace].get(("Relay", place.name))

    def relays(self, namespace: str = "") -> list[Object]:
        """All relays, or those of a namespace."""
        homes = [self._children[namespace]] if namespace else list(self._children.values())
        return [item for home in homes for (kind, _), item in home.items() if kind == "Relay"]

    def find(self, item: Object) -> Object | None:
        """The object in the cache with the kind, namespace and name of `item`."""
        home, name = self._home(item)
        return home.get(name)

    def _unlabel(self, item: Object) -> None:
        if place := labelled_for(item):
            labelled = self._labelled[place]
            labelled.pop(key(item), None)
            if not labelled:
                del self._labelled[place]

    def _home(self, item: Object) -> "tuple[dict[tuple[str, str], Object], tuple[str, str]]":
        metadata = item["metadata"]
        if item["kind"] == "Stream":
            return self.streams, (metadata["namespace"], metadata["name"])
        return self._children[metadata["namespace"]], key(item)

    def _of(self, kind: str) -> Iterable[Object]:
        if kind == "Stream":
            return list(self.streams.values())
        return [item for home in self._children.values() for item in home.values() if item["kind"] == kind]


def labelled_for(item: Object) -> Place | RelayPlace | None:
    """The stream or relay that an object belongs to, by its label; None for a Stream."""
    if item["kind"] == "Stream":
        return None
    namespace, labels = item["metadata"]["namespace"], item["metadata"].get("labels", {})
    if relay := labels.get(RELAY_LABEL):
        return RelayPlace(namespace, relay)
    stream = labels.get(STREAM_LABEL)
    return (namespace, stream) if stream else None
