"""One connection: bytes both ways, in order, with delays, until it breaks.

What a network may do to messages is here and nowhere else: delay them, drop pushes above a high-water mark, and lose
all that is under way when the connection breaks.
"""

from collections import deque
from collections.abc import Callable
from enum import StrEnum

from tests.simulation.world import World

from epochal.protocol.wire import Frames

Receive = Callable[[Frames], object]


class Socket(StrEnum):
    """Which of a publisher's sockets a connection is made to."""

    EVENTS = "events"
    REQUESTS = "requests"
    INGEST = "ingest"


class Connection:
    """A connection of a client to a publisher's socket; `name` is its routing id, `owner` (writer id, session)."""

    def __init__(self, world: World, name: bytes, owner: tuple[str, int], longest: float) -> None:
        self.world, self.name, self.owner, self._longest = world, name, owner, longest
        self.up = True
        self.on_client: Receive = lambda frames: None
        self.on_server: Receive = lambda frames: None
        self.on_lost: Callable[[], object] = lambda: None
        self.on_left: Callable[[], object] = lambda: None
        self.prefixes: dict[bytes, None] = {}
        """What the client subscribed to, as the publisher knows it."""
        self._client_at = self._server_at = 0.0
        self._paused = False
        self._held: deque[Frames] = deque()
        self.backlog = 0
        """Messages under way to the client, or waiting because it does not read."""

    def to_server(self, frames: Frames) -> None:
        """Send to the publisher."""
        if self.up:
            self._server_at = max(self._server_at, self.world.now + self.world.between(0.0005, self._longest))
            self.world.at(self._server_at, lambda: self.up and self.on_server(frames))

    def to_client(self, frames: Frames) -> None:
        """Send to the client."""
        if self.up:
            self.backlog += 1
            self._client_at = max(self._client_at, self.world.now + self.world.between(0.0005, self._longest))
            self.world.at(self._client_at, lambda: self._arrive(frames))

    def push(self, frames: Frames, high_water: int) -> None:
        """Send to the client unless too much waits already: then it is dropped, silently."""
        if self.backlog < high_water:
            self.to_client(frames)
        else:
            self.world.count("dropped")

    def _arrive(self, frames: Frames) -> None:
        if not self.up:
            return
        if self._paused:
            self._held.append(frames)
        else:
            self.backlog -= 1
            self.on_client(frames)

    def pause(self) -> None:
        """The client stops reading."""
        self._paused = True

    def resume(self) -> None:
        """The client reads again, first what has waited."""
        self._paused = False
        while self._held and self.up and not self._paused:
            self.backlog -= 1
            self.on_client(self._held.popleft())

    def close(self) -> None:
        """The client closes: it hears nothing more, the publisher learns of it a little later."""
        if self.up:
            self.up = False
            self.world.after(self.world.between(0.001, self._longest), self.on_left)

    def sever(self, notice: float) -> None:
        """Break; what is under way is lost. Each side learns of it within `notice` seconds."""
        if self.up:
            self.up = False
            self.world.after(self.world.between(0.001, notice), self.on_lost)
            self.world.after(self.world.between(0.001, notice), self.on_left)
