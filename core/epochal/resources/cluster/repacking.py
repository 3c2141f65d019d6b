"""Which pods end next where segments are spread over publishers in another way (`publishers.segmentsPerPod`).

Pods that exchange segments, or names, can only be replaced together: the new ones need what several old ones have. Such
a group is as small as can be, and one ends after the other; all at once would be an outage, and without storage the
loss of all history in one moment.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from epochal.resources.spec import Object


@dataclass(frozen=True, slots=True)
class PodSlot:
    """A pod that is there or is to be: its name, and the segments that it serves."""

    name: str
    segments: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Repacking:
    """Pods that are to go (`leaving`, by name), and those that cannot be made while these are there."""

    leaving: dict[str, PodSlot]
    starts: Sequence[PodSlot]
    holders: Mapping[str, str]
    """The leaving pod that has a segment."""
    takers: Mapping[str, PodSlot]
    """The pod that is to have a segment."""

    @classmethod
    def of(cls, leaving: Iterable[PodSlot], starts: Sequence[PodSlot]) -> "Repacking":
        """Look at who has what, and who is to have it."""
        by_name = {slot.name: slot for slot in leaving}
        holders = {segment: slot.name for slot in by_name.values() for segment in slot.segments}
        takers = {segment: slot for slot in starts for segment in slot.segments}
        return cls(by_name, starts, holders, takers)

    def is_blocked(self, start: PodSlot) -> bool:
        """Whether a pod that is to go has the name of this one, or one of its segments."""
        return bool(self._in_the_way(start))

    def next_group(self) -> frozenset[str]:
        """The names of the pods that end next together: what was begun is finished first, else the fewest."""
        for start in self.starts:
            if any(segment not in self.holders for segment in start.segments):
                return self._together(self._in_the_way(start), len(self.leaving))
        best = frozenset(self.leaving)
        tried: set[frozenset[str]] = set()
        for name, slot in reversed(self.leaving.items()):
            takers = frozenset(self.takers[segment].name for segment in slot.segments)
            if takers in tried:  # the group of another
                continue
            tried.add(takers)
            group = self._together({name}, len(best))
            if len(group) <= len(best):
                best = group
        return best

    def _in_the_way(self, start: PodSlot) -> set[str]:
        found = {self.holders[segment] for segment in start.segments if segment in self.holders}
        return found | ({start.name} & self.leaving.keys())

    def _together(self, names: Iterable[str], most: int) -> frozenset[str]:
        """All that must end so that what these serve is served again; not all of them where they are over `most`."""
        group = set(names)
        todo = list(group)
        known: set[str] = set()
        while todo and len(group) <= most:
            takers = (self.takers[segment] for segment in self.leaving[todo.pop()].segments)
            for name, taker in {slot.name: slot for slot in takers}.items():
                if name not in known:
                    known.add(name)
                    more = self._in_the_way(taker) - group
                    group |= more
                    todo += more
        return frozenset(group)


def slot_of(pod: Object, segments: tuple[str, ...]) -> PodSlot:
    """The slot of a pod."""
    return PodSlot(pod["metadata"]["name"], segments)
