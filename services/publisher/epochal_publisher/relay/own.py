"""How a relay finds itself: its readers of whole epochs are subscribers of its own.

So each rule of who is welcomed when, and of what is had from memory, is there once.
"""

from collections.abc import Mapping

from epochal.catalog_api.answers import StreamInfo
from epochal.client.catalog.directory import Directory
from epochal.client.options import NOTHING, Expected


class OwnDirectory(Directory):
    """A directory that leads to this relay; what is declared of the stream is what `known` has found."""

    def __init__(self, known: Directory, addresses: Mapping[str, str]) -> None:
        super().__init__(known.catalog, known.qualified, wait=0.0)
        self._known = known
        self._addresses = addresses

    @property
    def info(self) -> StreamInfo:
        """What is known of the stream."""
        return self._known.info

    async def look_up(self, expected: Expected = NOTHING) -> StreamInfo:
        """What is known; the relay asks by itself whether the stream is still there."""
        return self._known.info

    async def current(self) -> StreamInfo:
        """What is known."""
        return self._known.info

    async def addresses(self, segment: str, *sockets: str) -> list[str]:
        """Those of this relay, for every segment."""
        return [self._addresses[socket] for socket in sockets]
