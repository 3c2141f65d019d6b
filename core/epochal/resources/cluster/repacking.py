"""Which pods end next when segments move between publishers (a change of `publishers.segmentsPerPod`).

A pod that ends leaves its segments to new pods. Such a new pod cannot start before all old pods that have one of its
segments, or its name, have ended; these leave segments to new pods in turn. So a group is closed under two steps: from
an old pod to the new pods that take its segments, and from a new pod to the old pods in its way. Only when a whole
group has ended can all its segments be served again.

The smallest group is replaced first, and one group after the other: all at once would be an outage, and for a stream
without storage the loss of all history in one moment.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from epochal.resources.spec import Object


@dataclass(frozen=True, slots=True)
class PodSlot:
    """An existing or a future pod: its name, and the segments that it serves."""

    name: str
    segments: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Repacking:
    """The pods that are to go, and the pods that cannot be created before these have ended."""

    leaving: dict[str, PodSlot]
    """By name."""
    starts: Sequence[PodSlot]
    holders: Mapping[str, str]
    """The name of the leaving pod that serves a segment now."""
    takers: Mapping[str, PodSlot]
    """The future pod that gets a segment."""

    @classmethod
    def of(cls, leaving: Iterable[PodSlot], starts: Sequence[PodSlot]) -> "Repacking":
        """Index the segments of both by pod."""
        by_name = {slot.name: slot for slot in leaving}
        holders = {segment: slot.name for slot in by_name.values() for segment in slot.segments}
        takers = {segment: slot for slot in starts for segment in slot.segments}
        return cls(by_name, starts, holders, takers)

    def is_blocked(self, start: PodSlot) -> bool:
        """Whether a leaving pod has this pod's name or one of its segments."""
        return bool(self._in_the_way(start))

    def next_group(self) -> frozenset[str]:
        """The names of the pods that end next, together: the rest of a begun group, else the smallest group."""
        # A future pod with a segment that no leaving pod has: an earlier plan was cut short after it had ended a part
        # of the group. That segment is served by no one, so this group is first whatever its size.
        for start in self.starts:
            if any(segment not in self.holders for segment in start.segments):
                return self._together(self._in_the_way(start), len(self.leaving))
        best = frozenset(self.leaving)
        tried: set[frozenset[str]] = set()
        for name, slot in reversed(self.leaving.items()):
            takers = frozenset(self.takers[segment].name for segment in slot.segments)
            # Old pods whose segments go to the same new pods have the same group, so it is computed once for them. A
            # group that grows larger than the best one is cut off.
            if takers in tried:
                continue
            tried.add(takers)
            group = self._together({name}, len(best))
            if len(group) <= len(best):  # of equal groups that of the first leaving pod, as they are visited in reverse
                best = group
        return best

    def _in_the_way(self, start: PodSlot) -> set[str]:
        found = {self.holders[segment] for segment in start.segments if segment in self.holders}
        return found | ({start.name} & self.leaving.keys())

    def _together(self, names: Iterable[str], most: int) -> frozenset[str]:
        """The pods that must end with these, so that other pods can take all their segments.

        Stops early, with a part of the group, once that is larger than `most`.
        """
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
    """The name and segments of a pod, as a `PodSlot`."""
    return PodSlot(pod["metadata"]["name"], segments)
