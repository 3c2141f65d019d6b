"""Many filters at once: which of them want a topic, at a cost that does not grow with their number.

Sources: *Generalized subscription upstreaming* on the nanomsg mailing list; rules F1, F6; N18.
"""

from epochal.protocol.topics.filter import TopicFilter


class MergedFilters:
    """Filters by number, as one table of prefixes; sets of numbers are the bits of an int.

    >>> merged = MergedFilters()
    >>> merged.put(0, TopicFilter()), merged.put(1, TopicFilter([b"delay/"], [b"delay/EWR"]))
    (None, None)
    >>> bin(merged.wanting(b"delay/JFK")), bin(merged.wanting(b"delay/EWR"))
    ('0b11', '0b1')

    `wanting` takes one look-up for each length that a prefix has. Putting and removing cost O(entries of the filter).
    """

    __slots__ = ("_lengths", "_nodes", "_of_length")

    def __init__(self) -> None:
        self._nodes: dict[bytes, tuple[int, int]] = {}
        """Prefix -> the filters that have it as an entry, and those of them that want it."""
        self._of_length: dict[int, int] = {}
        """Length -> how many prefixes have it."""
        self._lengths: list[int] = []

    def put(self, number: int, topics: TopicFilter) -> None:
        """Add a filter, whose number must be free."""
        bit = 1 << number
        for prefix, wanted in topics:
            node = self._nodes.get(prefix)
            if node is None:
                node = 0, 0
                self._of_length[len(prefix)] = self._of_length.get(len(prefix), 0) + 1
            self._nodes[prefix] = node[0] | bit, node[1] | bit if wanted else node[1]
        self._lengths = sorted(self._of_length)

    def remove(self, number: int, topics: TopicFilter) -> None:
        """Take away what `put` has added."""
        bit = 1 << number
        for prefix, _ in topics:
            having, wanting = self._nodes[prefix]
            if having != bit:
                self._nodes[prefix] = having & ~bit, wanting & ~bit
                continue
            del self._nodes[prefix]
            self._of_length[len(prefix)] -= 1
            if not self._of_length[len(prefix)]:
                del self._of_length[len(prefix)]
        self._lengths = sorted(self._of_length)

    def wanting(self, topic: bytes) -> int:
        """The numbers of the filters that want the topic: of each, its longest prefix decides (F1)."""
        size, found = len(topic), 0
        for length in self._lengths:
            if length > size:
                break
            node = self._nodes.get(topic[:length])
            if node is not None:
                having, wanting = node
                found = found & ~having | wanting
        return found
