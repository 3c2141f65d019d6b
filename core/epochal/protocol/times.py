"""Logical times and their partial order.

A time is an int, or a tuple of times; ints are ordered as usual, tuples componentwise (the product order). Only this
module knows what a time looks like: everything else compares times through `less_equal`.

Each comparison, `join` and `meet` costs O(ints of a time), of which a shape has at most `MAX_SHAPE_LEAVES`.

Python's own order on such values (lexicographic) is a linear extension of the product order, so `sorted()` puts times
in an order in which none comes before a smaller one. `epochs()` relies on that (E18).

Sources: docs/concepts.md (Times), rule S34, Strymon's publish-subscribe protocol.
"""

import re
import reprlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, TypeAlias

from epochal.errors import TimeShapeError

Time: TypeAlias = int | tuple["Time", ...]
"""A logical time: `7`, `(3, 1)`, `(3, (0, 2))`, or `()` for a stream that knows only one time."""

MAX_TIME = 2**63 - 1
MAX_SHAPE_DEPTH = 8
MAX_SHAPE_LEAVES = 32

_TOKEN = re.compile(r"\s*(int|\(|\)|,)")


def less_equal(a: Time, b: Time) -> bool:
    """Whether `a <= b` in the product order; both must be of one shape.

    >>> less_equal(3, 5), less_equal((0, 3), (5, 0)), less_equal((1, (0, 2)), (1, (1, 2)))
    (True, False, True)
    """
    if isinstance(a, int):
        return a <= b  # type: ignore[operator]
    return all(map(less_equal, a, b))  # type: ignore[arg-type]


def less_than(a: Time, b: Time) -> bool:
    """Whether `a <= b` and `a != b`.

    >>> less_than((0, 3), (1, 3)), less_than((0, 3), (0, 3)), less_than((0, 3), (5, 0))
    (True, False, False)
    """
    return a != b and less_equal(a, b)


def join(a: Time, b: Time) -> Time:
    """The least time that both reach (least upper bound).

    >>> join((0, 3), (5, 0))
    (5, 3)
    """
    if isinstance(a, int):
        return max(a, b)
    return tuple(map(join, a, b))  # type: ignore[arg-type]


def meet(a: Time, b: Time) -> Time:
    """The greatest time that is <= both (greatest lower bound).

    >>> meet((0, 3), (5, 0))
    (0, 0)
    """
    if isinstance(a, int):
        return min(a, b)
    return tuple(map(meet, a, b))  # type: ignore[arg-type]


def to_json(time: Time) -> Any:
    """The JSON form: an int or nested lists.

    >>> to_json((3, (0, 2)))
    [3, [0, 2]]
    """
    return time if isinstance(time, int) else [to_json(part) for part in time]


def from_json(value: Any) -> Time:
    """The inverse of `to_json`; lists (as msgpack and JSON give them) become tuples.

    Checks types and depth only; `TimeShape.check` does the rest. Raises `TimeShapeError` for anything that is no time.

    >>> from_json([3, [0, 2]]), from_json(7)
    ((3, (0, 2)), 7)
    """
    return _from_json(value, MAX_SHAPE_DEPTH + 1)


def _from_json(value: Any, levels: int) -> Time:
    if type(value) is int:
        return value
    if isinstance(value, list | tuple) and levels:  # compiled code has no limit of its own to recursion
        return tuple([_from_json(part, levels - 1) for part in value])
    raise TimeShapeError(f"a time is an int or a (nested) tuple of ints, not {reprlib.repr(value)}")


@dataclass(frozen=True, slots=True)
class TimeShape:
    """The declared shape of a stream's times: `int`, `(int, int)`, `(int, (int, int))`, or `()`.

    `form` mirrors a time, with `None` in place of each int. Each method costs O(ints of the shape), but `not_reached`.
    """

    form: Any = None

    def __reduce__(self) -> tuple[type["TimeShape"], tuple[Any]]:
        return TimeShape, (self.form,)  # compiled code would set the frozen field

    @classmethod
    def parse(cls, text: object) -> "TimeShape":
        """Read a declared shape; raises `TimeShapeError` that shows where reading stopped.

        >>> str(TimeShape.parse("(int,(int , int))")), TimeShape.parse("(int, int)").bottom
        ('(int, (int, int))', (0, 0))
        """
        if not isinstance(text, str):
            raise TimeShapeError(f"a time shape is a string such as 'int' or '(int, int)', not {text!r}")
        tokens = _tokens(text)
        form, rest = _parse_form(tokens, 0, text, 0)
        if rest != len(tokens):
            raise _bad_shape(text, f"unexpected {tokens[rest]!r} after the shape")
        shape = cls(form)
        if sum(1 for _ in shape._leaves(shape.bottom)) > MAX_SHAPE_LEAVES:
            raise _bad_shape(text, f"more than {MAX_SHAPE_LEAVES} ints")
        return shape

    def __str__(self) -> str:
        """The canonical spelling; `parse` reads it back."""
        return _spell(self.form)

    @property
    def bottom(self) -> Time:
        """The least time: all zeros.

        >>> TimeShape.parse("(int, (int, int))").bottom
        (0, (0, 0))
        """
        return _fill(self.form)

    def check(self, time: object) -> Time:
        """Return `time` if it has this shape and every int is in 0 .. 2^63-1; else raise `TimeShapeError`.

        >>> TimeShape.parse("(int, int)").check((3, 5))
        (3, 5)
        >>> TimeShape.parse("(int, int)").check(3)
        Traceback (most recent call last):
            ...
        epochal.errors.TimeShapeError: the stream's times have the shape (int, int), with each int in 0 .. 2^63-1; got 3
        """
        if self.form is None and type(time) is int and 0 <= time <= MAX_TIME:
            return time
        if not _fits(self.form, time):
            raise TimeShapeError(
                f"the stream's times have the shape {self}, with each int in 0 .. 2^63-1; got {reprlib.repr(time)}"
            )
        return time  # type: ignore[return-value]  # it fits, so it is a time

    def from_json(self, value: Any) -> Time:
        """Read and check the JSON form of a time.

        >>> TimeShape.parse("(int, int)").from_json([3, 5])
        (3, 5)
        """
        return self.check(from_json(value))

    def most_times(self, size: int) -> int:
        """How many times of this shape fit into `size` bytes of msgpack, whatever their ints.

        >>> TimeShape.parse("int").most_times(1000)
        100
        """
        leaves = sum(1 for _ in self._leaves(self.bottom))
        return size // (9 * leaves + 3 * _tuples(self.form) + 1)

    def successors_past(self, time: Time) -> list[Time]:
        """The minimal times that are not <= `time`: the corners just past it, one for each int of the shape.

        A filter "drop what is <= u" is thereby also a frontier, which is how a cursor carries it (E16).

        >>> TimeShape.parse("(int, int)").successors_past((3, 5))
        [(4, 0), (0, 6)]
        """
        corners = []
        for path, value in self._leaves(time):
            if value < MAX_TIME:
                corners.append(_fill(self.form, path, value + 1))
        return corners

    def not_reached(self, times: Iterable[Time]) -> list[Time]:
        """The maximal times that no element of `times` is <=: the corners of what their frontier has passed.

        Up to (ints of the shape) ** len(times) corners are met on the way; for the shape `int` there is one.

        >>> TimeShape.parse("(int, int)").not_reached([(3, 0)]) == [(2, MAX_TIME)]
        True
        """
        if self.form is None:  # the usual shape: one corner
            least = min(times, default=MAX_TIME + 1)
            return [least - 1] if least else []  # type: ignore[operator]  # ints
        corners = [_all_leaves(self.form, MAX_TIME)]
        for time in times:
            under = [_with_leaf(self.form, path, value - 1) for path, value in self._leaves(time) if value > 0]
            met = [meet(corner, other) for corner in corners for other in under]
            corners = [c for c in dict.fromkeys(met) if not any(c != other and less_equal(c, other) for other in met)]
        return corners

    def _leaves(self, time: Time) -> Iterator[tuple[tuple[int, ...], int]]:
        def walk(form: Any, value: Any, path: tuple[int, ...]) -> Iterator[tuple[tuple[int, ...], int]]:
            if form is None:
                yield path, value
            else:
                for index, part in enumerate(form):
                    yield from walk(part, value[index], (*path, index))

        return walk(self.form, time, ())


def _tokens(text: str) -> list[str]:
    tokens, at = [], 0
    while at < len(text.rstrip()):
        match = _TOKEN.match(text, at)
        if match is None:
            raise _bad_shape(text, f"cannot read {text[at:].strip()[:10]!r}")
        tokens.append(match.group(1))
        at = match.end()
    return tokens


def _parse_form(tokens: list[str], at: int, text: str, depth: int) -> tuple[Any, int]:
    if depth > MAX_SHAPE_DEPTH:
        raise _bad_shape(text, f"nested deeper than {MAX_SHAPE_DEPTH}")
    if at >= len(tokens):
        raise _bad_shape(text, "it ends too early")
    if tokens[at] == "int":
        return None, at + 1
    if tokens[at] != "(":
        raise _bad_shape(text, f"unexpected {tokens[at]!r}")
    parts, at = [], at + 1
    while at < len(tokens) and tokens[at] != ")":
        part, at = _parse_form(tokens, at, text, depth + 1)
        parts.append(part)
        if at < len(tokens) and tokens[at] == ",":
            at += 1
        elif at < len(tokens) and tokens[at] != ")":
            raise _bad_shape(text, f"expected ',' or ')' and found {tokens[at]!r}")
    if at >= len(tokens):
        raise _bad_shape(text, "a ')' is missing")
    return tuple(parts), at + 1


def _bad_shape(text: str, reason: str) -> TimeShapeError:
    return TimeShapeError(f"{text!r} is no time shape: {reason}; write int, (int, int) or a nested tuple of int")


def _tuples(form: Any) -> int:
    return 0 if form is None else 1 + sum(map(_tuples, form))


def _spell(form: Any) -> str:
    if form is None:
        return "int"
    inner = ", ".join(map(_spell, form))
    return f"({inner},)" if len(form) == 1 else f"({inner})"


def _fill(form: Any, path: tuple[int, ...] | None = None, value: int = 0) -> Time:
    if form is None:
        return value if path == () else 0
    return tuple(
        _fill(part, path[1:] if path is not None and path and path[0] == index else None, value)
        for index, part in enumerate(form)
    )


def _all_leaves(form: Any, value: int) -> Time:
    return value if form is None else tuple(_all_leaves(part, value) for part in form)


def _with_leaf(form: Any, path: tuple[int, ...], value: int) -> Time:
    """The time whose int at `path` is `value`, and all others are the greatest."""
    if form is None:
        return value
    return tuple(
        _with_leaf(part, path[1:], value) if index == path[0] else _all_leaves(part, MAX_TIME)
        for index, part in enumerate(form)
    )


def _fits(form: Any, time: Any) -> bool:
    if form is None:
        return type(time) is int and 0 <= time <= MAX_TIME
    return type(time) is tuple and len(time) == len(form) and all(map(_fits, form, time))
