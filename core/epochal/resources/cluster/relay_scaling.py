"""How many relays a number of subscribers needs.

Scaling up is fast, because subscribers without a relay connect to the publishers, which relays should spare. It still
waits for more than one poll: a killed relay stays listed for a while, and its subscribers, which have moved to another
relay, are counted twice until then.

Scaling down is slow, and one relay at a time. Each relay that ends makes its subscribers move, and if they grow in
number again it is needed again.
"""

from collections import deque
from typing import NamedTuple

from epochal.resources.relay import RelaySpec
from epochal.resources.spec import Object

_MISSED = 4
"""After this many missed polls, earlier demand is no longer trusted."""


def needed(spec: RelaySpec, subscribers: int) -> int:
    """The number of relays for this many subscribers, within the bounds of the Relay.

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
    """The number of relays that was needed at each poll from `since` to `until`."""

    since: float
    until: float
    relays: int


class RecentNeeds:
    """The demand at the last polls, and the number of relays that follows from it.

    `up`: seconds for which more relays must have been needed before some are added. `down`: seconds for which fewer
    must have been enough before one ends. `every`: seconds between polls. `current`: the number of relays at `now`,
    before the first poll.

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
        """The time of the poll at which a relay was last ended."""

    def look(self, need: int, now: float, current: int) -> None:
        """Add the demand at one poll; `current` relays exist. Two calls with the same `now` are the same poll.

        After a gap longer than all windows, older polls say nothing about the gap: the record starts again.
        """
        if now - self._seen[-1].until > self._lapse:
            self._seen = deque([_Needed(now, now, current)])
        last = self._seen[-1]
        if last.relays == need:
            self._seen[-1] = last._replace(until=now)
        else:
            self._seen.append(_Needed(now, now, need))
        # One entry from before the windows stays: it says what was needed when they began.
        while len(self._seen) > 1 and self._seen[1].until < now - max(self._up, self._down):
            self._seen.popleft()

    @property
    def highest(self) -> int:
        """The highest demand within the window `down`: fewer relays than this have not been enough for that long."""
        begin = self._seen[-1].until - self._down
        return max(each.relays for each in self._seen if each.until >= begin)

    def lasting(self, current: int) -> int:
        """The demand that lasted through the whole window `up`: its minimum there, or `current` if that is higher.

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
        """The number of relays to run now, given `current`. Remembers the last poll if one relay is to end.

        `ending`: whether a relay is ending already.
        """
        now = self._seen[-1].until
        may_end = not ending and self._ended != now
        wanted = next_replicas(spec, current, self.lasting(current), self.highest, may_end=may_end)
        if wanted < current:
            self._ended = now
        return wanted


def next_replicas(spec: RelaySpec, current: int, lasting: int, highest: int, *, may_end: bool) -> int:
    """The number of relays to run now, given `current`.

    `lasting` and `highest`: as in `RecentNeeds`. `may_end`: whether one relay may end: none is ending already, and none
    was ended at this poll.
    """
    least, most = spec.bounds
    within = min(max(current, least), most)
    if spec.autoscaling is None:
        return least
    if lasting > within:
        return min(lasting, most)
    return within - 1 if highest < within and may_end else within


def is_ending(deployment: Object | None) -> bool:
    """Whether a relay of the Deployment is ending, or may be: then the status is of an earlier generation.

    Relays that are not ready, or cannot be created, do not count as ending. Terminating pods are not in `replicas`, but
    in `terminatingReplicas`, which exists since Kubernetes 1.35.
    """
    if deployment is None:
        return False
    status = deployment.get("status", {})
    current = status.get("observedGeneration") == deployment["metadata"]["generation"]
    more = status.get("replicas", 0) > deployment["spec"]["replicas"]
    return not current or more or bool(status.get("terminatingReplicas"))
