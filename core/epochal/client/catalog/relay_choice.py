"""Which relay a subscription reads from: a ranking that follows free capacity and changes little.

It does no I/O: it gets the relays that the catalog lists, the time, and what became of those that it chose. Each
subscription has a random key of its own. By it every relay gets a score, and the highest comes first (weighted
rendezvous hashing, Schindelhauer and Schomaker, 2005): over many keys each relay is first in proportion to its free
capacity, and when one leaves, only those that had it first choose again.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from typing import Literal, Self, get_args

from epochal.catalog_api.answers import RelayInfo
from epochal.errors import UsageError

RouteKind = Literal["auto", "direct", "relay"]

READY = "ready"
"""The state in which a relay takes readers."""
MOST_NAMED = 5
"""Relays that an error names."""
SAME_NOTICE = 1.0
"""Seconds within which a relay that begins again says so at each of its segments."""


@dataclass(frozen=True, slots=True)
class Via:
    """Which way a subscription takes; a text such as `relay:NAME` is read by `parse`.

    `auto`: a relay where one is ready, else straight to the publishers; `direct`: never a relay; `relay`: never the
    publishers. `name`: only relays of this name. `exclude`: ids of relays that are never used, nor those behind them.
    A relay that failed is avoided for `avoid` seconds, twice as long each time up to `longest`.
    """

    kind: RouteKind = "auto"
    name: str | None = None
    exclude: frozenset[str] = frozenset()
    avoid: float = 5.0
    longest: float = 60.0

    @classmethod
    def parse(cls, text: Self | str) -> Self:
        """The value of `auto`, `direct`, `relay` or `relay:NAME`, or a `Via` itself; else raises `UsageError`.

        >>> Via.parse("relay:eu").name
        'eu'
        """
        if isinstance(text, cls):
            return text
        if not isinstance(text, str):
            raise UsageError(f"via= is auto, direct, relay or relay:NAME, or a Via, not {text!r:.100}")
        kind, _, name = text.partition(":")
        if kind == "relay" and name:
            return cls("relay", name)
        for known in get_args(RouteKind):
            if text == known:
                return cls(known)
        raise UsageError(f"via= is auto, direct, relay or relay:NAME, not {text[:100]!r}")


@dataclass(frozen=True, slots=True)
class _Failure:
    until: float
    seconds: float


class RelayChoice:
    """The choice of one subscription. `key` is random bytes of its own; `now` is seconds of one monotonic clock."""

    def __init__(self, via: Via, key: bytes) -> None:
        self._via = via
        self._key = key
        self._failures: dict[str, _Failure] = {}

    def ranked(self, relays: Iterable[RelayInfo], now: float) -> list[RelayInfo]:
        """The relays that can be tried now, the best first.

        Left out are those that are not wanted, not ready or full, and those that failed a short time ago.
        """
        if self._via.kind == "direct":
            return []
        usable = [relay for relay in relays if self._wanted(relay) and _takes_readers(relay)]
        usable = [relay for relay in usable if not self._avoided(relay.id, now)]
        return sorted(usable, key=self._score, reverse=True)

    def ended(
        self, relay: str, now: float, *, lived: float = 0.0, silent: bool = False, notified: bool = False
    ) -> None:
        """A connection through the relay of this id ended, `lived` seconds after it had joined, or never did.

        One that worked for longer than `Via.avoid` and did not just fall silent is joined again at the same relay
        first. So is, once, one that ended because the relay said so (`notified`): it may have to begin again (F13), and
        one that stops is no longer listed as ready. Any other is a failure: the relay is avoided for a while, and for
        longer each time. What is avoided already has failed at several segments at once: that counts as one time. So
        does what it says at several.
        """
        if lived >= self._via.avoid and not silent:
            self._failures.pop(relay, None)
            return
        before = self._failures.get(relay)
        is_same = notified and before is not None and now < before.until + SAME_NOTICE
        if is_same or self._avoided(relay, now):
            return
        if before is None:
            seconds = 0.0 if notified else self._via.avoid
        else:
            seconds = min(max(2 * before.seconds, self._via.avoid), self._via.longest)
        self._failures[relay] = _Failure(now + seconds, seconds)
        over = [key for key, known in self._failures.items() if now - known.until > self._via.longest]
        for key in over:
            del self._failures[key]

    def why_none(self, relays: Sequence[RelayInfo], now: float) -> str:
        """Why `ranked` has none of these relays, in words."""
        named = [relay for relay in relays if self._wanted(relay)]
        if not named:
            return self._why_none_wanted(relays)
        ready = [relay for relay in named if relay.state == READY]
        if not ready:
            return f"no relay is ready ({_names([f'{relay.id} is {relay.state}' for relay in named])})"
        free = [relay for relay in ready if _takes_readers(relay)]
        if not free:
            return f"every relay is full ({_names([f'{relay.id}: {relay.load}/{relay.capacity}' for relay in ready])})"
        soon = min((known.until - now for known in map(self._failure, free) if known is not None), default=0.0)
        return (
            f"every relay failed ({_names([relay.id for relay in free])}); one is tried again in {max(soon, 0):.1f} s"
        )

    def _why_none_wanted(self, relays: Sequence[RelayInfo]) -> str:
        names = sorted({relay.name for relay in relays})
        if self._via.name is not None and self._via.name not in names:
            others = f" (only {_names(names)})" if names else ""
            return f"no relay {self._via.name} is registered{others}"
        return "no relay is registered" + (" but those that are excluded" if names else "")

    def _failure(self, relay: RelayInfo) -> _Failure | None:
        return self._failures.get(relay.id)

    def _avoided(self, relay: str, now: float) -> bool:
        failure = self._failures.get(relay)
        return failure is not None and now < failure.until

    def _wanted(self, relay: RelayInfo) -> bool:
        exclude = self._via.exclude
        if self._via.name is not None and relay.name != self._via.name:
            return False
        return relay.id not in exclude and exclude.isdisjoint(relay.path)

    def _score(self, relay: RelayInfo) -> float:
        """-weight / ln(h) with h in (0, 1) by chance; 52 bits, so that h never rounds to 1."""
        digest = blake2b(relay.id.encode(), digest_size=8, key=self._key).digest()
        share = ((int.from_bytes(digest, "big") >> 12) + 0.5) / 2**52
        return -(relay.capacity - relay.load) / math.log(share)


def _takes_readers(relay: RelayInfo) -> bool:
    return relay.state == READY and relay.load < relay.capacity


def _names(texts: Sequence[str]) -> str:
    return ", ".join(texts[:MOST_NAMED]) + (" ..." if len(texts) > MOST_NAMED else "")
