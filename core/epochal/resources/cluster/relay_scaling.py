"""How many relays there should be for so many subscribers.

More at once: subscribers that find no relay go to the publishers, which relays are there to spare. Fewer late and one
at a time: each that ends sends its subscribers elsewhere, and subscribers that come back need it again.
"""

from collections import deque

from epochal.resources.relay import RelaySpec


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


class RecentNeeds:
    """What was needed in the last `window` seconds. `start`: what there was before, at `now`.

    >>> needs = RecentNeeds(300.0, start=4, now=0.0)
    >>> [needs.highest(need, now) for need, now in ((2, 1.0), (3, 200.0), (1, 299.0), (1, 301.0), (1, 501.0))]
    [4, 4, 4, 3, 1]
    """

    def __init__(self, window: float, start: int, now: float) -> None:
        self._window = window
        self._seen: deque[tuple[float, int]] = deque([(now, start)])
        """Times and needs; each need is less than those before it."""

    def highest(self, need: int, now: float) -> int:
        """The highest of them, with this new one."""
        seen = self._seen
        while seen and seen[-1][1] <= need:
            seen.pop()
        seen.append((now, need))
        while seen[0][0] < now - self._window:
            seen.popleft()
        return seen[0][1]


def next_replicas(spec: RelaySpec, current: int, need: int, highest: int, *, settled: bool) -> int:
    """How many there should be now, where there are `current`.

    `highest`: of the last minutes. `settled`: no relay is starting or ending, so that one more may end.
    """
    least, most = spec.bounds
    within = min(max(current, least), most)
    if spec.autoscaling is None or need > within:
        return need
    return within - 1 if highest < within and settled else within
