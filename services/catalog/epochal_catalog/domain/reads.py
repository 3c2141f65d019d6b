"""What a decision read: keys with their versions, so that it is noticed when the decision no longer holds.

A rule is a pure function of the state. So a decision holds for as long as everything that its rule read is the same,
and nothing else needs to be compared. State, memories and entries note each key themselves when it is read, so no rule
can forget one. A key begins with the name of a kind:

- A kind as a whole, such as `("subscription",)`. The version says how often anything of it has changed. It covers
  every list, limit and lease in the kind's memory, and is what a new kind gets without naming anything.
- One record, such as `("segment", uid, "0")`, in a memory that notes its reads itself (`Memory.notes_reads`). Its
  version is the record: records are values that are never changed but replaced. None is the version of a record that is
  absent, so a rule that found nothing named that too.
- All segments of a stream. The version is the tuple of the records.
- A counter of the catalog, such as `("counter", "token")`.

A range may change without touching what a rule took from it. Then the decision is made again, with the same result.
"""

from collections.abc import Callable, Mapping
from typing import TypeAlias, TypeVar

T = TypeVar("T")
U = TypeVar("U")
Key: TypeAlias = tuple[str, *tuple[str | int, ...]]
"""The name of a kind, and which record of it; none: the whole kind."""
Reads: TypeAlias = Mapping[Key, object]
"""The version of each key that was read."""


class Reading:
    """Notes the keys that are read while a rule decides; does nothing at other times."""

    __slots__ = ("_keys",)

    def __init__(self) -> None:
        self._keys: set[Key] | None = None

    def note(self, kind: str, *which: str | int) -> None:
        """Note that a key is read."""
        if self._keys is not None:
            self._keys.add((kind, *which))

    def during(self, decide: Callable[[U], T], argument: U) -> tuple[T, set[Key]]:
        """What `decide` returns for an argument, with the keys that it read."""
        keys: set[Key] = set()
        self._keys = keys
        try:
            return decide(argument), keys
        finally:
            self._keys = None
