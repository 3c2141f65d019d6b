"""An application's own times in place of plain ones.

Separate from `times` because mypyc cannot compile a frozen dataclass that is generic, and `times` is compiled.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, TypeVar

from epochal.protocol.times import Time

T = TypeVar("T")


@dataclass(frozen=True)  # without slots: on Python 3.11 a frozen generic with slots fails at TimeCodec[X](...)
class TimeCodec(Generic[T]):
    """How an application's own time type travels as a plain time (S34): a pair of functions, inverse to each other.

    `encode` must keep the order: a <= b exactly when encode(a) <= encode(b).

    Here a stream of days, whose times count from the first of January 1970:

    >>> from datetime import date, timedelta
    >>> first = date(1970, 1, 1)
    >>> days = TimeCodec(encode=lambda day: (day - first).days, decode=lambda count: first + timedelta(count))
    >>> days.encode(date(2024, 2, 29)), days.decode(19782)
    (19782, datetime.date(2024, 2, 29))
    """

    encode: Callable[[T], Time]
    decode: Callable[[Time], T]
