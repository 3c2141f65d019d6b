"""What is said of the start of many streams: that it goes on, and not more often than one reads."""

from epochal.local.progress import Progress


def lines(*seen: tuple[float, int, int]) -> list[str]:
    said = list[str]()
    progress = Progress(said.append)
    for now, served, wanted in seen:
        progress.look(served, wanted, now)
    return said


def test_one_stream_that_is_served_at_once_is_not_talked_about() -> None:
    assert lines((0.0, 0, 0), (0.25, 0, 1), (0.5, 0, 1), (0.75, 1, 1), (90.0, 1, 1)) == []


def test_many_streams_say_how_far_they_are_once_a_second_and_when_all_are_there() -> None:
    seen = [(at / 4, at, 10) for at in range(10)] + [(2.5, 10, 10), (2.75, 10, 10)]
    assert lines(*seen) == [
        "4 of 10 streams are served", "8 of 10 streams are served", "10 of 10 streams are served"
    ]  # fmt: skip


def test_nothing_is_said_twice_while_nothing_moves() -> None:
    assert lines(*((float(at), 3, 10) for at in range(100))) == ["3 of 10 streams are served"]


def test_a_stream_that_is_lost_later_is_a_new_beginning() -> None:
    seen = [(0.0, 0, 1), (2.0, 0, 1), (3.0, 1, 1), (50.0, 0, 1), (50.5, 0, 1), (51.0, 0, 1)]
    assert lines(*seen) == ["0 of 1 stream is served", "1 of 1 stream is served", "0 of 1 stream is served"]
