"""What is on its way to readers: counted once, and bounded by the readers of what is oldest."""

from contextlib import AbstractContextManager

import pytest

from epochal_publisher.relay.epochs.encoding import PIECE, Kind, Outcome, pieces
from epochal_publisher.relay.epochs.sending import Sending

pytestmark = pytest.mark.rule("S24")


def outcome(size: int) -> Outcome:
    return Outcome(Kind.EPOCH, (b"x" * size,))


class Readers:
    """Readers by their names; each is sent something until he is cut or `leaves`."""

    def __init__(self, most: int) -> None:
        self.sending = Sending(most)
        self.cut: list[str] = []
        self._under_way: dict[str, AbstractContextManager[None]] = {}

    def begins(self, name: str, *outcomes: Outcome) -> None:
        way = self._under_way[name] = self.sending.to_reader(outcomes, lambda: self.cut.append(name))
        way.__enter__()

    def leaves(self, name: str) -> None:
        self._under_way.pop(name).__exit__(None, None, None)


def test_an_outcome_counts_once_however_many_are_sent_it() -> None:
    readers, one = Readers(100), outcome(60)
    for name in "abc":
        readers.begins(name, one)
    assert (readers.sending.bytes, readers.cut) == (60, [])
    for name, left in (("a", 60), ("b", 60), ("c", 0)):
        readers.leaves(name)
        assert readers.sending.bytes == left


def test_the_readers_of_the_oldest_are_cut_once_there_is_too_much() -> None:
    readers, old, new = Readers(100), outcome(60), outcome(40)
    readers.begins("a", old)
    readers.begins("b", new)
    readers.begins("c", old)
    assert readers.cut == [], "a hundred are not too many"
    readers.begins("d", outcome(1))
    assert (readers.cut, readers.sending.bytes) == (["a", "c"], 41)
    for name in "acbd":
        readers.leaves(name)
    assert (readers.cut, readers.sending.bytes) == (["a", "c"], 0)


def test_one_who_is_sent_several_gives_all_of_them_up() -> None:
    readers = Readers(100)
    readers.begins("a", outcome(50), outcome(50))
    readers.begins("b", outcome(50))
    assert (readers.cut, readers.sending.bytes) == (["a"], 50)


def test_what_is_larger_is_sent_alone_and_no_reader_is_cut_for_itself() -> None:
    readers, large = Readers(100), outcome(500)
    readers.begins("a", outcome(10))
    readers.begins("b", large)
    readers.begins("c", large)
    assert (readers.cut, readers.sending.bytes) == (["a"], 500)
    readers.begins("d", outcome(600))
    assert (readers.cut, readers.sending.bytes) == (["a", "b", "c"], 600)


@pytest.mark.parametrize("size", [0, 1, PIECE - 1, PIECE, PIECE + 1, 3 * PIECE + 7])
def test_pieces_are_small_and_together_the_whole(size: int) -> None:
    body = bytes(n % 251 for n in range(size))
    for head in (b"", b"head "):
        found = [*pieces(head, body, b"tail")]
        assert b"".join(found) == head + body + b"tail"
        assert all(0 < len(piece) <= PIECE + len(head) + len(b"tail") for piece in found)
