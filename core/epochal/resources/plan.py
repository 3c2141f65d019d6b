"""Which publishers and relays should run: a pure function of what is declared and what is seen.

Local mode and the operator share this one planner, so a stream is laid out in the same way in both. Publisher ids are
deterministic (`<namespace>.<name>-<n>`), so planning needs no memory of its own. On a cluster relays are replicas of a
Deployment, so that only local mode plans each of them.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Generic, TypeAlias, TypeVar


@dataclass(frozen=True, slots=True)
class DesiredStream:
    """A declared stream, as far as its publishers and relays depend on it.

    `segments` are ids in order. `generation` is that of the settings with which a publisher must have been started; a
    caller that cannot restart a publisher without loss keeps it constant. `dedicated`: each publisher has a process or
    pod of its own; else `place` says which process it shares. `http_port` and `relay_http_port` are those that local
    mode uses when there is one publisher, or relay; 0 is any free one. `stored`: it has logs on disk.
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
    """A publisher that runs or should run: equal ones are interchangeable."""

    id: str
    stream: str
    uid: str
    segments: tuple[str, ...]
    generation: int = 1
    dedicated: bool = True
    http_port: int = 0
    stored: bool = field(default=False, compare=False)
    """Whether its logs are on disk, where a lock keeps a second one out."""


@dataclass(frozen=True, slots=True)
class PlannedRelay:
    """A relay process of local mode; `name` is that by which subscribers ask for it, the stream's."""

    id: str
    stream: str
    uid: str
    name: str
    http_port: int = 0


ObservedPublisher: TypeAlias = PlannedPublisher


@dataclass(frozen=True, slots=True)
class Stop:
    """Stop this publisher: its stream is gone, or it should run otherwise."""

    publisher: PlannedPublisher


@dataclass(frozen=True, slots=True)
class Start:
    """Start this publisher, after what is to be stopped has stopped."""

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
    """The publishers that one stream should have: consecutive segments, `segments_per_pod` to each.

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
    """The relays that one stream should have. No publisher has such an id: names have no dots.

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
    """What is to be stopped, what is to be started after that, and what goes on."""

    stop: tuple[Planned, ...]
    start: tuple[Planned, ...]
    keep: tuple[Planned, ...]


def plan_relays(desired: Sequence[DesiredStream], observed: Sequence[PlannedRelay]) -> Changes[PlannedRelay]:
    """What leads from `observed` to the relays of `desired`. Idempotent, as `plan` is."""
    return _compared({relay.id: relay for stream in desired for relay in relays_of(stream)}, observed)


def _compared(wanted: Mapping[str, Planned], observed: Sequence[Planned]) -> Changes[Planned]:
    """Equal ones go on, and one of several equal ones; by id."""
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
    """What leads from `observed` to `desired`: stops, then starts, then keeps; each publisher in exactly one action.

    Idempotent: once the actions are applied, planning again gives only keeps. One of several equal publishers is kept.
    """
    wanted = {publisher.id: publisher for stream in desired for publisher in publishers_of(stream)}
    found = _compared(wanted, observed)
    return [*map(Stop, found.stop), *map(Start, found.start), *map(Keep, found.keep)]


def place(publishers: Iterable[PlannedPublisher], placed: Mapping[str, int], processes: int) -> Mapping[str, int]:
    """The process that each of `publishers` shares, as a number below `processes`, by id; none for a dedicated one.

    `placed`: where those are that run. They stay, because to move one would stop it; a new one goes where the fewest
    segments are, the first process among equals. Raises `ValueError` for less than one process.

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
    """The actions that do something."""
    return [action for action in actions if not isinstance(action, Keep)]
