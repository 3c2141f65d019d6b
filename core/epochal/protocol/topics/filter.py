"""What a subscriber wants, as prefixes of topics in a normal form: equal filters are equal objects.

The longest prefix of a topic decides; a topic without one is not wanted. Sources: rule F1; N7, N11.
"""

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping

MAX_REMEMBERED = 4096
"""Topics whose answer a filter remembers; then it forgets all of them."""


class TopicFilter:
    """A set of topics, given by prefixes that are wanted and prefixes that are rejected. It never changes.

    `wanted`: None for every topic. A prefix that is both wanted and rejected is wanted. `entries` is the normal form:
    without those whose topics are decided in the same way by the nearest shorter prefix.

    >>> delays = TopicFilter([b"delay/", b"delay/JFK"], [b"delay/EWR"])
    >>> delays
    TopicFilter(+b'delay/' -b'delay/EWR')
    >>> [delays.wants(topic) for topic in (b"delay/JFK", b"delay/EWR", b"gate/JFK")]
    [True, False, False]
    >>> delays == TopicFilter([b"delay/"], [b"delay/EWR", b"gate/"])
    True

    n entries: O(n log n) to make; `wants` takes one look-up for each length of a prefix, and remembers the answer.
    """

    __slots__ = ("_known", "_lengths", "_signs", "_wanted", "entries")

    def __init__(self, wanted: Iterable[bytes] | None = None, rejected: Iterable[bytes] = ()) -> None:
        positive = [b""] if wanted is None else wanted
        self._set(dict.fromkeys(rejected, False) | dict.fromkeys(positive, True))

    @classmethod
    def of(cls, signs: Mapping[bytes, bool]) -> "TopicFilter":
        """The filter of these prefixes, True for those that are wanted.

        >>> TopicFilter.of({b"a": True, b"ab": True, b"b": False})
        TopicFilter(+b'a')
        """
        made = cls.__new__(cls)
        made._set(signs)
        return made

    def _set(self, signs: Mapping[bytes, bool]) -> None:
        self.entries: tuple[tuple[bytes, bool], ...] = tuple(_normal(signs))
        """The normal form: (prefix, whether it is wanted), in the order of the prefixes."""
        self._signs = dict(self.entries)
        self._wanted = [prefix for prefix, wanted in self.entries if wanted]
        self._lengths = sorted({len(prefix) for prefix in self._signs}, reverse=True)
        self._known: dict[bytes, bool] = {}

    # ---- one topic ----

    def wants(self, topic: bytes) -> bool:
        """Whether `topic` is in the filter.

        >>> TopicFilter().wants(b"x"), TopicFilter([]).wants(b"x")
        (True, False)
        """
        known = self._known.get(topic)
        if known is None:
            if len(self._known) >= MAX_REMEMBERED:
                self._known.clear()
            known = self._known[topic] = self._decide(topic)
        return known

    def _decide(self, topic: bytes) -> bool:
        size = len(topic)
        for length in self._lengths:
            if length <= size:
                sign = self._signs.get(topic[:length])
                if sign is not None:
                    return sign
        return False

    # ---- filters ----

    def covers(self, other: "TopicFilter") -> bool:
        """Whether every topic of `other` is in this one too.

        A topic is decided by a prefix of each, so it is enough to compare them at the prefixes themselves.

        >>> all_but_b, only_ab = TopicFilter(None, [b"b"]), TopicFilter([b"ab"])
        >>> all_but_b.covers(only_ab), only_ab.covers(all_but_b), all_but_b.covers(all_but_b)
        (True, False, True)
        """
        prefixes = (*other._signs, *self._signs)  # most filters differ at the first prefix that the other one wants
        return all(self._decide(prefix) or not other._decide(prefix) for prefix in prefixes)

    def union(self, *others: "TopicFilter") -> "TopicFilter":
        """Every topic that is in one of them.

        >>> TopicFilter([b"a"], [b"ab"]).union(TopicFilter([b"abc", b"b"]))
        TopicFilter(+b'a' -b'ab' +b'abc' +b'b')
        """
        all_of_them = (self, *others)
        prefixes = {prefix for each in all_of_them for prefix in each._signs}
        return TopicFilter.of({prefix: any(each._decide(prefix) for each in all_of_them) for prefix in prefixes})

    def intersection(self, *others: "TopicFilter") -> "TopicFilter":
        """Every topic that is in all of them.

        >>> TopicFilter([b"a"]).intersection(TopicFilter(None, [b"ab"]))
        TopicFilter(+b'a' -b'ab')
        """
        all_of_them = (self, *others)
        prefixes = {prefix for each in all_of_them for prefix in each._signs}
        return TopicFilter.of({prefix: all(each._decide(prefix) for each in all_of_them) for prefix in prefixes})

    def without(self, other: "TopicFilter") -> "TopicFilter":
        """Every topic of this one that is not in `other`.

        >>> TopicFilter([b"a", b"b"]).without(TopicFilter([b"ab"]))
        TopicFilter(+b'a' -b'ab' +b'b')
        """
        prefixes = {*self._signs, *other._signs}
        return TopicFilter.of({prefix: self._decide(prefix) and not other._decide(prefix) for prefix in prefixes})

    @property
    def prefixes(self) -> tuple[tuple[bytes, ...], tuple[bytes, ...]]:
        """The normal form as (wanted, rejected), from which the filter can be made again.

        >>> TopicFilter(None, [b"gate/"]).prefixes
        ((b'',), (b'gate/',))
        """
        return tuple(self._wanted), tuple(prefix for prefix, wanted in self.entries if not wanted)

    @property
    def size(self) -> int:
        """Bytes of all prefixes."""
        return sum(len(prefix) for prefix in self._signs)

    def shortest_unwanted(self, topic: bytes) -> bytes | None:
        """The shortest prefix of `topic` below which nothing is wanted; None if something is, at or below the topic.

        >>> foo = TopicFilter([b"foo"])
        >>> foo.shortest_unwanted(b"fab"), foo.shortest_unwanted(b"fo"), foo.shortest_unwanted(b"x/y")
        (b'fa', None, b'x')
        """
        place = bisect_left(self._wanted, topic)  # one of those beside it has most in common with it
        common = max((_common(prefix, topic) for prefix in self._wanted[max(place - 1, 0) : place + 1]), default=0)
        return topic[: common + 1] if common < len(topic) else None

    def text(self, most: int) -> str:
        r"""For people: prefixes that are wanted, and with a minus those that are not; cut to `most` characters.

        >>> TopicFilter(None, [b"gate/"]).text(60), TopicFilter([]).text(60), TopicFilter([b"\n", b"a b"]).text(5)
        ('everything -gate/', 'nothing', '\\n...')
        """
        found = ""
        for prefix, wanted in self.entries:
            shown = repr(prefix)[2:-1] or "everything"
            found += f"{' ' if found else ''}{'' if wanted else '-'}{shown}"
            if len(found) > most:
                return f"{found[: most - 3]}..."
        return found or "nothing"

    # ---- as a value ----

    def __iter__(self) -> Iterator[tuple[bytes, bool]]:
        return iter(self.entries)

    def __len__(self) -> int:
        """How many entries."""
        return len(self.entries)

    def __contains__(self, prefix: object) -> bool:
        """Whether `prefix` is an entry, of either sign."""
        return prefix in self._signs

    def __eq__(self, other: object) -> bool:
        return isinstance(other, TopicFilter) and self.entries == other.entries

    def __hash__(self) -> int:
        return hash(self.entries)

    def __repr__(self) -> str:
        return f"TopicFilter({' '.join('-+'[sign] + repr(prefix) for prefix, sign in self.entries)})"


def _normal(signs: Mapping[bytes, bool]) -> Iterator[tuple[bytes, bool]]:
    """The entries that decide something: in this order, each prefix comes before all that begin with it."""
    above: list[tuple[bytes, bool]] = []
    for prefix in sorted(signs):
        while above and not prefix.startswith(above[-1][0]):
            above.pop()
        if signs[prefix] != (above[-1][1] if above else False):
            above.append((prefix, signs[prefix]))
            yield above[-1]


def _common(one: bytes, other: bytes) -> int:
    """How many bytes both begin with."""
    return next((at for at, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other)))


EVERYTHING = TopicFilter()
"""Every topic."""
