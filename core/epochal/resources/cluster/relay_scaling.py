"""How many relays there should be for so many subscribers.

More soon: subscribers that find no relay go to the publishers, which relays are there to spare. But not at the first
look: one that was killed stays listed for a while, and its subscribers, who are elsewhere by then, are listed twice.
Fewer late and one at a time: each that ends sends its subscribers elsewhere, and subscribers that come back need it
again.
"""

from collections import deque
from typing import NamedTuple

from epochal.resources.relay import RelaySpec
from epochal.resources.spec import Object

_MISSED = 4
"""So many looks missed in a row: what was needed before is not known to have gone on."""


def needed(spec: RelaySpec, subscribers: int) -> int:
    """How many relays take so many subscribers, within the bounds.

    >>> from epochal.resources.relay import Autoscaling
    >>> spec = RelaySpec(stream="flights", autoscaling=Autoscaling(max=4, subscribersPerReplica=100))
    >>> [needed(spec, subscribers) for subscribers in (0, 100, 101, 10_000)]
    [1, 1, 2, 4]
    """
    least, most = spec.bounds
    if spec.autoscaling is None:
        return least
    return min(max(-(-subscribers // spec.autoscaling.subscribers_per_replica), least), most)


class _Needed(NamedTuple):
    """So many relays were needed at each look from `since` to `until`."""

    since: float
    until: float
    relays: int


class RecentNeeds:
    """What was needed at the last looks, and so how many relays there should be.

    `up`, `down`: seconds for which more must have been needed, and fewer been enough. `every`: seconds between looks.
    `current`: the relays that there were at `now`, before the first look.

    >>> needs = RecentNeeds(15.0, 300.0, 15.0, current=4, now=0.0)
    >>> for need, now in ((2, 15.0), (3, 200.0), (1, 215.0), (1, 230.0)):
    ...     needs.look(need, now, current=4)
    >>> needs.highest
    4
    >>> needs.look(1, 301.0, current=4)
    >>> needs.highest
    3
    """

    def __init__(self, up: float, down: float, every: float, *, current: int, now: float) -> None:
        self._up = up
        self._down = down
        self._lapse = max(up, down, _MISSED * every)
        self._seen = deque([_Needed(now, now, current)])
        self._ended: float | None = None
        """The look at which a relay was last ended."""

    def look(self, need: int, now: float, current: int) -> None:
        """So many are needed at this look, where there are `current`; at the same moment it is the same look.

        What is older than any window says nothing about the time since: then it is as at the first look.
        """
        if now - self._seen[-1].until > self._lapse:
            self._seen = deque([_Needed(now, now, current)])
        last = self._seen[-1]
        if last.relays == need:
            self._seen[-1] = last._replace(until=now)
        else:
            self._seen.append(_Needed(now, now, need))
        # One look before the windows stays: it says what was needed when they began.
        while len(self._seen) > 1 and self._seen[1].until < now - max(self._up, self._down):
            self._seen.popleft()

    @property
    def highest(self) -> int:
        """The highest need for so long that fewer may be enough."""
        begin = self._seen[-1].until - self._down
        return max(each.relays for each in self._seen if each.until >= begin)

    def lasting(self, current: int) -> int:
        """How many were needed for so long, at every look, that more may begin; `current` where that is no more.

        >>> needs = RecentNeeds(15.0, 300.0, 15.0, current=1, now=0.0)
        >>> lasting = []
        >>> for need, now in ((4, 15.0), (2, 30.0), (4, 45.0), (4, 60.0)):
        ...     needs.look(need, now, current=1)
        ...     lasting.append(needs.lasting(1))
        >>> lasting
        [1, 2, 2, 4]
        """
        begin, least = self._seen[-1].until - self._up, self._seen[-1].relays
        for each in reversed(self._seen):
            least = min(least, each.relays)
            if each.since <= begin:
                return max(least, current)
        return current

    def replicas(self, spec: RelaySpec, current: int, *, ending: bool) -> int:
        """How many there should be now, where there are `current`; one that is to end is noted with the last look.

        `ending`: whether a relay is on its way out.
        """
        now = self._seen[-1].until
        may_end = not ending and self._ended != now
        wanted = next_replicas(spec, current, self.lasting(current), self.highest, may_end=may_end)
        if wanted < current:
            self._ended = now
        return wanted


def next_replicas(spec: RelaySpec, current: int, lasting: int, highest: int, *, may_end: bool) -> int:
    """How many there should be now, where there are `current`.

    `lasting`: as many have been needed for a while. `highest`: of the last minutes. `may_end`: none is on its way out,
    and none was ended at this look, so that one may be.
    """
    least, most = spec.bounds
    within = min(max(current, least), most)
    if spec.autoscaling is None:
        return least
    if lasting > within:
        return min(lasting, most)
    return within - 1 if highest < within and may_end else within


def is_ending(deployment: Object | None) -> bool:
    """Whether a relay is on its way out, or may be: what the status says is of an earlier declaration.

    Relays that are not ready, or cannot be made, keep none from ending. Pods that end are in `replicas` no more, but in
    `terminatingReplicas`, which Kubernetes has from 1.35 on.
    """
    if deployment is None:
        return False
    status = deployment.get("status", {})
    current = status.get("observedGeneration") == deployment["metadata"]["generation"]
    more = status.get("replicas", 0) > deployment["spec"]["replicas"]
    return not current or more or bool(status.get("terminatingReplicas"))
