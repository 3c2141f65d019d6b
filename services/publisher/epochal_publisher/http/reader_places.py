"""The places of readers over HTTP: how many are answered at once, divided among their addresses."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from aiohttp import web

from epochal.service.errors import Overloaded


class TooManyOfAddress(Overloaded):
    """An address has as many places as it may have."""

    code = "too_many_readers"


class GaveWay(Overloaded):
    """A reader of an address that has fewer places needs this one. `begun` as in `Place`."""

    begun: web.StreamResponse | None = None


class Place:
    """The place of one reader. `begun` is its response once a part of that was sent."""

    def __init__(self, address: str, scope: asyncio.Timeout) -> None:
        self.address = address
        self.begun: web.StreamResponse | None = None
        self._scope = scope

    def give_way(self) -> None:
        """End the reader's task in this place."""
        self._scope.reschedule(asyncio.get_running_loop().time())


class ReaderPlaces:
    """At most `most` places.

    If all are taken, a reader of an address that has at least two fewer than another gets one of that other's: the one
    that was taken last. So an address can have all places while no other asks, and has an equal share otherwise.
    `most_of_address` is the most that one address can have; None is no bound.
    """

    def __init__(self, most: int, setting: str, most_of_address: int | None = None) -> None:
        self._most = most
        self._most_of_address = most_of_address
        self._setting = setting
        self._places: dict[Place, None] = {}
        self._by_address: Counter[str] = Counter()

    def __len__(self) -> int:
        """How many places are taken."""
        return len(self._places)

    @asynccontextmanager
    async def take(self, address: str) -> AsyncIterator[Place]:
        """Take a place while the context is entered.

        Raises `Overloaded`, `TooManyOfAddress`, and `GaveWay` when another gets it.
        """
        self._make_room(address)
        scope = asyncio.timeout(None)
        place = Place(address, scope)
        try:
            async with scope:
                self._places[place] = None
                self._by_address[address] += 1
                try:
                    yield place
                finally:
                    self._leave(place)
        except TimeoutError:
            if not scope.expired():
                raise
            gave_way = GaveWay(
                f"{self._most} ask for events already ({self._setting}), and one of another address needed this place; "
                "try again later"
            )
            gave_way.begun = place.begun
            raise gave_way from None

    def end_all(self) -> None:
        """Take all places away, because the process ends."""
        for place in self._places:
            place.give_way()

    def _make_room(self, address: str) -> None:
        if self._most_of_address is not None and self._by_address[address] >= self._most_of_address:
            raise TooManyOfAddress(
                f"{address} asks {self._most_of_address} times already, as often as one address may "
                f"({self._setting}_PER_ADDRESS); try again later"
            )
        if len(self._places) < self._most:
            return
        ((most, count),) = self._by_address.most_common(1)
        if count < self._by_address[address] + 2:
            raise Overloaded(f"{self._most} ask for events already ({self._setting}); try again later")
        last = next(place for place in reversed(self._places) if place.address == most)
        self._leave(last)
        last.give_way()

    def _leave(self, place: Place) -> None:
        if place in self._places:
            del self._places[place]
            self._by_address[place.address] -= 1
            if not self._by_address[place.address]:
                del self._by_address[place.address]
