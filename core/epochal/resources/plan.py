"""Which publishers should run: a pure function of what is declared and what is seen.

Local mode and the operator share this one planner, so a stream is laid out in the same way in both. Publisher ids are
deterministic (`<namespace>.<name>-<n>`), so planning needs no memory of its own.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TypeAlias


@dataclass(frozen=True, slots=True)
class DesiredStream:
    """A declared stream, as far as its publishers depend on it.

    `segments` are ids in order. `generation` is that of the settings with which a publisher must have been started; a
    caller that cannot restart a publisher without loss keeps it constant.
    """

    namespace: str
    name: str
    uid: str
    segments: tuple[str, ...]
    segments_per_pod: int = 1
    generation: int = 1

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
        )
        for index, group in enumerate(groups)
    ]


def plan(desired: Sequence[DesiredStream], observed: Sequence[PlannedPublisher]) -> list[Action]:
    """What leads from `observed` to `desired`: stops, then starts, then keeps; each publisher in exactly one action.

    Idempotent: once the actions are applied, planning again gives only keeps. One of several equal publishers is kept.
    """
    wanted = {publisher.id: publisher for stream in desired for publisher in publishers_of(stream)}
    keep: dict[str, PlannedPublisher] = {}
    stop: list[Action] = []
    for publisher in sorted(observed, key=lambda seen: seen.id):
        if wanted.get(publisher.id) == publisher and publisher.id not in keep:
            keep[publisher.id] = publisher
        else:
            stop.append(Stop(publisher))
    start = [Start(publisher) for key, publisher in wanted.items() if key not in keep]
    return [*stop, *start, *(Keep(publisher) for publisher in keep.values())]


def changes(actions: Iterable[Action]) -> list[Stop | Start]:
    """The actions that do something."""
    return [action for action in actions if not isinstance(action, Keep)]
