"""A publisher of another stream, to which a segment's address leads for a while (E48).

It knows nothing of the stream, and says so in the words of the real machines.
"""

from tests.simulation.links import Connection, Socket
from tests.simulation.scenario import Scenario
from tests.simulation.world import World

from epochal.protocol import messages as m
from epochal.protocol import wire
from epochal.protocol.publisher.channels import Channels
from epochal.protocol.publisher.effects import Reply, SendAnswers
from epochal.protocol.publisher.limits import PublisherSettings
from epochal.protocol.publisher.machine import SegmentPublisher
from epochal.protocol.publisher.server import SegmentServer, ServingSettings
from epochal.protocol.wire import Frames


class Stranger:
    """A publisher of the stream `another`, with a segment of the same name."""

    def __init__(self, world: World, scenario: Scenario, segment: str) -> None:
        self._world, self._scenario = world, scenario
        self._publisher = SegmentPublisher(
            "another", segment, PublisherSettings(scenario.time_shape), incarnation=1, now=world.now
        )
        self._server = SegmentServer(self._publisher, Channels(lambda: bytes(8)), ServingSettings(), world.now)
        self._connections: dict[bytes, Connection] = {}

    def connect(self, socket: Socket, owner: tuple[str, int]) -> Connection:
        """Accept a connection of session `owner`; what is pushed here is not pushed to who asks for another stream."""
        name = f"stranger-{len(self._connections)}".encode()
        connection = self._connections[name] = Connection(self._world, name, owner, self._scenario.longest_delay)
        if socket is not Socket.EVENTS:
            connection.on_server = lambda frames: self._arrived(socket, connection, frames)
        return connection

    def _arrived(self, socket: Socket, connection: Connection, frames: Frames) -> None:
        for message in wire.decode(frames):
            if socket is Socket.INGEST:
                self._publisher.receive(connection.name, message, self._world.now)
            else:
                self._server.receive(connection.name, message, self._world.now)
        for effect in self._publisher.take():
            match effect:
                case Reply(peer, answer):
                    self._send(peer, answer)
                case SendAnswers(peer, answers):
                    self._send(peer, *answers)
                case _:
                    pass

    def _send(self, peer: bytes, *messages: m.Message) -> None:
        for frames in wire.encode(*messages):
            self._connections[peer].to_client(frames)
