"""The planner: which publishers and relays should run, given the declared streams and the processes that run now.

Local mode and the operator share it, so a stream is laid out in the same way in both. Publisher ids are deterministic
(`<namespace>.<name>-<n>`), so nothing is remembered between two plans. On a cluster relays are replicas of a
Deployment, and only local mode plans each of them.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Generic, TypeAlias, TypeVar


@dataclass(frozen=True, slots=True)
class DesiredStream:
    """The part of a declared stream that its publishers and relays depend on.

    `segments`: ids, in order. `generation`: of the settings with which a publisher must have been started; a caller
    that cannot restart a publisher without loss keeps it constant. `dedicated`: whether each publisher has a process or
    pod of its own; if not, `place` chooses the process that it shares. `http_port` and `relay_http_port`: ports for
    local mode, used when there is a single publisher or relay; 0 means any free port. `stored`: whether logs are on
    disk.
    """

    namespace: str
    name: str
    uid: str
    segments: tuple[str, ...]
    segments_per_pod: int = 1
    generation: int = 1
    relays: int = 0
    dedicated: bool = True
    http_port: int = 0
    relay_http_port: int = 0
    stored: bool = False

    @property
    def qualified(self) -> str:
        """`namespace/name`."""
        return f"{self.namespace}/{self.name}"


@dataclass(frozen=True, slots=True)
class PlannedPublisher:
    """A publisher that runs or should run. Two that are equal can replace each other."""

    id: str
    stream: str
    uid: str
    segments: tuple[str, ...]
    generation: int = 1
    dedicated: bool = True
    http_port: int = 0
    stored: bool = field(default=False, compare=False)
    """Whether its logs are on disk, where a lock keeps a second process out."""


@dataclass(frozen=True, slots=True)
class PlannedRelay:
    """A relay process of local mode. `name`: the name that subscribers ask for, which is the stream's."""

    id: str
    stream: str
    uid: str
    name: str
    http_port: int = 0


ObservedPublisher: TypeAlias = PlannedPublisher


@dataclass(frozen=True, slots=True)
class Stop:
    """Stop this publisher: its stream is gone, or it runs with other segments or settings than it should."""

    publisher: PlannedPublisher


@dataclass(frozen=True, slots=True)
class Start:
    """Start this publisher once all publishers that must stop have stopped."""

    publisher: PlannedPublisher


@dataclass(frozen=True, slots=True)
class Keep:
    """This publisher runs as it should."""

    publisher: PlannedPublisher


Action: TypeAlias = Stop | Start | Keep


def publisher_id(namespace: str, name: str) -> str:
    """The id of the publisher with this name, such as a pod's, in this namespace."""
    return f"{namespace}.{name}"


def publishers_of(stream: DesiredStream) -> list[PlannedPublisher]:
    """The publishers that a stream should have; each serves `segments_per_pod` consecutive segments.

    >>> [p.id for p in publishers_of(DesiredStream("demo", "flights", "u", ("0", "1", "2"), 2))]
    ['demo.flights-0', 'demo.flights-1']
    """
    size = stream.segments_per_pod
    groups = [stream.segments[start : start + size] for start in range(0, len(stream.segments), size)]
    return [
        PlannedPublisher(
            publisher_id(stream.namespace, f"{stream.name}-{index}"),
            stream.qualified,
            stream.uid,
            group,
            stream.generation,
            stream.dedicated,
            stream.http_port if len(groups) == 1 else 0,
            stream.stored,
        )
        for index, group in enumerate(groups)
    ]


def relays_of(stream: DesiredStream) -> list[PlannedRelay]:
    """The relays that a stream should have. Their ids differ from those of publishers, as names contain no dots.

    >>> [relay.id for relay in relays_of(DesiredStream("demo", "flights", "u", ("0",), relays=2))]
    ['demo.flights.relay-0', 'demo.flights.relay-1']
    """
    port = stream.relay_http_port if stream.relays == 1 else 0
    return [
        PlannedRelay(f"{stream.namespace}.{stream.name}.relay-{index}", stream.qualified, stream.uid, stream.name, port)
        for index in range(stream.relays)
    ]


Planned = TypeVar("Planned", PlannedPublisher, PlannedRelay)


@dataclass(frozen=True, slots=True)
class Changes(Generic[Planned]):
    """The processes to stop, those to start after that, and those that keep running."""

    stop: tuple[Planned, ...]
    start: tuple[Planned, ...]
    keep: tuple[Planned, ...]


def plan_relays(desired: Sequence[DesiredStream], observed: Sequence[PlannedRelay]) -> Changes[PlannedRelay]:
    """The changes that lead from `observed` to the relays of `desired`. Idempotent, like `plan`."""
    return _compared({relay.id: relay for stream in desired for relay in relays_of(stream)}, observed)


def _compared(wanted: Mapping[str, Planned], observed: Sequence[Planned]) -> Changes[Planned]:
    """Compare by id: a process that equals the wanted one is kept; of several equal ones, only the first."""
    keep: dict[str, Planned] = {}
    stop: list[Planned] = []
    for seen in sorted(observed, key=lambda each: each.id):
        if wanted.get(seen.id) == seen and seen.id not in keep:
            keep[seen.id] = seen
        else:
            stop.append(seen)
    start = tuple(each for key, each in wanted.items() if key not in keep)
    return Changes(tuple(stop), start, tuple(keep.values()))


def plan(desired: Sequence[DesiredStream], observed: Sequence[PlannedPublisher]) -> list[Action]:
    """The actions that lead from `observed` to `desired`: stops, then starts, then keeps.

    Each publisher is in exactly one action; one of several equal publishers is kept. Idempotent: once the actions are
    carried out, the next plan has only keeps.
    """
    wanted = {publisher.id: publisher for stream in desired for publisher in publishers_of(stream)}
    found = _compared(wanted, observed)
    return [*map(Stop, found.stop), *map(Start, found.start), *map(Keep, found.keep)]


def place(publishers: Iterable[PlannedPublisher], placed: Mapping[str, int], processes: int) -> Mapping[str, int]:
    """The number of the process, below `processes`, that each publisher shares, by id; without dedicated publishers.

    `placed`: the processes of the running publishers. These do not move, because moving a publisher stops it. A new one
    goes to the process with the fewest segments, the first among equals. Raises `ValueError` for less than one process.

    >>> a, b = (PlannedPublisher(each, "demo/x", "u", ("0",), dedicated=False) for each in "ab")
    >>> place([a, b], {"a": 1}, 2)
    {'a': 1, 'b': 0}
    """
    if processes < 1:
        raise ValueError("there must be a process")
    shared = [publisher for publisher in publishers if not publisher.dedicated]
    found = {each.id: placed[each.id] for each in shared if placed.get(each.id, processes) < processes}
    load = [0] * processes
    for each in shared:
        if each.id in found:
            load[found[each.id]] += len(each.segments)
    for each in shared:
        if each.id not in found:
            found[each.id] = load.index(min(load))
            load[found[each.id]] += len(each.segments)
    return found


def changes(actions: Iterable[Action]) -> list[Stop | Start]:
    """The actions that change something: stops and starts."""
    return [action for action in actions if not isinstance(action, Keep)]
