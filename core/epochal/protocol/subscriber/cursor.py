"""How far a subscriber has come: small, serialisable, and enough to go on elsewhere.

Applications store cursors, so their form outlives any process.

Source: rule E16; Push-Pull Publish-Subscribe ("subscribers only need to keep a time stamp").
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from epochal.errors import CursorError, TimeShapeError
from epochal.protocol.messages import NOTHING_YET, Position
from epochal.protocol.times import MAX_TIME, Time, from_json, to_json

_FORM = 3
"""The newest. Form 2 has no `seen_from` and form 1 no `untold`; both are read, and form 2 is written if it says all."""


@dataclass(frozen=True, slots=True)
class Cursor:
    """`stream` is the stream's uid.

    `positions` are just before the first event of any epoch not yet yielded; events that no element of `frontier`
    reaches, and those of `aborted` epochs, are skipped on resume. `untold` epochs are aborted, too, and the application
    does not know that yet; the log may begin after their aborts. Of the epochs that `frontier` reaches, only those
    that `seen_from` reaches can be handed out (None: all). The subscriber missed a part of the others (E15), but
    segments may still accept records at them, so they are not complete.
    """

    stream: str
    positions: Mapping[str, Position]
    frontier: tuple[Time, ...]
    aborted: tuple[Time, ...] = ()
    untold: tuple[Time, ...] = ()
    seen_from: tuple[Time, ...] | None = None

    def to_json(self) -> str:
        """One line of JSON; `from_json` reads it back, on this machine or another."""
        value = {
            "cursor": 2 if self.seen_from is None else _FORM,
            "stream": self.stream,
            "positions": {segment: list(position) for segment, position in sorted(self.positions.items())},
            "frontier": [to_json(time) for time in self.frontier],
            "aborted": [to_json(time) for time in self.aborted],
            "untold": [to_json(time) for time in self.untold],
        }
        if self.seen_from is not None:
            value["seen_from"] = [to_json(time) for time in self.seen_from]
        return json.dumps(value, separators=(",", ":"))

    @classmethod
    def from_json(cls, text: str) -> "Cursor":
        """Read a cursor; raises `CursorError` that names what is wrong with it."""
        try:
            value: Any = json.loads(text)
            if type(value) is not dict:
                raise TypeError("it is no JSON object")
            form = value["cursor"]
            if type(form) is not int or not 1 <= form <= _FORM:
                raise CursorError(f"this is a cursor of form {form!r}; this version reads forms 1 to {_FORM}")
            if type(value["stream"]) is not str:
                raise TypeError(f"a stream's uid is a string, not {value['stream']!r}")
            return cls(
                value["stream"],
                {segment: _position(pair) for segment, pair in value["positions"].items()},
                _times(value["frontier"]),
                _times(value["aborted"]),
                _times(value["untold"]) if form > 1 else (),
                _times(value["seen_from"]) if form > 2 else None,
            )
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError, TimeShapeError) as error:
            raise CursorError(f"not a cursor as Cursor.to_json writes it: {error!r}") from None


def _position(pair: Any) -> Position:
    incarnation, seq = pair
    if type(incarnation) is not int or type(seq) is not int:
        raise TypeError(f"a position is [incarnation, seq], not {pair!r}")
    if not (0 <= incarnation <= MAX_TIME and NOTHING_YET <= seq <= MAX_TIME):
        raise ValueError(f"a position's numbers are in 0 .. 2^63-1 (or -1, nothing yet), not {pair!r}")
    return Position(incarnation, seq)


def _times(value: Any) -> tuple[Time, ...]:
    if type(value) is not list:
        raise TypeError(f"times come as an array, not {value!r}")
    return tuple(map(from_json, value))
